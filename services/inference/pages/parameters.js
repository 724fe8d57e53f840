// The form of the sampling parameters: defaults and limits are the model's, from /info.
import { byId, element } from "./dom.js";

const NUMBERS = [
  ["max_tokens", "Max tokens", 1],
  ["temperature", "Temperature", "any"],
  ["top_p", "Top p", "any"],
  ["top_k", "Top k", 1],
  ["min_p", "Min p", "any"],
  ["repetition_penalty", "Repetition penalty", "any"],
  ["presence_penalty", "Presence penalty", "any"],
  ["frequency_penalty", "Frequency penalty", "any"],
  ["min_tokens", "Min tokens", 1],
  ["seed", "Seed", 1],
];
const ESCAPES = { n: "\n", r: "\r", t: "\t", "\\": "\\" };

/** What is wrong with the field `input`. */
export class FieldError extends Error {}

/** Build the fields, once /info is known. @param {any} info */
export const buildFields = (info) => {
  const limits = {
    ...info.ranges,
    min_tokens: info.ranges.max_tokens,
    seed: { minimum: 0, maximum: Number.MAX_SAFE_INTEGER },
  };
  const { max_stops: stops, max_stop_characters: characters } = info.limits;
  byId("fields").replaceChildren(
    ...NUMBERS.map(([name, label, step]) => numberField(name, label, step, limits[name] ?? {}, info.defaults[name])),
    field("stop", "Stop strings", `up to ${stops} lines of ${characters} characters; \\n: line break`,
      element("textarea", { id: "stop-strings", name: "stop", rows: 2, spellcheck: "false" })),
    field("logit_bias", "Token bias", "id=value, -100 to 100",
      element("input", { id: "logit_bias", name: "logit_bias", autocomplete: "off" })),
    element("label", {}, element("input", { type: "checkbox", id: "ignore_eos", name: "ignore_eos", form: "form" }),
      " Continue after an end-of-text token"),
  );
};

const numberField = (name, label, step, { minimum, exclusiveMinimum, maximum }, value) => {
  const low = exclusiveMinimum === undefined ? minimum : `above ${exclusiveMinimum}`;
  const range = name === "seed" ? "empty: a new one" : maximum === undefined ? `from ${low}` : `${low} to ${maximum}`;
  return field(name, label, range, element("input", {
    id: name, name, type: "number", step, min: minimum ?? exclusiveMinimum, max: maximum,
    placeholder: value ?? (name === "seed" ? "random" : "0"), "data-above": exclusiveMinimum,
  }));
};

const field = (name, label, hint, input) => {
  input.setAttribute("form", "form"); // Enter generates
  return element("div", { class: "field" }, element("label", { for: input.id }, label, " ",
    element("span", { id: `${name}-hint` }, hint)), input);
};

/** The fields that are not empty, as a request has them. @throws {FieldError} one has a value that no request may have */
export const readFields = () => {
  const values = {};
  for (const [name, label] of NUMBERS) {
    const input = byId(name);
    const { validity, value } = input;
    const isLow = input.dataset.above !== undefined && value !== "" && Number(value) <= Number(input.dataset.above);
    check(input, validity.valid && !isLow, `${label}: ${byId(`${name}-hint`).textContent}. ${input.validationMessage}`);
    if (value !== "") values[name] = Number(value);
  }
  check(byId("min_tokens"), !(values.min_tokens > values.max_tokens), "Min tokens: at most max tokens");
  const lines = byId("stop-strings").value.split("\n").filter(Boolean).map(unescape);
  if (lines.length) values.stop = lines;
  const bias = byId("logit_bias").value.split(/[\s,]+/).filter(Boolean).map((entry) => entry.split("="));
  if (bias.length) values.logit_bias = Object.fromEntries(bias.map(([id, value]) => [id, Number(value)]));
  if (byId("ignore_eos").checked) values.ignore_eos = true;
  return values;
};

/** Put the values of a request into the fields. @param {object} values */
export const writeFields = (values) => {
  for (const [name] of NUMBERS) byId(name).value = values[name] ?? "";
  byId("stop-strings").value = (values.stop ?? []).map(escape).join("\n");
  byId("logit_bias").value = Object.entries(values.logit_bias ?? {}).map((pair) => pair.join("=")).join(" ");
  byId("ignore_eos").checked = values.ignore_eos ?? false;
};

/** Mark a field as right or wrong. @throws {FieldError} it is wrong */
export const check = (input, isValid, message) => {
  if (isValid) input.removeAttribute("aria-invalid");
  else {
    input.setAttribute("aria-invalid", "true");
    throw Object.assign(new FieldError(message), { input });
  }
};

const unescape = (line) => line.replace(/\\([nrt\\])/g, (_, letter) => ESCAPES[letter]);
const escape = (text) => Object.entries(ESCAPES).reverse().reduce((done, [letter, character]) =>
  done.replaceAll(character, `\\${letter}`), text);
