// Values as a shell or Python reads them. Characters that cannot be seen are escapes: what is copied shows what it does.
import { symbolOf } from "./dom.js";

export const json = (value) => JSON.stringify(value, null, 1).replace(/\n */g, " ").replace(/[^ -~]/gu, (character) =>
  (symbolOf(character) === null ? character : character.split("").map(escaped).join("")));

const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** JSON as Python reads it: a pair of surrogates is one escape there. */
export const python = (value) => {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return json(value).replace(/(\\ud[89ab]..)(\\ud[c-f]..)/g, (pair) =>
    `\\U${JSON.parse(`"${pair}"`).codePointAt(0).toString(16).padStart(8, "0")}`);
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return String(value);
  return `{${Object.entries(value).map((pair) => pair.map(python).join(": ")).join(", ")}}`;
};

export const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
