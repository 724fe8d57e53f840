// The card of an answer: its tokens, and what can be done with it.
import { element } from "./dom.js";
import { TokenList, button } from "./token_list.js";

export class Card extends TokenList {
  /**
   * @param {import("./answer.js").Answer} answer
   * @param {string} title
   * @param {{info: any, special: Set<number>}} service
   * @param {object} actions what a card asks of the page: `extend(card)` and so on, see `TokenList`
   */
  constructor(answer, title, service, actions) {
    super(answer, title, service.special, actions);
    this.extend = button("Continue", () => actions.extend(this));
    this.node = element("article", { class: "card", "aria-label": title },
      element("h3", {}, title), this.tokens, this.facts, element("div", { class: "row actions" },
        ...(answer.state === "prompt" ? [] : [
          this.extend, button("Edit", () => actions.edit(this)), button("Prompt tokens", () => actions.score(this)),
          element("span", { class: "soft" }, "Copy"), this.copier("as text", () => this.text),
          this.copiers(({ snippet }, kind) => snippet(kind, answer, service.info))]),
        button("Remove", () => actions.remove(this))));
  }

  /** Draw what is new. */
  draw() {
    super.draw();
    this.extend.disabled = !this.answer.canContinue;
  }
}
