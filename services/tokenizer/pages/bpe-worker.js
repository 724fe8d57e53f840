// A tokenizer.json that a person opened, in a thread of its own, so that the page stays free. It asks for nothing.
import { readVocabulary } from "./bpe-file.js";
import { Encoder } from "./bpe.js";

let encoder;

const open = async (file) => {
  const text = await file.text();
  let content;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new Error(`it is not JSON: ${error.message}`);
  }
  encoder = new Encoder(readVocabulary(content));
  const { ids, added, merges } = encoder.vocabulary;
  const all = new Set([...ids.values(), ...added.map((token) => token.id)]);
  return { tokens: all.size, merges: merges.size, special: added.filter((token) => token.special).length };
};

/** Messages are {file} or {text, special, template}; answers {answer} or {error}. */
self.onmessage = async ({ data: { file, text, ...options } }) => {
  try {
    const answer = file ? await open(file) : encoder.encode(text, options);
    self.postMessage({ answer }, file ? [] : Object.values(answer).map((column) => column.buffer));
  } catch (error) {
    self.postMessage({ error: error.message });
  }
};
