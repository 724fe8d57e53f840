// Ids to text.
import { byId, debounce, visible } from "./dom.js";
import { latest } from "./latest.js";
import { request } from "./service.js";
import { shown } from "./spelling.js";

const SHOWN = 100_000; // characters

/** Ids from a text such as `[72, 105]` or `72 105`. @throws {Error} names what is not an id, and its place */
const readIds = (text) => (text.match(/[^\s,;[\]]+/g) ?? []).map((item, index) => {
  if (/^\d+$/.test(item) && Number.isSafeInteger(Number(item))) return Number(item);
  throw new Error(`Item ${index + 1}, ${JSON.stringify(visible(item.slice(0, 40)))}, is not an id.`);
});

/** @param {() => void} onChange is called for other ids */
export const startDecoding = (onChange) => {
  const [field, status, output] = ["ids", "decode-status", "decoded"].map(byId);

  const decode = latest(async (signal) => {
    const say = (sentence) => (status.textContent = sentence);
    let tokens;
    output.hidden = true;
    say("");
    try {
      tokens = readIds(field.value);
    } catch (error) {
      return say(error.message);
    }
    if (!tokens.length) return;
    const { text } = await (await request("decode", { json: { tokens }, signal })).json();
    if (signal.aborted) return;
    if (text.includes("\ufffd")) say("U+FFFD stands where the bytes are not UTF-8, such as a part of a character.");
    output.textContent = shown(new TextEncoder().encode(text), { most: SHOWN });
    output.hidden = false;
  }, (sentence) => sentence && (status.textContent = sentence));

  const later = debounce(decode, 150);
  field.addEventListener("input", () => {
    onChange();
    later();
  });
  return decode;
};
