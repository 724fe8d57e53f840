// Byte-level BPE: a text to the tokens of a vocabulary that bpe-file.js has read.
import { ALPHABET } from "./bpe-file.js";
import { merge } from "./bpe-merge.js";

const SPACES = /^\p{White_Space}+/u;
const SPACES_AT_END = /\p{White_Space}+$/u;
const MAX_CACHED = 1 << 17; // pretokens
const utf8 = new TextEncoder();

/** Encodes texts with one vocabulary. */
export class Encoder {
  /** @param {import("./bpe-file.js").Vocabulary} vocabulary */
  constructor(vocabulary) {
    this.vocabulary = vocabulary;
    this.byteIds = ALPHABET.map((character) => vocabulary.ids.get(character));
    this.added = new Map(vocabulary.added.map((token) => [token.id, utf8.encode(token.content)]));
    this.cache = new Map();
  }

  /**
   * @param {string} text without lone surrogates
   * @param {{special?: boolean, template?: boolean}} options whether special tokens are recognized in the text, and
   *   whether the vocabulary's own are put around it
   * @returns {object} the columns of pieces.js; characters are those of the text as it is encoded
   * @throws {Error} a byte has no token, or the pattern cannot be matched
   */
  encode(text, { special = false, template = false } = {}) {
    const { nfc, added, prefix, suffix } = this.vocabulary;
    const known = added.filter((token) => special || !token.special);
    const verbatim = new Finder(known.filter((token) => !token.normalized), (content) => content);
    const normalize = (part) => (nfc ? part.normalize("NFC") : part);
    const normalized = new Finder(known.filter((token) => token.normalized), normalize);
    const out = []; // ids; of added tokens ~id
    for (const [part, token] of verbatim.split(text)) {
      for (const [plain, other] of token ? [["", token]] : normalized.split(normalize(part))) {
        if (other) out.push(~other.id);
        else this.#plain(plain, out);
      }
    }
    const isThere = (ids, at) => ids.every((id, index) => id === Math.max(out[at + index], ~out[at + index]));
    const [before, after] = [isThere(prefix, 0), isThere(suffix, Math.max(0, out.length - suffix.length))];
    if (template && !before) out.unshift(...prefix.map((id) => ~id));
    if (template && !after) out.push(...suffix.map((id) => ~id));
    return this.#columns(out);
  }

  #plain(text, out) {
    const { pattern, mustMatch, prefixSpace } = this.vocabulary;
    if (prefixSpace && !text.startsWith(" ")) text = ` ${text}`;
    const between = (start, end) => {
      if (start === end) return;
      if (mustMatch) throw new Error(`the pattern does not match ${JSON.stringify(text.slice(start, end).slice(0, 20))}`);
      this.#pretoken(text.slice(start, end), out);
    };
    let end = 0;
    for (const { 0: found, index } of pattern ? text.matchAll(pattern) : []) {
      if (found === "") throw new Error("the pattern matches the empty string");
      between(end, index);
      this.#pretoken(found, out);
      end = index + found.length;
    }
    between(end, text.length);
  }

  #pretoken(text, out) {
    let ids = this.cache.get(text);
    if (!ids) {
      ids = this.#merge(utf8.encode(text));
      if (this.cache.size >= MAX_CACHED) this.cache.clear();
      if (text.length < 100) this.cache.set(text, ids);
    }
    for (const id of ids) out.push(id);
  }

  #merge(data) {
    const { ids, merges, ignoreMerges } = this.vocabulary;
    const whole = ignoreMerges ? ids.get(Array.from(data, (byte) => ALPHABET[byte]).join("")) : undefined;
    if (whole !== undefined) return [whole];
    const bytes = Array.from(data, (byte) => this.byteIds[byte]);
    const missing = bytes.indexOf(undefined);
    if (missing >= 0) throw new Error(`the vocabulary has no token for the byte 0x${data[missing].toString(16)}`);
    return merge(bytes, merges);
  }

  #columns(out) {
    const tokens = out.map((id) => (id < 0 ? this.added.get(~id) : this.vocabulary.bytes.get(id)));
    const [starts, ends, byteEnds] = [0, 1, 2].map(() => new Uint32Array(out.length));
    let [size, characters] = [0, 0];
    tokens.forEach((token, index) => {
      const continues = (byte) => (byte & 0xc0) === 0x80; // a character that began before
      starts[index] = characters - continues(token[0]);
      for (const byte of token) characters += !continues(byte);
      ends[index] = characters;
      byteEnds[index] = size += token.length;
    });
    const bytes = new Uint8Array(size);
    tokens.forEach((token, index) => bytes.set(token, byteEnds[index] - token.length));
    const ids = Uint32Array.from(out, (id) => Math.max(id, ~id));
    return { ids, starts, ends, byteEnds, special: Uint8Array.from(out, (id) => id < 0), bytes };
  }
}

/** Finds added tokens: the leftmost, and of those that begin at one place the longest. */
class Finder {
  constructor(tokens, spell) {
    this.tokens = new Map(tokens.map((token) => [spell(token.content), token]));
    const contents = [...this.tokens.keys()].sort((one, other) => other.length - one.length);
    const escaped = contents.map((content) => content.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
    this.pattern = new RegExp(escaped.join("|") || "(?!)", "gu");
  }

  /** The parts of a text in order, as [part, added token or undefined]; no plain part is empty. */
  *split(text) {
    let end = 0;
    for (const { 0: content, index } of text.matchAll(this.pattern)) {
      const token = this.tokens.get(content);
      let [first, last] = [index, index + content.length];
      if (token.lstrip && first > end) first -= SPACES_AT_END.exec(text.slice(end, first))?.[0].length ?? 0;
      if (token.rstrip) last += SPACES.exec(text.slice(last))?.[0].length ?? 0;
      if (first > end) yield [text.slice(end, first)];
      yield [content, token];
      end = last;
    }
    if (end < text.length) yield [text.slice(end)];
  }
}
