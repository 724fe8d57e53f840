// The turns of a conversation as they are shown: a person's text, and the assistant's tokens.
import { element, readable } from "./dom.js";
import { TokenList, button } from "./token_list.js";

/** A message of the person. */
export class UserTurn {
  role = "user";

  /** @param {string} text @param {string} title @param {object} actions `edit(turn)`, `remove(turn)` */
  constructor(text, title, actions) {
    Object.assign(this, { text, title });
    this.content = element("p", { class: "text", dir: "auto" }, readable(text));
    this.buttons = element("div", { class: "row actions" }, button("Edit", () => actions.edit(this), `Edit ${title}`),
      button("Remove from here", () => actions.remove(this), `Remove from ${title} on`));
    this.node = element("article", { class: "card user", "aria-label": title },
      element("h3", {}, title), this.content, this.buttons);
  }
}

/** A message of the assistant. */
export class AssistantTurn extends TokenList {
  role = "assistant";

  /**
   * @param {import("./chat_answer.js").ChatAnswer} answer
   * @param {string} title
   * @param {{info: any, special: Set<number>}} service
   * @param {object} actions those of a user's turn and of `TokenList`, `extend(turn)`, `regenerate(turn)`
   */
  constructor(answer, title, service, actions) {
    super(answer, title, service.special, actions);
    this.content = this.tokens;
    this.extend = button("Continue", () => actions.extend(this), `Continue ${title}`);
    this.buttons = element("div", { class: "row actions" }, this.extend,
      button("Regenerate", () => actions.regenerate(this), `Regenerate ${title}`),
      button("Edit", () => actions.edit(this), `Edit ${title}`),
      button("Remove from here", () => actions.remove(this), `Remove from ${title} on`),
      element("span", { class: "soft" }, "Copy"), this.copier("as text", () => this.text),
      this.programs = this.copiers(({ chatSnippet }, kind) => chatSnippet(kind, answer.body, service.info)));
    this.node = element("article", { class: "card", "aria-label": title },
      element("h3", {}, title), this.tokens, this.facts, this.buttons);
  }

  get text() {
    return this.answer.text;
  }

  /** Draw what is new. */
  draw() {
    super.draw();
    this.extend.disabled = !this.answer.canContinue;
    this.programs.hidden = !this.answer.body;
  }
}
