// Tokens as they are shown: bytes become characters, and what is no whole character is shown as bytes.
import { element, symbolOf } from "./dom.js";

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/**
 * How many bytes the character at `start` has: 0 where none begins there, -1 where the bytes end within it.
 * Which bytes may follow each other: the Unicode Standard, table 3-7.
 */
const characterLength = (bytes, start) => {
  const first = bytes[start];
  if (first < 0x80) return 1;
  const length = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  for (let offset = 1; offset < length; offset++) {
    if (start + offset >= bytes.length) return -1;
    const byte = bytes[start + offset];
    const low = offset > 1 ? 0x80 : { 0xe0: 0xa0, 0xf0: 0x90 }[first] ?? 0x80;
    const high = offset > 1 ? 0xbf : { 0xed: 0x9f, 0xf4: 0x8f }[first] ?? 0xbf;
    if (byte < low || byte > high) return 0;
  }
  return length;
};

/** Splits the tokens of a text into characters and bytes, one token after another. */
export class CharacterAssembler {
  #held = []; // bytes of a character that is not whole yet
  #owners = 0; // and of how many tokens they are

  /**
   * @param {number[]} bytes of the next token
   * @returns {{pieces: {text?: string, bytes?: number[]}[], completed: number}} `completed`: so many tokens before this
   *   one have bytes of its first character
   */
  add(bytes) {
    const all = [...this.#held, ...bytes];
    let start = 0;
    let completed = 0;
    if (this.#held.length) {
      const length = characterLength(all, 0);
      if (length > 0) completed = this.#owners;
      else if (length === 0) start = this.#held.length; // they belong to no character, and are shown as bytes already
      else return this.#hold(all, bytes);
    }
    this.#held = [];
    this.#owners = 0;
    const pieces = [];
    while (start < all.length) {
      const length = characterLength(all, start);
      if (length < 0) this.#hold(all.slice(start), []);
      const end = length < 0 ? all.length : start + (length || 1);
      const kind = length > 0 ? "text" : "bytes";
      if (!pieces.at(-1)?.[kind]) pieces.push({ [kind]: [] });
      pieces.at(-1)[kind].push(...all.slice(start, end));
      start = end;
    }
    return { pieces: pieces.map((piece) => (piece.text ? { text: decode(piece.text) } : piece)), completed };
  }

  #hold(held, shown) {
    this.#held = held;
    this.#owners += 1;
    return { pieces: shown.length ? [{ bytes: shown }] : [], completed: 0 };
  }
}

/** @param {number[]} bytes */
export const decode = (bytes) => decoder.decode(Uint8Array.from(bytes));

/** @param {number[]} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");

/**
 * Texts, and elements for what cannot be seen or would change the layout of what follows.
 * @param {{text?: string, bytes?: number[]}} piece
 */
export const nodesOf = ({ text, bytes }) => {
  if (bytes) return [element("i", { class: "bytes" }, hex(bytes))];
  const nodes = [];
  for (const character of text) {
    const symbol = character === " " ? null : symbolOf(character);
    const name = { "\n": "nl", "\t": "tab" }[character];
    if (symbol) nodes.push(element("i", { class: name ?? "mark" }, name ? character : symbol));
    else if (typeof nodes.at(-1) === "string") nodes.push(nodes.pop() + character);
    else nodes.push(character);
  }
  return nodes;
};

/** @param {number} logprob */
export const percent = (logprob) => {
  const value = 100 * Math.exp(logprob);
  if (value >= 10) return `${value.toFixed(0)} %`;
  if (value >= 0.1) return `${value.toFixed(1)} %`;
  return value >= 0.001 ? `${value.toFixed(3)} %` : "< 0.001 %";
};

/** The class of a token's color. @param {number|null} logprob */
export const colorOf = (logprob) =>
  logprob === null ? "" : `p${[0.5, 0.2, 0.05, 0.01].findLastIndex((bound) => Math.exp(logprob) < bound) + 1}`;
