// The page of a conversation with the model, where that has a chat template.
import { readAddress } from "./address.js";
import { act, addUser, closeReading, escape, keep, removeFrom, reply, running, say, service, stop, turns } from "./conversation.js";
import { byId, debounce, grouped, readable } from "./dom.js";
import { buildFields } from "./parameters.js";
import { ServiceError, explain, request, whenReady } from "./service.js";

const ROUTE = "/v1/chat/completions";
const NO_TEMPLATE = "This model has no chat template: it continues texts, in the playground, and cannot hold a " +
  "conversation. Serve one that was trained on conversations; python -m trainer demo --chat makes a small one.";
const opening = () => import("./chat_open.js");
const showing = () => import("./chat_read.js");

const send = () => {
  const message = byId("message");
  if (message.value) {
    closeReading();
    addUser(message.value);
    message.value = "";
  } else if (turns.at(-1)?.role !== "user") return say("Write a message first.", true);
  return reply();
};

/** Whether the model can answer. */
const loadInfo = async () => {
  const { data: [{ endpoints }] } = await (await request("v1/models")).json();
  const info = await (await request("info")).json();
  const { model, parameters, context_length: context } = info;
  const name = readable(model);
  byId("model").textContent = `${name}: ${grouped(parameters)} parameters, context of ${grouped(context)} tokens`;
  if (!endpoints.includes(ROUTE)) return false;
  Object.assign(service, { info, special: new Set(Object.values(info.special_tokens)) });
  buildFields({ ...info, defaults: { ...info.defaults, max_tokens: "all" } });
  return true;
};

const begin = async () => {
  for (;;) {
    try {
      const canAnswer = await loadInfo();
      for (const id of ["talk", "side"]) byId(id).hidden = !canAnswer;
      say(canAnswer ? "" : NO_TEMPLATE);
      if (canAnswer && location.hash.length > 1) await openLink();
      return;
    } catch (error) {
      say(explain(error), true);
      if (!(error instanceof ServiceError) || ![0, 503].includes(error.status)) return;
      await whenReady((reason) => say(reason, true));
    }
  }
};

const openLink = async () => {
  const state = readAddress();
  const { open } = await opening();
  if (state) await open(state).catch((error) => say(`This link is damaged: ${error.message}.`, true));
  else say("This link is damaged.", true);
};

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  act(send);
});
byId("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
document.querySelector("main").addEventListener("input", debounce(keep, 400));
byId("stop").addEventListener("click", stop);
byId("read").addEventListener("click", () => act(async () => (await showing()).read()));
byId("new").addEventListener("click", () => act(() => {
  removeFrom(0);
  byId("message").focus();
  keep();
}));
byId("colors").addEventListener("change", () => byId("turns").classList.toggle("colored", byId("colors").checked));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (running.size) stop();
  else escape();
});
window.addEventListener("hashchange", () => location.reload());
if (innerWidth < 960) byId("parameters").open = false;
begin();
