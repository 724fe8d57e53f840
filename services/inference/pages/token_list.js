// The tokens of an answer: drawn as they come, and pointed at by the mouse or the arrow keys.
import { bytesOf } from "./answer.js";
import { copy, element, visible } from "./dom.js";
import { CharacterAssembler, colorOf, decode, nodesOf } from "./tokens.js";

const KINDS = ["curl", "Python", "OpenAI client"]; // of programs that are copied
const STATES = { running: "generating", failed: "not finished", length: "ended at max tokens" };

export class TokenList {
  /**
   * @param {import("./answer.js").Answer} answer
   * @param {string} title
   * @param {Set<number>} special the ids of special tokens
   * @param {object} actions what it asks of the page: `point(list, index, isPinned)`, `choose()`
   */
  constructor(answer, title, special, actions) {
    Object.assign(this, { answer, title, special, selected: -1 });
    const point = (target, isPinned) => {
      const span = target.closest(".t");
      if (span) actions.point(this, span.index, isPinned);
    };
    this.tokens = element("div", {
      class: "tokens", role: "listbox", tabindex: 0, "aria-label": `Tokens of ${title}`,
      keydown: (event) => this.#key(event, actions),
      click: ({ target }) => point(target, true),
      pointerover: ({ target }) => point(target, false),
      focus: () => this.selected < 0 && this.spans.length && actions.point(this, 0, true),
    });
    this.facts = element("p", { class: "soft" });
    this.#reset();
  }

  /** The text without special tokens. */
  get text() {
    return decode(this.answer.ids.flatMap((id) => (this.special.has(id) ? [] : bytesOf(id))));
  }

  /** A button that copies what `text()` gives. @param {string} label @param {() => string|Promise<string>} text */
  copier(label, text) {
    const click = async ({ currentTarget }) => copy(currentTarget, await text());
    return button(label, click, `Copy ${this.title} ${label}`);
  }

  /** Buttons that copy the answer's request. @param {(snippets: object, kind: string) => string} program */
  copiers(program) {
    const snippets = () => import("./snippets.js");
    return element("span", { class: "row", pointerover: snippets, focusin: snippets },
      ...KINDS.map((kind) => this.copier(`as ${kind}`, async () => program(await snippets(), kind))));
  }

  /** Whether the end is in view, so that it stays there while tokens come. */
  measure() {
    const { scrollHeight, scrollTop, clientHeight } = this.tokens;
    this.isAtEnd = this.selected < 0 && scrollHeight - scrollTop - clientHeight < 40;
  }

  /** Scroll to the end if it was in view. */
  follow() {
    if (this.isAtEnd) this.tokens.scrollTop = 1e9;
  }

  /** Draw what is new. */
  draw() {
    const { answer } = this;
    if (answer.isRedrawn) this.#reset();
    answer.isRedrawn = answer.isChanged = false;
    for (const token of answer.tokens.slice(this.spans.length)) this.#append(token, this.spans.length);
    this.tokens.setAttribute("aria-busy", ["waiting", "running"].includes(answer.state));
    this.facts.textContent = this.#facts();
  }

  /** Mark a token as the selected one, or none by -1. @param {number} index */
  select(index) {
    const before = this.spans[this.selected];
    before?.removeAttribute("id");
    before?.setAttribute("aria-selected", "false");
    this.selected = index;
    const span = this.spans[index];
    if (!span) return this.tokens.removeAttribute("aria-activedescendant");
    span.id = "selected-token";
    span.setAttribute("aria-selected", "true");
    this.tokens.setAttribute("aria-activedescendant", span.id);
    span.scrollIntoView({ block: "nearest" });
  }

  #reset() {
    this.spans = [];
    this.assembler = new CharacterAssembler();
    this.tokens.replaceChildren();
    this.line = null;
  }

  #append({ id, logprob }, index) {
    const span = element("span", { role: "option", "aria-selected": "false", class: `t ${colorOf(logprob)}` });
    span.index = index;
    const bytes = bytesOf(id);
    if (this.special.has(id)) {
      span.classList.add("special");
      span.append(...nodesOf({ text: decode(bytes) }));
      this.assembler = new CharacterAssembler();
    } else {
      const { pieces, completed } = this.assembler.add(bytes);
      for (let back = 1; back <= completed; back++) this.#shorten(this.spans[index - back], back === completed);
      span.append(...pieces.flatMap(nodesOf));
    }
    if (!span.textContent.trim()) span.setAttribute("aria-label", `white space ${visible(span.textContent)}`);
    if (this.line === null) this.#newLine();
    this.line.append(span);
    this.spans.push(span);
    if (span.textContent.endsWith("\n")) this.line = null;
  }

  /** A token whose bytes are shown within the character of a later one keeps its place, and a mark. */
  #shorten(span, isFirst) {
    if (isFirst && span.childNodes.length > 1) span.lastChild.remove(); // it has whole characters before
    else {
      span.replaceChildren();
      span.setAttribute("aria-label", "part of the next character");
    }
    span.classList.add("part");
  }

  #newLine() {
    this.line = element("div", { class: "line", role: "presentation", dir: "auto" });
    this.tokens.append(this.line);
  }

  #facts() {
    const { tokens, state, stopReason, usage, speed } = this.answer;
    const end = typeof stopReason === "number" ? "ended by itself" : "ended by a stop string";
    return [
      `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}`,
      state === "stop" ? end : STATES[state] ?? state,
      speed.first !== null && `first after ${speed.first.toFixed(0)} ms`,
      speed.rate !== null && `${speed.rate.toFixed(speed.rate < 10 ? 1 : 0)} tokens/s`,
      usage && `prompt: ${usage.prompt_tokens} tokens, ${usage.prompt_tokens_details.cached_tokens} cached`,
    ].filter(Boolean).join(" · ");
  }

  #key(event, actions) {
    const last = this.spans.length - 1;
    const index = { ArrowRight: this.selected + 1, ArrowLeft: this.selected - 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter" || event.key === "ArrowDown") actions.choose();
    else if (index === undefined || last < 0) return;
    else actions.point(this, Math.max(0, Math.min(last, index)), true);
    event.preventDefault();
  }
}

export const button = (label, click, name) => element("button", { type: "button", "aria-label": name, click }, label);
