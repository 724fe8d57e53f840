// What is known of one token: its bytes and offsets, and the merges that make it.
import { element, grouped } from "./dom.js";
import { latest } from "./latest.js";
import { explain, request } from "./service.js";
import { fromBase64, hex, isText, shown } from "./spelling.js";

const NODES = 200; // of a tree at once
const DEEPEST = 12; // steps by which a node is moved to the right

/** Shows tokens in a panel. */
export class TokenPanel {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
    this.status = element("p", { role: "status" });
    this.details = element("div");
    this.load = latest((signal) => this.fetch(signal), (sentence) => (this.status.textContent = sentence));
  }

  /**
   * Show a token of the served vocabulary.
   * @param {object} token with an `id`; with its place in the text, where it has one: see `Pieces.token`
   */
  show(token) {
    this.token = token;
    if (token.bytes) {
      this.details.replaceChildren();
      this.draw(token);
    }
    this.load();
  }

  /** The text has changed: the token shown is no longer at its place. */
  forgetPlace() {
    if (this.shown?.index === undefined) return;
    if (this.token) this.token = { ...this.token, index: undefined };
    this.draw({ ...this.shown, index: undefined });
  }

  /** Show a token of another vocabulary, of which the service knows nothing. */
  showOther(token) {
    this.token = null;
    this.draw(token);
    this.details.replaceChildren(element("p", { class: "soft" }, "A token of the other tokenizer."));
  }

  draw(token) {
    this.shown = token;
    const { id, bytes, characters, offsets, index, special } = token;
    const place = index === undefined ? [] : [
      ["Token", `${grouped(index + 1)} of the text`], ["Characters", characters], ["Bytes", offsets],
    ];
    const rows = [["Id", id], ["Its bytes", hex(bytes)], ...place];
    if (special) rows.push(["Kind", "added token"]);
    const title = element("h3", { tabindex: -1 }, "Token");
    const hadFocus = this.host.contains(document.activeElement);
    this.host.replaceChildren(title, element("div", { class: "shown text" }, shown(bytes, { most: 1000 })),
      element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
      ...(isText(bytes) ? [] : [element("p", {}, "Not text by itself: bytes of a part of a character.")]),
      this.details, this.status);
    if (hadFocus) title.focus();
  }

  async fetch(signal) {
    if (!this.token) return;
    const { id } = this.token;
    const ask = async (first) =>
      (await request("vocabulary/token", { json: { id, first, limit: NODES }, signal })).json();
    const answer = await ask(0);
    if (signal.aborted || this.token?.id !== id) return;
    const bytes = fromBase64(answer.bytes);
    this.draw({ ...answer, ...this.token, bytes });
    const list = element("ol", { class: "tree" });
    const more = element("button", { type: "button", click: async () => {
      more.disabled = true;
      extend(await ask(more.next).catch((error) => {
        if (!signal.aborted) this.status.textContent = explain(error);
        return { tree: [], next: more.next };
      }));
    } }, "More of the tree");
    const extend = ({ tree, next }) => {
      list.append(...tree.map((node) => this.node(node, bytes)));
      Object.assign(more, { next, hidden: next === null, disabled: false });
    };
    extend(answer);
    this.details.replaceChildren(...explanations(answer).map((sentence) => element("p", {}, sentence)),
      ...(answer.total ? [element("h3", {}, "Merges, from the token down to its bytes"), list, more] : []));
  }

  node({ depth, id, start, end, rank }, bytes) {
    const name = element("span", { class: "mono text" }, shown(bytes.subarray(start, end), { most: 30 }));
    const open = () => this.show({ id });
    const link = id === null ? name : element("button", { type: "button", class: "link", click: open }, name);
    const made = rank === null ? "a byte" : `merge ${grouped(rank)}`;
    const kind = id === null ? "no token has this byte" : `${id}, ${made}`;
    const item = element("li", {},
      element("span", { class: "visually-hidden" }, `level ${depth + 1} `), link, " ",
      element("span", { class: "soft" }, kind, depth > DEEPEST ? `, level ${depth + 1}` : ""));
    item.style.marginLeft = `${Math.min(depth, DEEPEST) * 0.7}rem`;
    return item;
  }
}

/** What is special about a token, in sentences. */
const explanations = ({ id, special, merged, encoded, encoded_count: count }) => {
  const itself = encoded?.length === 1 && encoded[0] === id;
  const ids = encoded && `${encoded.slice(0, 20).join(", ")}${count > 20 ? ` … (${grouped(count)} tokens)` : ""}`;
  const sentences = [];
  if (special) sentences.push("It is found in the text as a whole; no merge makes it.");
  else if (!merged) sentences.push("No merge reaches it: merging its bytes gives the tokens below.");
  if (encoded && !itself) sentences.push(`As plain text it is encoded to: ${ids}.`);
  else if (itself && !merged && !special) sentences.push("It is used where a whole pretoken is spelled like it.");
  return sentences;
};
