// All tokens of the conversation, those that the template writes too.
import { scoredPrompt } from "./answer.js";
import { actions, closeReading, messagesBefore, reading, service, turns } from "./conversation.js";
import { byId, element } from "./dom.js";
import { request } from "./service.js";
import { TokenList, button } from "./token_list.js";
import { decode } from "./tokens.js";

const TITLE = "What the model reads";

/** Show what the model reads before its next answer, or after the last one. */
export const read = async () => {
  const isAsked = turns.at(-1)?.role === "user";
  const body = { messages: messagesBefore(), add_generation_prompt: isAsked, return_token_strs: true };
  const { tokens: prompt, token_strs: [first] } = await (await request("tokenize", { json: body })).json();
  const scored = await request("generate", { json: { prompt, max_tokens: 0, prompt_logprobs: 20 } });
  const { choices: [choice] } = await scored.json();
  const others = decode(choice.prompt_logprobs.slice(1).flatMap((entry) => entry.bytes));
  closeReading();
  const list = new TokenList(scoredPrompt(first + others, choice), TITLE, service.special, actions);
  const remove = () => {
    closeReading();
    byId("message").focus();
  };
  list.node = element("article", { class: "card", "aria-label": TITLE },
    element("h3", {}, TITLE), list.tokens, list.facts,
    element("div", { class: "row actions" }, button("Remove", remove)));
  reading.list = list;
  byId("turns").append(list.node);
  list.draw();
  list.tokens.focus();
};
