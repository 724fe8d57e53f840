// Texts of several lines.
import { symbolOf } from "./dom.js";

/**
 * A text for reading: as `visible`, but blanks and newlines stay.
 * @param {string} text
 * @returns {string}
 */
export const readable = (text) =>
  Array.from(text, (character) => " \n".includes(character) ? character : symbolOf(character) ?? character).join("");
