// The conversation of the page: its turns, and how answers are generated, shown and kept in the address.
import { writeAddress } from "./address.js";
import { ChatAnswer } from "./chat_answer.js";
import { byId, readable } from "./dom.js";
import { FieldError, readFields } from "./parameters.js";
import { explain } from "./service.js";
import { AssistantTurn, UserTurn } from "./turns.js";

const DRAWING_SHARE = 4; // drawing takes a quarter of the time at most
const editing = () => import("./chat_edit.js");
const inspecting = () => import("./inspector.js");

export const service = { info: null, special: new Set() };
export const running = new Set(); // a controller for each answer that is generated
/** What ended an answer: strings and tokens. */
export const ends = new Set();
export const turns = [];
/** What the model reads, where it is shown. @type {{list: import("./token_list.js").TokenList|null}} */
export const reading = { list: null };
let pinned = null; // what has the token that stays in the panel
let frame = 0;
let drawAt = 0;

export const say = (message, isFault = false) => {
  byId("status").textContent = message;
  byId("status").classList.toggle("bad", isFault);
};

/** Draw what has changed, once a frame; less often where that takes long. */
export const draw = () => {
  frame ||= requestAnimationFrame((now) => {
    frame = 0;
    if (now < drawAt) return draw();
    const changed = turns.filter((turn) => turn.answer?.isChanged);
    for (const turn of changed) turn.measure();
    for (const turn of changed) turn.draw();
    for (const turn of changed) turn.follow();
    drawAt = now + DRAWING_SHARE * (performance.now() - now);
  });
};

/** The messages before a turn, or all. @param {UserTurn|AssistantTurn} [turn] */
export const messagesBefore = (turn) => {
  const system = byId("system").value;
  return [...(system ? [{ role: "system", content: system }] : []),
    ...turns.slice(0, turn && turns.indexOf(turn)).map(({ role, text }) => ({ role, content: text }))];
};

/** Keep the conversation and the form in the address. */
export const keep = () => {
  if (!service.info || running.size) return;
  try {
    writeAddress({ system: byId("system").value, parameters: readFields(), turns: turns.map(linkOf) });
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
  }
};

/** A turn as a link holds it. A part that was generated after other messages than those before it now is a text. */
const linkOf = (turn) => {
  const { role, text, answer } = turn;
  if (!answer) return { role, text };
  const before = messagesBefore(turn);
  let prefix = "";
  const parts = answer.parts.map((part) => {
    const messages = prefix ? [...before, { role, content: prefix }] : before;
    prefix += part.text;
    if (!part.body || JSON.stringify(part.body.messages) !== JSON.stringify(messages)) return { text: part.text };
    const { messages: _, continue_final_message: __, ...parameters } = part.body;
    return { text: part.text, parameters };
  });
  return { role, parts };
};

/** Remove turns and put others there; the browser's "back" returns to what was there. @param {number} index */
export const removeFrom = (index) => {
  history.pushState(null, "", location.href);
  closePanel();
  for (const turn of turns.splice(index)) turn.node.remove();
  closeReading();
};

const add = (turn) => {
  turns.push(turn);
  byId("turns").append(turn.node);
  turn.node.scrollIntoView({ block: "nearest" });
  return turn;
};

/** @param {string} text */
export const addUser = (text) => add(new UserTurn(text, `You, message ${turns.length + 1}`, actions));

export const addAssistant = () => {
  const answer = new ChatAnswer(service.info.special_tokens);
  const turn = new AssistantTurn(answer, `Assistant, message ${turns.length + 1}`, service, actions);
  turn.draw();
  return add(turn);
};

/** Generate a part of an answer until it ends, is stopped or fails. @param {AssistantTurn} turn */
export const run = async (turn, parameters, before = messagesBefore(turn)) => {
  const controller = new AbortController();
  const { answer } = turn;
  const onEvent = () => {
    say("");
    draw();
  };
  running.add(controller);
  showRunning();
  onEvent();
  try {
    const options = { signal: controller.signal, onEvent, onWait: (reason) => say(reason, true) };
    await answer.generate(before, parameters, options);
    ends.add(answer.stopReason);
  } catch (error) {
    const isStopped = error.name === "AbortError";
    answer.end(isStopped ? "stopped" : "failed");
    say(isStopped ? "Stopped." : explain(error), !isStopped);
  }
  running.delete(controller);
  showRunning();
  draw();
  keep();
};

/** Generate an answer to the messages so far, or the rest of one. */
export const reply = async (turn = addAssistant()) => {
  const { seed = Math.floor(Math.random() * 2 ** 48), ...parameters } = readFields();
  await run(turn, { ...parameters, seed });
  if (turn.answer.isFinished) byId("spoken").textContent = readable(`Assistant: ${turn.text}`);
};

export const stop = () => {
  for (const controller of running) controller.abort();
};

const showRunning = () => {
  const button = byId("stop");
  if (!running.size && document.activeElement === button) byId("message").focus();
  button.disabled = !running.size;
};

/** Do what a person asked for, unless an answer is generated. @param {() => unknown} action */
export const act = async (action) => {
  if (running.size) return say("An answer is being generated: stop it first.", true);
  try {
    readFields();
    await action();
  } catch (error) {
    if (!(error instanceof FieldError)) return say(explain(error), true);
    byId("parameters").open = true;
    error.input.focus();
    say(error.message, true);
  }
};

const closePanel = () => {
  pinned?.select(-1);
  pinned = null;
  byId("inspector").hidden = true;
};

export const closeReading = () => {
  if (pinned === reading.list) closePanel();
  reading.list?.node.remove();
  reading.list = null;
};

/** Leave the panel of a token: to the tokens, or close it. */
export const escape = () => {
  if (!pinned) return;
  if (byId("inspector").contains(document.activeElement)) pinned.tokens.focus();
  else closePanel();
};

/** What turns and lists of tokens ask of the page. */
export const actions = {
  async point(list, index, isPinned) {
    if (pinned && !isPinned) return;
    if (isPinned) {
      if (pinned !== list) pinned?.select(-1);
      pinned = list;
      list.select(index);
    }
    const { inspect } = await inspecting();
    if (pinned && !(pinned === list && list.selected === index)) return; // another one was selected meanwhile
    inspect(list, index, (id) => act(async () => (await editing()).branch(list, index, id)), closePanel);
  },
  choose: async () => (await inspecting()).focusAlternatives(),
  edit: (turn) => act(async () => (await editing()).edit(turn)),
  extend: (turn) => act(() => {
    removeFrom(turns.indexOf(turn) + 1);
    return reply(turn);
  }),
  regenerate: (turn) => act(() => {
    removeFrom(turns.indexOf(turn));
    return reply();
  }),
  remove: (turn) => act(() => {
    removeFrom(turns.indexOf(turn));
    byId("message").focus();
    keep();
  }),
};
