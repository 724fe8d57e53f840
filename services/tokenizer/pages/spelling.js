// How the bytes of tokens are shown.
import { grouped, symbolOf } from "./dom.js";

const LONGEST = 80; // characters of a token in a line
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes in hexadecimal, the first of many. @param {Uint8Array} bytes @param {number} most */
export const hex = (bytes, most = 64) => {
  const digits = Array.from(bytes.subarray(0, most), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return bytes.length > most ? `${digits} … (${grouped(bytes.length)} bytes)` : digits;
};

/** Bytes from base64. @param {string} text @returns {Uint8Array} */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** Whether bytes are UTF-8, so that they are characters and not parts of some. @param {Uint8Array} bytes */
export const isText = (bytes) => decode(bytes) !== null;

const decode = (bytes) => {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
};

/** Characters, and parts of characters as ⟨e280⟩. */
const spell = (bytes) => {
  const parts = [];
  for (let at = 0; at < bytes.length;) {
    const size = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    const character = decode(bytes.subarray(at, at + size));
    parts.push(character ?? `⟨${hex(bytes.subarray(at, at + 1))}⟩`);
    at += character === null ? 1 : size;
  }
  return parts.join("").replaceAll("⟩⟨", "");
};

/**
 * The bytes of a token as a person can read them: nothing in it is invisible or moves other text.
 * @param {Uint8Array} bytes
 * @param {{white?: boolean, most?: number}} options whether white space is shown by symbols, and the most characters
 * @returns {string}
 */
export const shown = (bytes, { white = true, most = LONGEST } = {}) => {
  const head = bytes.subarray(0, 4 * most); // no character has more bytes; what is cut off is beyond `most`
  const text = decode(head) ?? spell(head);
  const characters = Array.from(text, (one) => {
    if (one === "\n") return white ? "⏎\n" : one;
    if (!white && (one === " " || one === "\t")) return one;
    return symbolOf(one) ?? one;
  });
  const start = /^\p{M}/u.test(text) ? "◌" : ""; // a mark would be drawn over the token before
  if (characters.length <= most && head.length === bytes.length) return start + characters.join("");
  return `${start}${characters.slice(0, most).join("")}… (${grouped(bytes.length)} bytes)`;
};
