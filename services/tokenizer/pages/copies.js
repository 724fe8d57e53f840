// The request of the page, for a terminal and for a program.

const UNSEEN = /[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** JSON without characters that cannot be seen or that move others; it is a Python literal too, but for true. */
const literal = (value) => JSON.stringify(value).replace(UNSEEN,
  (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

const address = () => new URL("encode", document.baseURI.replace(/#.*/, ""));

/** @param {object} body of /encode @returns {string} */
export const asCurl = (body) =>
  `curl ${address()} -H 'Content-Type: application/json' -d '${literal(body).replaceAll("'", "'\\''")}'`;

/** @param {object} body of /encode @returns {string} */
export const asPython = (body) => {
  const fields = Object.entries(body).map(([name, value]) => `"${name}": ${value === true ? "True" : literal(value)}`);
  return [
    "import httpx", "", `answer = httpx.post("${address()}", json={${fields.join(", ")}})`,
    "print(answer.raise_for_status().json())", "",
  ].join("\n");
};
