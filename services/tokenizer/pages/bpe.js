// Byte-level BPE in the page: a text to the tokens of a vocabulary that bpe-file.js has read. Without the DOM.
import { ALPHABET, bytesOf } from "./bpe-file.js";
import { nfcWithOrigins } from "./bpe-nfc.js";
import { merge } from "./bpe-merge.js";

/**
 * The tokens of a text, one column each; characters are code points.
 * @typedef {object} Columns
 * @property {Uint32Array} ids
 * @property {Uint32Array} starts the first character that a token covers, wholly or in part
 * @property {Uint32Array} ends the character after the last one that it covers
 * @property {Uint32Array} byteEnds where its bytes end in `bytes`
 * @property {Uint8Array} special 1 for added tokens
 * @property {Uint8Array} bytes those of all tokens, end to end
 */

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
    this.added = new Map(vocabulary.added.map((token) => [token.id, token]));
    this.cache = new Map();
    this.tokenBytes = new Map();
  }

  /**
   * @param {string} text without lone surrogates
   * @param {{special?: boolean, template?: boolean}} options whether special tokens are recognized in the text, and
   *   whether the vocabulary's own are put around it
   * @returns {Columns}
   * @throws {Error} a byte has no token, or the pattern cannot be matched
   */
  encode(text, { special = false, template = false } = {}) {
    const out = { ids: [], starts: [], ends: [], special: [] };
    const { nfc, added } = this.vocabulary;
    const known = added.filter((token) => special || !token.special);
    const passes = [false, true].map((normalized) =>
      new Finder(known.filter((token) => token.normalized === normalized), nfc && normalized));
    for (const [part, token, place] of split(text, nfc ? [passes[0]] : passes)) {
      if (token) this.#addSpecial(out, token.id, place, place + count(part));
      else this.#normalized(out, part, place, nfc ? [passes[1]] : []);
    }
    if (template) this.#wrap(out, count(text));
    return this.#columns(out);
  }

  #normalized(out, text, place, passes) {
    if (!this.vocabulary.nfc) return this.#plain(out, text, place, null);
    const { normalized, origins } = nfcWithOrigins(text, place);
    for (const [part, token, first] of split(normalized, passes)) {
      const own = origins?.slice(first, first + count(part));
      const start = own ? own[0][0] : place + first;
      if (token) this.#addSpecial(out, token.id, start, own ? own.at(-1)[1] : start + count(part));
      else this.#plain(out, part, start, own);
    }
  }

  /** The tokens of plain text. `origins`: for each character, the [start, end) that it came from; null: itself. */
  #plain(out, text, place, origins) {
    let base = place;
    if (this.vocabulary.prefixSpace && !text.startsWith(" ")) {
      text = ` ${text}`;
      if (origins) origins = [origins[0], ...origins];
      else base -= 1; // the space covers the first character too: see below
    }
    const { pattern, mustMatch } = this.vocabulary;
    if (pattern === null) return this.#pretoken(out, text, base, place, origins);
    pattern.lastIndex = 0;
    let end = 0;
    let done = 0;
    const add = (pretoken) => {
      done += this.#pretoken(out, pretoken, base + done, place, origins?.slice(done, done + count(pretoken)));
    };
    for (let found; (found = pattern.exec(text));) {
      if (found[0] === "") throw new Error("the pattern matches the empty string");
      if (found.index > end) add(this.#unmatched(text.slice(end, found.index), mustMatch));
      add(found[0]);
      end = pattern.lastIndex;
    }
    if (end < text.length) add(this.#unmatched(text.slice(end), mustMatch));
  }

  #unmatched(text, mustMatch) {
    if (mustMatch) throw new Error(`the pattern does not match ${JSON.stringify(text.slice(0, 20))}: it would be lost`);
    return text;
  }

  /** Adds the tokens of a pretoken; returns its characters. */
  #pretoken(out, pretoken, base, least, origins) {
    const { ids, starts, ends, length } = this.#tokens(pretoken);
    for (let index = 0; index < ids.length; index++) {
      out.ids.push(ids[index]);
      out.starts.push(origins ? origins[starts[index]][0] : Math.max(least, base + starts[index]));
      out.ends.push(origins ? origins[ends[index] - 1][1] : Math.max(least + 1, base + ends[index]));
      out.special.push(0);
    }
    return length;
  }

  /** The tokens of a pretoken, and their characters within it. */
  #tokens(pretoken) {
    const cached = this.cache.get(pretoken);
    if (cached) return cached;
    const data = utf8.encode(pretoken);
    const ids = this.#merge(data);
    const [starts, ends] = [[], []];
    let [byte, characters] = [0, 0];
    for (const id of ids) {
      // A byte that continues a character belongs to the one before.
      starts.push((data[byte] & 0xc0) === 0x80 ? characters - 1 : characters);
      const end = byte + this.vocabulary.texts.get(id).length;
      for (; byte < end; byte++) characters += (data[byte] & 0xc0) !== 0x80;
      ends.push(characters);
    }
    const tokens = { ids, starts, ends, length: characters };
    if (this.cache.size >= MAX_CACHED) this.cache.clear();
    if (pretoken.length < 100) this.cache.set(pretoken, tokens);
    return tokens;
  }

  #merge(data) {
    const { ids, merges, ignoreMerges } = this.vocabulary;
    if (ignoreMerges) {
      const whole = ids.get(Array.from(data, (byte) => ALPHABET[byte]).join(""));
      if (whole !== undefined) return [whole];
    }
    const bytes = Array.from(data, (byte) => this.byteIds[byte]);
    const missing = bytes.indexOf(undefined);
    if (missing >= 0) throw new Error(`the vocabulary has no token for the byte 0x${data[missing].toString(16)}`);
    return merge(bytes, merges);
  }

  #addSpecial(out, id, start, end) {
    out.ids.push(id);
    out.starts.push(start);
    out.ends.push(end);
    out.special.push(1);
  }

  /** The vocabulary's own ids around a text, unless they are there already. */
  #wrap(out, length) {
    const { prefix, suffix } = this.vocabulary;
    const same = (ids, others) => ids.length === others.length && ids.every((id, index) => id === others[index]);
    const [before, after] = [{ ids: [], starts: [], ends: [], special: [] }, out];
    const hasSuffix = same(out.ids.slice(Math.max(0, out.ids.length - suffix.length)), suffix);
    if (!same(out.ids.slice(0, prefix.length), prefix)) prefix.forEach((id) => this.#addSpecial(before, id, 0, 0));
    if (!hasSuffix) suffix.forEach((id) => this.#addSpecial(after, id, length, length));
    for (const name of Object.keys(out)) out[name] = before[name].concat(out[name]);
  }

  #columns({ ids, starts, ends, special }) {
    const tokens = ids.map((id) => this.#bytesOf(id));
    const byteEnds = new Uint32Array(ids.length);
    let size = 0;
    tokens.forEach((token, index) => (byteEnds[index] = size += token.length));
    const bytes = new Uint8Array(size);
    tokens.forEach((token, index) => bytes.set(token, byteEnds[index] - token.length));
    return {
      ids: Uint32Array.from(ids), starts: Uint32Array.from(starts), ends: Uint32Array.from(ends), byteEnds,
      special: Uint8Array.from(special), bytes,
    };
  }

  #bytesOf(id) {
    let bytes = this.tokenBytes.get(id);
    if (!bytes) {
      const added = this.added.get(id);
      bytes = added ? utf8.encode(added.content) : bytesOf(this.vocabulary.texts.get(id));
      this.tokenBytes.set(id, bytes);
    }
    return bytes;
  }
}

