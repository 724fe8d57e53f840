// Reading a tokenizer.json for byte-level BPE. What would change ids in a way that bpe.js does not follow is refused.
import { translate } from "./bpe-pattern.js";

const GPT2 = String.raw`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
// Digits are cut off first, and the text ends before them for the rest of the pattern.
const AFTER_DIGITS = String.raw`|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+`;
const FLAGS = ["special", "lstrip", "rstrip", "normalized"];
const MAX_ID = 2 ** 21 - 3;
const MAX_MERGES = 2 ** 22 - 1;

/** GPT-2's alphabet: the printable character of every byte (bytes_to_unicode in OpenAI's src/encoder.py). */
export const ALPHABET = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(byte));
for (let byte = 0, next = 256; byte < 256; byte++) {
  if (byte <= 0x20 || (byte >= 0x7f && byte <= 0xa0) || byte === 0xad) ALPHABET[byte] = String.fromCharCode(next++);
}
const BYTES = new Map(ALPHABET.map((character, byte) => [character, byte]));

/**
 * @typedef {{id: number, content: string, special: boolean, lstrip: boolean, rstrip: boolean,
 *   normalized: boolean}} Added
 * @typedef {object} Vocabulary
 * @property {Map<string, number>} ids ordinary tokens by printable form
 * @property {Map<number, string>} texts printable forms of all ordinary tokens
 * @property {Map<number, number>} merges by left id * 2**21 + right id: rank * 2**21 + id of the result
 * @property {Added[]} added
 * @property {RegExp|null} pattern null: the whole text is one pretoken
 * @property {boolean} nfc
 * @property {boolean} prefixSpace a space is put before plain text that does not begin with one
 * @property {boolean} ignoreMerges a pretoken that is itself a token is not merged
 * @property {number[]} prefix ids that are put before a text on request
 * @property {number[]} suffix and behind it
 */

/**
 * @param {any} content the JSON of a tokenizer.json
 * @returns {Vocabulary}
 * @throws {Error} what the file has that is not supported
 */
export const readVocabulary = (content) => {
  const model = content?.model;
  if (typeof model !== "object" || model === null) fail("model must be an object: is this a tokenizer.json?");
  if ((model.type ?? "BPE") !== "BPE") fail(`model.type is ${model.type}; only byte-level BPE is supported`);
  for (const key of ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"]) {
    if (model[key]) fail(`model.${key} is ${show(model[key])}; only byte-level BPE without it is supported`);
  }
  const decoder = names(content.decoder, "decoder");
  if (decoder !== "ByteLevel") fail(`decoder is ${decoder || "missing"}; only ByteLevel is supported`);
  const normalizer = names(content.normalizer, "normalizer");
  if (!["", "NFC"].includes(normalizer)) fail(`normalizer is ${normalizer}; only none or NFC is supported`);
  const all = readIds(model.vocab);
  const added = readAdded(content.added_tokens ?? [], all);
  const pairs = readMerges(model.merges, all);
  const ids = ordinary(all, pairs, added);
  return {
    ids,
    texts: new Map([...ids].map(([text, id]) => [id, text])),
    merges: new Map(pairs.map(([left, right], rank) =>
      [ids.get(left) * 2 ** 21 + ids.get(right), rank * 2 ** 21 + ids.get(left + right)])),
    added,
    ...readPreTokenizer(content.pre_tokenizer),
    nfc: normalizer === "NFC",
    ignoreMerges: Boolean(model.ignore_merges),
    ...readTemplate(content.post_processor, new Set(added.map((token) => token.id))),
  };
};

/** The bytes of a printable form. @param {string} text @returns {Uint8Array} */
export const bytesOf = (text) => Uint8Array.from(text, (character) => BYTES.get(character));

const fail = (message) => {
  throw new Error(message);
};

const show = (value) => String(JSON.stringify(value)).slice(0, 80);

const checkId = (id, what) => {
  if (!Number.isInteger(id) || id < 0 || id > MAX_ID) fail(`${what} is ${show(id)}, not a whole number to ${MAX_ID}`);
};

const readIds = (vocab) => {
  if (typeof vocab !== "object" || vocab === null) fail("model.vocab must be an object of tokens and ids");
  const ids = new Map(Object.entries(vocab));
  const seen = new Map();
  for (const [text, id] of ids) {
    checkId(id, `the id of ${show(text)}`);
    if (seen.has(id)) fail(`the id ${id} is given to both ${show(seen.get(id))} and ${show(text)}`);
    seen.set(id, text);
  }
  return ids;
};

const readAdded = (entries, ids) => {
  if (!Array.isArray(entries)) fail("added_tokens must be a list");
  const contents = new Set();
  const texts = new Map([...ids].map(([text, id]) => [id, text]));
  return entries.map((entry, number) => {
    const { content, id } = entry ?? {};
    const where = `added_tokens[${number}] ${show(content)}`;
    if (typeof content !== "string" || !content) fail(`${where} must have a content`);
    checkId(id, `the id of ${where}`);
    if (entry.single_word) fail(`${where} is single_word; that is not supported`);
    const known = ids.get(content) ?? id;
    if (known !== id) fail(`${where} has the id ${id}, but the id ${known} in the vocabulary`);
    if (contents.has(content)) fail(`${where} appears twice`);
    contents.add(content);
    if ((texts.get(id) ?? content) !== content) fail(`${where} has the id ${id}, which is that of ${show(texts.get(id))}`);
    texts.set(id, content);
    return { id, content, ...Object.fromEntries(FLAGS.map((flag) => [flag, Boolean(entry[flag])])) };
  });
};

const readMerges = (merges, ids) => {
  if (!Array.isArray(merges) || merges.length > MAX_MERGES) fail(`model.merges must be a list of up to ${MAX_MERGES}`);
  return merges.map((merge, number) => {
    const parts = typeof merge === "string" ? merge.split(" ") : merge;
    if (!Array.isArray(parts) || parts.length !== 2 || !parts.every((part) => typeof part === "string" && part)) {
      fail(`merge ${number} must be two tokens, not ${show(merge)}`);
    }
    for (const part of [...parts, parts.join("")]) {
      if (!ids.has(part)) fail(`merge ${number}, ${show(merge)}, needs the token ${show(part)}, which is missing`);
    }
    return parts;
  });
};

/** The tokens that merging may give: all but added ones, unless these are in merges or are single bytes. */
const ordinary = (all, pairs, added) => {
  const ids = new Map(all);
  const merged = new Set(pairs.flatMap(([left, right]) => [left, right, left + right]));
  for (const { content } of added) {
    if (!merged.has(content) && !isByteOfText(content)) ids.delete(content);
    if (ids.has(content) && !/^[!-~]+$/.test(content)) fail(`the added token ${show(content)} is spelled like another`);
  }
  for (const text of ids.keys()) {
    if (!text) fail("the vocabulary has an empty token");
    for (const character of text) {
      if (!BYTES.has(character)) fail(`${show(text)} is not in the byte-level alphabet: another kind of BPE`);
    }
  }
  return ids;
};

/** Bytes that never occur in UTF-8 are no ordinary tokens. */
const isByteOfText = (text) => {
  const byte = BYTES.get(text);
  return byte !== undefined && byte < 0xf5 && byte !== 0xc0 && byte !== 0xc1;
};

const readPreTokenizer = (component) => {
  const list = steps(component, "pre_tokenizer");
  const kinds = list.map((step) => step.type).join(", ");
  const [cut, byteLevel] = [list[0], list.at(-1)];
  const prefixSpace = byteLevel?.add_prefix_space ?? true;
  const useRegex = byteLevel?.use_regex ?? true;
  if (kinds === "ByteLevel") return { pattern: useRegex ? translate(GPT2) : null, prefixSpace };
  if (!["Split, ByteLevel", "Digits, ByteLevel"].includes(kinds)) {
    fail(`pre_tokenizer is ${kinds || "missing"}; only ByteLevel, alone or after one Split or Digits, is supported`);
  }
  if (prefixSpace) fail("pre_tokenizer.add_prefix_space is true: that is supported for ByteLevel alone");
  if (useRegex !== (cut.type === "Digits")) fail(`pre_tokenizer is ${kinds} with use_regex ${useRegex}`);
  if (cut.type === "Digits") {
    return { pattern: translate((cut.individual_digits ? "\\p{N}" : "\\p{N}+") + AFTER_DIGITS), prefixSpace };
  }
  const { pattern, behavior } = cut;
  const invert = Boolean(cut.invert);
  if (typeof pattern?.Regex !== "string") fail(`pre_tokenizer Split has the pattern ${show(pattern)}; not a Regex`);
  const everyMatch = behavior === "Removed" && invert; // what is not matched would be lost: see bpe.js
  if (behavior !== "Isolated" && !everyMatch) {
    fail(`pre_tokenizer Split has behavior ${show(behavior)} and invert ${invert}; only "Isolated" is supported`);
  }
  return { pattern: translate(pattern.Regex), mustMatch: everyMatch, prefixSpace };
};

const readTemplate = (component, added) => {
  // ByteLevel here only trims offsets.
  const templates = steps(component, "post_processor").filter((step) => step.type !== "ByteLevel");
  const kinds = templates.map((step) => step.type).join(", ");
  if (!["", "TemplateProcessing"].includes(kinds)) fail(`post_processor is ${kinds}; not a TemplateProcessing`);
  const [prefix, suffix] = [[], []];
  let ids = prefix;
  for (const item of templates[0]?.single ?? []) {
    if ("Sequence" in item) ids = suffix;
    else ids.push(...(templates[0].special_tokens?.[item.SpecialToken?.id]?.ids ?? [-1]));
  }
  const unknown = [...prefix, ...suffix].find((id) => !added.has(id));
  if (unknown !== undefined) fail("post_processor TemplateProcessing uses an id that is not an added token");
  return { prefix, suffix };
};

/** A component as the list of its steps: a Sequence is flattened, null is empty. */
const steps = (component, name) => {
  if (component === null || component === undefined) return [];
  if (component.type === "Sequence") {
    const members = component.decoders ?? component.normalizers ?? component.pretokenizers ?? component.processors;
    return Array.isArray(members) ? members.flatMap((member) => steps(member, name)) : [];
  }
  return typeof component.type === "string" ? [component] : fail(`${name} must be an object with a type`);
};

const names = (component, name) => steps(component, name).map((step) => step.type).join(", ");
