// The request of the page, for a terminal and for a program. Where the page has a key, both take it from $KEY.
import { json, python, quoted } from "./literals.js";
import { usesKey } from "./service.js";

const address = () => new URL("encode", location).href;

/** @param {object} body of /encode @returns {string} */
export const asCurl = (body) => `curl ${quoted(address())} ${usesKey() ? '-H "Authorization: Bearer $KEY" ' : ""}` +
  `-H 'Content-Type: application/json' -d ${quoted(json(body))}`;

/** @param {object} body of /encode @returns {string} */
export const asPython = (body) => {
  const headers = usesKey() ? ', headers={"Authorization": "Bearer " + os.environ["KEY"]}' : "";
  return [
    ...(headers ? ["import os", ""] : []), "import httpx", "",
    `answer = httpx.post(${python(address())}, json=${python(body)}${headers})`,
    "print(answer.raise_for_status().json())", "",
  ].join("\n");
};
