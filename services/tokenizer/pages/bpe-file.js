// Reading a tokenizer.json for byte-level BPE. What would change ids in a way that bpe.js does not follow is refused.
import { translate } from "./bpe-pattern.js";

const CONTRACTIONS = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+";
const GPT2 = String.raw`${CONTRACTIONS}| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
// Digits are cut off first, and the text ends before them for the rest of the pattern.
const AFTER_DIGITS = String.raw`${CONTRACTIONS}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+`;
const FLAGS = ["special", "lstrip", "rstrip", "normalized"];
const ID = 2 ** 21;

/** GPT-2's alphabet: the printable character of every byte (bytes_to_unicode in OpenAI's src/encoder.py). */
export const ALPHABET = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(byte));
for (let byte = 0, next = 256; byte < 256; byte++) {
  if (byte <= 0x20 || (byte >= 0x7f && byte <= 0xa0) || byte === 0xad) ALPHABET[byte] = String.fromCharCode(next++);
}
const BYTES = new Int16Array(1 << 16).fill(-1);
ALPHABET.forEach((character, byte) => (BYTES[character.charCodeAt(0)] = byte));

/**
 * @typedef {object} Vocabulary
 * @property {Map<string, number>} ids ordinary tokens by printable form
 * @property {Map<number, Uint8Array>} bytes of ordinary tokens
 * @property {Map<number, number>} merges by left id * 2**21 + right id: rank * 2**21 + id of the result
 * @property {object[]} added with id, content and FLAGS
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
  check(typeof model?.vocab === "object", "model must have a vocab: is this a tokenizer.json?");
  check((model.type ?? "BPE") === "BPE", `model.type is ${model.type}; only byte-level BPE is supported`);
  for (const key of ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"]) {
    check(!model[key], `model.${key} is ${show(model[key])}; only byte-level BPE without it is supported`);
  }
  const [decoder, normalizer] = ["decoder", "normalizer"].map((name) => names(steps(content[name])));
  check(decoder === "ByteLevel", `decoder is ${decoder}; only ByteLevel is supported`);
  check(normalizer === "missing" || normalizer === "NFC", `normalizer is ${normalizer}; only NFC is supported`);
  const all = new Map(Object.entries(model.vocab));
  const added = readAdded(content.added_tokens ?? [], all);
  const pairs = readMerges(model.merges, all);
  const ids = ordinary(all, pairs, added);
  const key = (left, right) => ids.get(left) * ID + ids.get(right);
  return {
    ids, added,
    bytes: new Map([...ids].map(([text, id]) => [id, bytesOf(text)])),
    merges: new Map(pairs.map(([left, right], rank) => [key(left, right), rank * ID + ids.get(left + right)])),
    nfc: normalizer === "NFC",
    ignoreMerges: Boolean(model.ignore_merges),
    ...readPreTokenizer(steps(content.pre_tokenizer)),
    ...readTemplate(steps(content.post_processor), new Set(added.map((token) => token.id))),
  };
};

const fail = (message) => {
  throw new Error(message);
};
const check = (isRight, message) => isRight || fail(message);
const show = (value) => String(JSON.stringify(value)).slice(0, 80);

const readAdded = (entries, ids) => {
  const texts = new Map();
  const use = (id, text) => {
    if (!Number.isInteger(id) || id < 0 || id >= ID - 2) fail(`the id of ${show(text)} is ${show(id)}, no whole number`);
    const other = texts.get(id) ?? text;
    if (other !== text) fail(`the id ${id} is given to both ${show(other)} and ${show(text)}`);
    texts.set(id, text);
  };
  ids.forEach(use);
  check(Array.isArray(entries), "added_tokens must be a list");
  const contents = new Set();
  return entries.map((entry) => {
    const { content, id } = entry ?? {};
    const name = `the added token ${show(content)}`;
    check(typeof content === "string" && content && !contents.has(content), `${name} is empty or given twice`);
    check(!entry.single_word, `${name} is single_word; that is not supported`);
    check((ids.get(content) ?? id) === id, `${name} has another id in the vocabulary`);
    use(id, content);
    contents.add(content);
    return { id, content, ...Object.fromEntries(FLAGS.map((flag) => [flag, Boolean(entry[flag])])) };
  });
};

const readMerges = (merges, ids) => {
  check(Array.isArray(merges) && merges.length < 2 * ID, "model.merges must be a list of up to 4,194,303 pairs");
  return merges.map((merge, rank) => {
    const parts = typeof merge === "string" ? merge.split(" ") : merge;
    const arePair = parts?.length === 2 && parts.every((part) => typeof part === "string" && part);
    if (!arePair) fail(`merge ${rank} must be two tokens, not ${show(merge)}`);
    const missing = [...parts, parts[0] + parts[1]].find((part) => !ids.has(part));
    if (missing !== undefined) fail(`merge ${rank} needs the token ${show(missing)}, which is missing`);
    return parts;
  });
};

/** The tokens that merging may give: all but added ones, unless these are in merges or are bytes of UTF-8. */
const ordinary = (all, pairs, added) => {
  const ids = new Map(all);
  const merged = new Set(pairs.flatMap(([left, right]) => [left, right, left + right]));
  for (const { content } of added) {
    const byte = content.length === 1 ? BYTES[content.charCodeAt(0)] : -1;
    const isByteOfText = byte >= 0 && byte < 0xf5 && byte !== 0xc0 && byte !== 0xc1;
    if (!merged.has(content) && !isByteOfText) ids.delete(content);
    check(!ids.has(content) || /^[!-~]+$/.test(content), `the added token ${show(content)} is spelled like another`);
  }
  return ids;
};

const bytesOf = (text) => {
  const bytes = new Uint8Array(text.length || fail("the vocabulary has an empty token"));
  for (let at = 0; at < text.length; at++) {
    bytes[at] = BYTES[text.charCodeAt(at)];
    if (BYTES[text.charCodeAt(at)] < 0) fail(`${show(text)} is not in the byte-level alphabet: another kind of BPE`);
  }
  return bytes;
};

const readPreTokenizer = (list) => {
  const [kinds, cut, byteLevel] = [names(list), list[0], list.at(-1)];
  const prefixSpace = byteLevel?.add_prefix_space ?? true;
  const useRegex = byteLevel?.use_regex ?? true;
  if (kinds === "ByteLevel") return { pattern: useRegex ? translate(GPT2) : null, prefixSpace };
  const isKnown = ["Split, ByteLevel", "Digits, ByteLevel"].includes(kinds) && useRegex === (cut.type === "Digits");
  check(isKnown && !prefixSpace, `pre_tokenizer is ${kinds} with use_regex ${useRegex} and add_prefix_space ` +
    `${prefixSpace}; only ByteLevel, alone or after one Split or Digits, is supported`);
  if (useRegex) return { pattern: translate(`\\p{N}${cut.individual_digits ? "" : "+"}|${AFTER_DIGITS}`), prefixSpace };
  const { pattern, behavior, invert } = cut;
  const mustMatch = behavior === "Removed" && invert; // what the pattern does not match would be lost
  check(typeof pattern?.Regex === "string" && (behavior === "Isolated" || mustMatch),
    `pre_tokenizer Split has ${show(pattern)} and the behavior ${show(behavior)}; only an isolated Regex is supported`);
  return { pattern: translate(pattern.Regex), mustMatch, prefixSpace };
};

const readTemplate = (list, added) => {
  const templates = list.filter((step) => step.type !== "ByteLevel"); // it only trims offsets
  const kinds = names(templates);
  check(["missing", "TemplateProcessing"].includes(kinds), `post_processor is ${kinds}; not a TemplateProcessing`);
  const [prefix, suffix] = [[], []];
  let ids = prefix;
  for (const item of templates[0]?.single ?? []) {
    if ("Sequence" in item) ids = suffix;
    else ids.push(...(templates[0].special_tokens?.[item.SpecialToken?.id]?.ids ?? [-1]));
  }
  check([...prefix, ...suffix].every((id) => added.has(id)), "post_processor uses an id that is not an added token");
  return { prefix, suffix };
};

/** A component as the list of its steps: a Sequence is flattened, null is empty. */
const steps = (component) => {
  const { type, decoders, normalizers, pretokenizers, processors } = component ?? {};
  if (type === "Sequence") return (decoders ?? normalizers ?? pretokenizers ?? processors ?? []).flatMap(steps);
  return component ? [component] : [];
};

const names = (list) => list.map((step) => step.type).join(", ") || "missing";
