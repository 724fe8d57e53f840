// Elements without markup: every text becomes a text node, so that no data can become part of the page's structure.

/**
 * An element. Functions among the attributes are listeners; `true` is an attribute without a value; `false`, `null` and
 * `undefined` are left out.
 * @param {string} tag @param {Object<string, unknown>} [attributes] @param {...(Node|string|number|null)} children
 * @returns {HTMLElement}
 */
export const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** Set the attributes of an element, and add children. */
export const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

/** The element with this id. @param {string} id @returns {HTMLElement} */
export const byId = (id) => document.getElementById(id);

/** A number with separators. @param {number} value */
export const grouped = (value) => value.toLocaleString("en-US");

const NAMES = new Map([["\n", "⏎"], ["\t", "⇥"], ["\r", "␍"], [" ", "·"], ["\u00a0", "⍽"]]);
const UNSEEN = /[\s\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0]/u;

/** The symbol or code of a character that cannot be seen, or that moves others; null for one that can. */
export const symbolOf = (character) => {
  if (!UNSEEN.test(character)) return null;
  const code = character.codePointAt(0);
  if (NAMES.has(character)) return NAMES.get(character);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
};

/** A text with everything that cannot be seen, except what is `kept`, as symbols. @param {string} text @returns {string} */
export const visible = (text, kept = "") =>
  Array.from(text, (character) => kept.includes(character) ? character : symbolOf(character) ?? character).join("");

/** The same for reading: blanks and newlines stay. @param {string} text @returns {string} */
export const readable = (text) => visible(text, " \n");

/** Run `action` once for many calls: `wait` milliseconds after the last one. */
export const debounce = (action, wait) => {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, wait);
  };
};

/** Copy a text, and say so in the button that was pressed. @param {HTMLElement} button @param {string} text */
export const copy = async (button, text) => {
  const label = (button.dataset.label ??= button.textContent);
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false) ?? copySelected(text);
  button.textContent = isCopied ? "Copied" : "The browser does not allow it";
  button.focus();
  setTimeout(() => (button.textContent = label), 1500);
};

/** Without HTTPS, browsers copy only what is selected. */
const copySelected = (text) => {
  const area = element("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  return isCopied;
};
