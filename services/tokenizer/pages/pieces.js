// The tokens of a text: their counts, and a window of them as pieces, as a table or as ids. A long text has a million
// tokens, so only those of the window are elements.
import { copy, element, grouped } from "./dom.js";
import { hex, shown } from "./spelling.js";

const WINDOW = { pieces: 500, ids: 500, table: 200 }; // tokens
const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const none = { ids: [], starts: [], ends: [], byteEnds: [], special: [], bytes: [] };

/**
 * The tokens of a text, one column each; characters are code points.
 * @typedef {object} Columns
 * @property {Uint32Array} ids
 * @property {Uint32Array} starts the first character that a token covers, wholly or in part
 * @property {Uint32Array} ends the character after the last one that it covers
 * @property {Uint32Array} byteEnds where its bytes end in `bytes`
 * @property {Uint8Array} special 1 for added tokens
 * @property {Uint8Array} bytes those of all tokens, end to end
 * @property {boolean} [ofText] whether characters are those of the text, also where it is changed before it is split
 */

/**
 * The columns of a raw answer of /encode with `return_pieces`.
 * @param {ArrayBuffer} content
 * @param {number} count
 * @returns {Columns}
 */
export const readColumns = (content, count) => {
  const column = (number) => new Uint32Array(content, 4 * count * number, count);
  const [ids, starts, ends, byteEnds] = [0, 1, 2, 3].map(column);
  return {
    ids, starts, ends, byteEnds, ofText: true,
    special: new Uint8Array(content, 16 * count, count), bytes: new Uint8Array(content, 17 * count),
  };
};

/** A view of the tokens of one text. */
export class Pieces {
  /**
   * @param {HTMLElement} host where to show them
   * @param {string} name for screen readers
   * @param {(token: object) => void} onSelect gets a token that was pointed at or reached by keyboard, see `token`
   */
  constructor(host, name, onSelect) {
    Object.assign(this, { onSelect, columns: none, first: 0, view: "pieces", white: true });
    this.counts = element("div", { class: "counts", role: "status" });
    this.goTo = element("input", {
      type: "number", min: 1, placeholder: "token", "aria-label": `Go to token, ${name}`,
      change: () => this.reach(this.goTo.value - 1),
    });
    const step = (text, windows) =>
      element("button", { type: "button", click: () => this.move(this.first + windows * WINDOW[this.view]) }, text);
    this.range = element("span");
    this.window = element("div", { class: "row window", hidden: true },
      step("Previous", -1), this.range, step("Next", 1), this.goTo);
    this.body = element("div", { class: "card", hidden: true });
    this.name = name;
    this.note = element("p", { class: "soft", hidden: true }, "The text is changed before it is split, by a normalizer or a " +
      "space before it: the bytes of its tokens have no place in it.");
    host.replaceChildren(this.counts, this.note, this.window, this.body);
  }

  /**
   * @param {Columns} columns
   * @param {{characters: number, utf8: Uint8Array}} text
   */
  show(columns, { characters, utf8 }) {
    this.columns = columns;
    // Tokens around the text cover no character; the bytes of the others are those of the text, if it was not changed.
    const { starts, ends, byteEnds } = columns;
    const covers = (index) => starts[index] < ends[index];
    this.shift = byteEnds[starts.findIndex((_, index) => covers(index)) - 1] ?? 0;
    const end = byteEnds[starts.findLastIndex((_, index) => covers(index))] ?? this.shift;
    this.isExact = end - this.shift === utf8.length && utf8.every((byte, at) => byte === columns.bytes[this.shift + at]);
    this.note.hidden = this.isExact;
    const tokens = columns.ids.length;
    const ratio = (value) => (tokens ? (value / tokens).toFixed(2) : "–");
    const count = (value, text) => element("span", {}, element("b", {}, value), ` ${text}`);
    this.counts.replaceChildren(
      count(grouped(tokens), tokens === 1 ? "token" : "tokens"), count(grouped(characters), "characters"),
      count(grouped(utf8.length), "bytes"), count(ratio(utf8.length), "bytes per token"));
    this.move(this.first);
  }

  clear() {
    this.columns = none;
    this.counts.replaceChildren();
    this.note.hidden = true;
    this.draw();
  }

  /** @param {"pieces"|"table"|"ids"} view @param {boolean} white whether white space is shown by symbols */
  restyle(view, white) {
    Object.assign(this, { view, white });
    this.move(this.first);
  }

