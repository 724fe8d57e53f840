// The request of the page, for a terminal and for a program.
import { symbolOf } from "./dom.js";
import { usesKey } from "./service.js";

/** JSON without characters that cannot be seen or that move others; it is a Python literal too, but for true. */
const literal = (value) => JSON.stringify(value).replace(/[^ -~]/gu, (character) =>
  (symbolOf(character) === null ? character : character.split("").map(escaped).join("")));

const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;

const address = () => new URL("encode", document.baseURI.replace(/#.*/, ""));

/** @param {object} body of /encode @returns {string} */
export const asCurl = (body) => {
  const key = usesKey() ? ' -H "Authorization: Bearer $KEY"' : "";
  return `curl ${address()}${key} -H 'Content-Type: application/json' -d '${literal(body).replaceAll("'", "'\\''")}'`;
};

/** @param {object} body of /encode @returns {string} */
export const asPython = (body) => {
  const fields = Object.entries(body).map(([name, value]) => `"${name}": ${value === true ? "True" : python(value)}`);
  const headers = usesKey() ? ', headers={"Authorization": "Bearer " + os.environ["KEY"]}' : "";
  return [
    ...(usesKey() ? ["import os", ""] : []), "import httpx", "",
    `answer = httpx.post("${address()}", json={${fields.join(", ")}}${headers})`,
    "print(answer.raise_for_status().json())", "",
  ].join("\n");
};

/** A pair of surrogates is one escape in Python. */
const python = (value) => literal(value).replace(/(\\ud[89ab]..)(\\ud[c-f]..)/g, (pair) =>
  `\\U${JSON.parse(`"${pair}"`).codePointAt(0).toString(16).padStart(8, "0")}`);
