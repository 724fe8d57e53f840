// A tokenizer.json that a person opened, in a thread of its own, so that the page stays free. It asks for nothing.
import { readVocabulary } from "./bpe-file.js";
import { Encoder } from "./bpe.js";

const MAX_FILE_BYTES = 2 ** 28;
let encoder = null;

const open = async (file) => {
  if (file.size > MAX_FILE_BYTES) throw new Error(`it has ${file.size} bytes, the limit is ${MAX_FILE_BYTES}`);
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`it is not JSON: ${error.message}`);
  }
  encoder = new Encoder(readVocabulary(content));
  const { ids, added, merges, nfc } = encoder.vocabulary;
  const tokens = new Set([...ids.values(), ...added.map((token) => token.id)]).size;
  return { tokens, merges: merges.size, special: added.filter((token) => token.special).length, nfc };
};

/** Messages are {number, file} or {number, text, special, template}; answers {number, answer} or {number, error}. */
self.onmessage = async ({ data: { number, file, text, special, template } }) => {
  try {
    const answer = file ? await open(file) : encoder.encode(text, { special, template });
    self.postMessage({ number, answer }, file ? [] : Object.values(answer).map((column) => column.buffer));
  } catch (error) {
    self.postMessage({ number, error: error.message });
  }
};
