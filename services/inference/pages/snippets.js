// An answer's request as a command or a program that gives the same answer.
import { bodyOf } from "./answer.js";
import { symbolOf } from "./dom.js";
import { usesKey } from "./service.js";

const OPENAI = new Set(["max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "seed", "logit_bias"]);

const address = (path) => new URL(path, location.href.split("#")[0]).href;

/** Characters that cannot be seen are written as escapes: what is copied shows what it does. */
const json = (value) => JSON.stringify(value, null, 1).replace(/\n */g, " ").replace(/[^ -~]/gu, (character) =>
  (symbolOf(character) === null ? character : Array.from({ length: character.length }, (_, at) => escaped(character, at)).join("")));

const escaped = (character, at) => `\\u${character.charCodeAt(at).toString(16).padStart(4, "0")}`;

/** JSON as Python reads it: a pair of surrogates is one escape there. */
const python = (value) => {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return json(value).replace(/\\u(d[89ab]..)\\u(d[c-f]..)/g, (_, high, low) =>
    `\\U${String.fromCharCode(parseInt(high, 16), parseInt(low, 16)).codePointAt(0).toString(16).padStart(8, "0")}`);
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, item]) => `${python(name)}: ${python(item)}`).join(", ")}}`;
  return String(value);
};

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const curl = (body) => [
  `curl ${quoted(address("generate"))}`,
  ...(usesKey() ? ['-H "Authorization: Bearer $OWNLM_API_KEY"'] : []),
  "-H 'Content-Type: application/json'",
  `-d ${quoted(json(body))}`,
].join(" \\\n     ");

const httpx = (body) => `${usesKey() ? "import os\n\n" : ""}import httpx

body = ${python(body)}
${usesKey() ? 'headers = {"Authorization": f"Bearer {os.environ[\'OWNLM_API_KEY\']}"}\n' : ""}response = httpx.post(${python(address("generate"))}, json=body, ${usesKey() ? "headers=headers, " : ""}timeout=600)
response.raise_for_status()
print(response.json()["choices"][0]["text"])
`;

const openai = ({ prompt, ...parameters }, model) => {
  const known = Object.entries(parameters).filter(([name]) => OPENAI.has(name));
  const others = Object.fromEntries(Object.entries(parameters).filter(([name]) => !OPENAI.has(name)));
  const key = usesKey() ? 'os.environ["OWNLM_API_KEY"]' : '"none"';
  return `${usesKey() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${python(address("v1"))}, api_key=${key})
completion = client.completions.create(
    model=${python(model)},
    prompt=${python(prompt)},
${known.map(([name, value]) => `    ${name}=${python(value)},\n`).join("")}${Object.keys(others).length ? `    extra_body=${python(others)},\n` : ""})
print(completion.choices[0].text)
`;
};

/**
 * A program for an answer. Where the answer began with tokens that were given, it prints what follows them.
 * @param {"curl"|"Python"|"OpenAI client"} kind
 * @param {import("./answer.js").Answer} answer
 * @param {any} info of the service
 * @returns {string}
 */
export const snippet = (kind, answer, info) => {
  const { given, max_tokens: maxTokens, seed } = answer.link;
  const start = { request: answer.request, seed, maxTokens, tokens: [], ids: [] };
  const body = { ...bodyOf([start]), ...(given && { continue_tokens: given }) };
  if (kind === "curl") return `${curl(body)}\n`;
  if (kind === "Python") return httpx(body);
  // The two routes differ in how many tokens they generate where a request does not say it.
  return openai({ ...body, max_tokens: maxTokens ?? answer.tokens.length }, info.model);
};