/** Code points of a text. */
const count = (text) => {
  let units = text.length;
  for (let index = 0; index < text.length; index++) units -= (text.charCodeAt(index) & 0xfc00) === 0xdc00;
  return units;
};

/** Finds added tokens: the leftmost, and of those that begin at one place the longest. */
class Finder {
  constructor(tokens, nfc) {
    this.tokens = new Map(tokens.map((token) => [nfc ? token.content.normalize("NFC") : token.content, token]));
    const contents = [...this.tokens.keys()].sort((one, other) => other.length - one.length);
    const escaped = contents.map((content) => content.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
    this.pattern = contents.length ? new RegExp(escaped.join("|"), "gu") : null;
  }

  /** [token, start, end] of each, the white space that it strips included. */
  *find(text) {
    let start = 0;
    if (!this.pattern) return;
    for (const found of text.matchAll(this.pattern)) {
      const token = this.tokens.get(found[0]);
      let [first, last] = [found.index, found.index + found[0].length];
      if (token.lstrip && first > start) first -= SPACES_AT_END.exec(text.slice(start, first))?.[0].length ?? 0;
      if (token.rstrip) last += SPACES.exec(text.slice(last))?.[0].length ?? 0;
      yield [token, first, last];
      start = last;
    }
  }
}

/** The parts of a text in order, as [part, added token or null, number of its first character]; none is empty. */
function* split(text, passes) {
  let [unit, place] = [0, 0];
  for (const [start, end, token] of segments(text, 0, passes)) {
    place += count(text.slice(unit, start));
    unit = start;
    yield [text.slice(start, end), token, place];
  }
}

/** The same, as [start, end, token] in UTF-16 units; they overlap where a token strips what the next begins with. */
function* segments(text, base, passes) {
  let end = 0;
  const [finder, ...others] = passes;
  if (!finder) {
    if (text) yield [base, base + text.length, null];
    return;
  }
  for (const [token, first, last] of finder.find(text)) {
    yield* segments(text.slice(end, first), base + end, others);
    yield [base + first, base + last, token];
    end = last;
  }
  yield* segments(text.slice(end), base + end, others);
}
