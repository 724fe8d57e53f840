// An answer's request as a command or a program that gives the same answer.
import { bodyOf } from "./answer.js";
import { json, python, quoted } from "./literals.js";
import { usesKey } from "./service.js";

const OPENAI = "max_tokens temperature top_p presence_penalty frequency_penalty stop seed logit_bias".split(" ");
const KEY = 'os.environ["KEY"]';

const address = (path) => new URL(path, location).href;

const curl = (path, body) => `curl ${quoted(address(path))} \\
     ${usesKey() ? '-H "Authorization: Bearer $KEY" ' : ""}-H 'Content-Type: application/json' \\
     -d ${quoted(json(body))}
`;

const withKey = (program) => (usesKey() ? `import os\n\n${program}` : program);

const httpx = (path, body, text) => withKey(`import httpx

body = ${python(body)}
headers = {${usesKey() ? `"Authorization": "Bearer " + ${KEY}` : ""}}
response = httpx.post(${python(address(path))}, json=body, headers=headers, timeout=600)
response.raise_for_status()
print(response.json()["choices"][0]${text})
`);

const openai = (route, input, body, text) => {
  const { [input]: value, model, ...parameters } = body;
  const known = OPENAI.filter((name) => name in parameters).map((name) => `    ${name}=${python(parameters[name])},\n`);
  const others = Object.fromEntries(Object.entries(parameters).filter(([name]) => !OPENAI.includes(name)));
  return withKey(`from openai import OpenAI

client = OpenAI(base_url=${python(address("v1"))}, api_key=${usesKey() ? KEY : '"none"'})
completion = client.${route}.create(
    model=${python(model)},
    ${input}=${python(value)},
${known.join("")}    extra_body=${python(others)},
)
print(completion.choices[0].${text})
`);
};

/**
 * A program for an answer. Where the answer began with tokens that were given, it prints what follows them.
 * @param {string} kind one of `KINDS`
 * @param {import("./answer.js").Answer} answer
 * @param {any} info
 */
export const snippet = (kind, answer, { model }) => {
  const { given, max_tokens: maxTokens, seed } = answer.link;
  const body = { ...bodyOf([{ ...answer, seed, maxTokens, tokens: [] }]), ...(given && { continue_tokens: given }) };
  if (kind === "curl") return curl("generate", body);
  if (kind === "Python") return httpx("generate", body, '["text"]');
  // The routes differ in how many tokens they generate where a request does not say it.
  return openai("completions", "prompt", { ...body, model, max_tokens: maxTokens ?? answer.tokens.length }, "text");
};

/** A program for the request of a conversation. @param {string} kind one of `KINDS` @param {object} body @param {any} info */
export const chatSnippet = (kind, body, { model }) => {
  if (kind === "curl") return curl("v1/chat/completions", body);
  if (kind === "Python") return httpx("v1/chat/completions", body, '["message"]["content"]');
  return openai("chat.completions", "messages", { ...body, model }, "message.content");
};
