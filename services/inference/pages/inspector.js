// What the model considered at a token: the most likely ones, any of which can be chosen instead.
import { bytesOf } from "./answer.js";
import { byId, element, visible } from "./dom.js";
import { decode, hex, percent } from "./tokens.js";

const MAX_TEXT = 200; // characters of a token in the list; the whole one is above it

/**
 * Show a token.
 * @param {import("./card.js").Card} card
 * @param {number} index
 * @param {(id: number) => void} choose gets the id of another token
 * @param {() => void} close
 */
export const inspect = (card, index, choose, close) => {
  const { id, logprob, alternatives, note } = card.answer.tokens[index];
  const bytes = bytesOf(id);
  const rank = alternatives.findIndex((other) => other.id === id);
  const known = logprob === null ? [["Probability", note ?? "not known yet"]] : [
    ["Probability", `${percent(logprob)}, ${rank < 0 ? "not among the most likely" : `number ${rank + 1}`}`],
    ["Log-probability", logprob.toFixed(4)]];
  const facts = [["Text", element("span", { class: "text mono" }, visible(decode(bytes)))],
    ...(typeof id === "number" ? [["Id", id]] : []), // conversations have none
    [`Bytes (${bytes.length})`, element("span", { class: "mono" }, hex(bytes))], ...known];
  const panel = byId("inspector");
  panel.hidden = false;
  panel.replaceChildren(
    element("button", { type: "button", class: "close", click: close }, "Close"),
    element("h3", { "aria-live": "polite" }, `Token ${index + 1} of ${card.title}`,
      element("span", { class: "visually-hidden" }, `: ${shown(id)}, ${logprob === null ? "" : percent(logprob)}`)),
    element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
    ...(alternatives.length ? [element("h3", {}, `The ${alternatives.length} most likely here`),
      element("p", { class: "soft" }, "Choose one to continue from it. Probabilities are the model's, before sampling."),
      element("ol", { class: "alternatives", keydown: moveFocus },
        ...alternatives.map((other) => alternative(other, other.id === id, choose)))] : []),
  );
};

export const focusAlternatives = () => byId("inspector").querySelector(".alternatives button")?.focus();

const shown = (id) => {
  const text = visible(decode(bytesOf(id)));
  return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}…` : text;
};

const alternative = ({ id, logprob }, isChosen, choose) => {
  const bar = element("span", { class: "bar", "aria-hidden": "true" });
  bar.style.width = `${100 * Math.exp(logprob)}%`;
  const bytes = bytesOf(id);
  const isWhole = !decode(bytes).includes("\ufffd");
  const click = () => isChosen || choose(id);
  const attributes = { type: "button", "aria-current": isChosen && "true", click,
    title: typeof id === "number" && `id ${id}` };
  return element("li", {}, element("button", attributes, bar,
    element("span", { class: "mono name" }, isWhole ? shown(id) : hex(bytes)), " ",
    element("span", { class: "value" }, `${isChosen ? "✓ " : ""}${percent(logprob)}`)));
};

const moveFocus = (event) => {
  const to = { ArrowDown: "next", ArrowUp: "previous" }[event.key];
  if (!to) return;
  event.target.closest("li")[`${to}ElementSibling`]?.firstChild.focus();
  event.preventDefault();
};