  /** Show the window that begins at this token, or the one that has it. */
  move(index) {
    const last = Math.max(0, this.columns.ids.length - 1);
    const size = WINDOW[this.view];
    this.first = Math.floor(Math.min(Math.max(0, index || 0), last) / size) * size;
    this.draw();
  }

  /** Show a window, and focus the token, where it is a piece. */
  reach(index) {
    this.move(index);
    this.body.querySelector(".pieces")?.children[index - this.first]?.focus();
  }

  /** A token of the text. */
  token(index) {
    const { ids, starts, ends, byteEnds, special, bytes } = this.columns;
    const start = index ? byteEnds[index - 1] : 0;
    const covers = starts[index] < ends[index];
    const range = (isKnown, from, to) => (covers && isKnown ? `${from}–${to}` : "–");
    return {
      index, id: ids[index], special: special[index] === 1, bytes: bytes.subarray(start, byteEnds[index]),
      characters: range(this.isExact || this.columns.ofText, starts[index], ends[index]),
      offsets: range(this.isExact, start - this.shift, byteEnds[index] - this.shift),
    };
  }

  draw() {
    const { length } = this.columns.ids;
    const last = Math.min(this.first + WINDOW[this.view], length);
    this.window.hidden = last - this.first === length;
    this.range.textContent = `tokens ${grouped(this.first + 1)} to ${grouped(last)} of ${grouped(length)}`;
    this.goTo.max = length;
    const tokens = Array.from({ length: last - this.first }, (_, offset) => this.token(this.first + offset));
    this.body.hidden = !length;
    this.body.replaceChildren(this[this.view](tokens));
  }

  pieces(tokens) {
    const piece = (token, offset) => element("span", {
      role: "option", class: token.special ? "piece text special" : "piece text", title: `id ${token.id}`,
      tabindex: offset ? -1 : 0, "aria-selected": "false",
    }, shown(token.bytes, { white: this.white }));
    let again = false;
    return element("div", {
      role: "listbox", "aria-label": this.name, "aria-orientation": "horizontal", class: "pieces",
      // A press moves the focus, which selects. One that was selected is shown again: the panel may have moved on.
      mousedown: (event) => (again = event.target.ariaSelected === "true"),
      click: (event) => (again || !event.detail) && event.target.role === "option" && this.select(event.target),
      focusin: (event) => event.target.role === "option" && this.select(event.target),
      keydown: (event) => this.key(event),
    }, ...tokens.map(piece));
  }

  select(option) {
    const list = option.parentElement;
    list.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    list.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    option.setAttribute("aria-selected", "true");
    option.setAttribute("tabindex", "0");
    this.onSelect(this.token(this.first + Array.prototype.indexOf.call(list.children, option)));
  }

  key(event) {
    const options = event.currentTarget.children;
    const at = Array.prototype.indexOf.call(options, event.target);
    const next = { Home: 0, End: options.length - 1 }[event.key] ?? at + (MOVES[event.key] ?? 0);
    const isPage = event.key === "PageDown" || event.key === "PageUp";
    if (at < 0 || (next === at && !isPage)) return;
    event.preventDefault();
    if (options[next] && !isPage) return options[next].focus();
    const windows = next >= options.length || event.key === "PageDown" ? 1 : -1;
    const first = this.first + windows * WINDOW.pieces;
    if (first < 0 || first >= this.columns.ids.length) return;
    this.move(first);
    this.body.firstChild[isPage || windows === 1 ? "firstChild" : "lastChild"].focus();
  }

  table(tokens) {
    const head = ["#", "id", "text", "bytes", "characters", "bytes of the text"];
    const row = (token) => element("tr", {}, ...[
      token.index + 1,
      element("button", { type: "button", class: "link", click: () => this.onSelect(token) }, token.id),
      element("span", { class: "mono text" }, shown(token.bytes, { white: this.white })), hex(token.bytes, 16),
      token.characters, token.offsets,
    ].map((cell, column) => element("td", { class: column < 2 ? "number" : "" }, cell)));
    return element("div", { class: "wide", tabindex: 0, role: "group", "aria-label": this.name }, element("table", {},
      element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...tokens.map(row))));
  }

  ids(tokens) {
    const copyAll = () => copy(button, `[${this.columns.ids.join(", ")}]`);
    const button = element("button", { type: "button", click: copyAll }, "Copy all ids");
    return element("div", {}, element("p", { class: "mono text" }, tokens.map((token) => token.id).join(", ")), button);
  }
}
