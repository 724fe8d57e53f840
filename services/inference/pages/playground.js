// The playground: a prompt, its answers side by side, and for each token what else the model considered.
import { readAddress, writeAddress } from "./address.js";
import { Answer, bytesOf, scoredPrompt } from "./answer.js";
import { Card } from "./card.js";
import { byId, debounce, grouped, readable } from "./dom.js";
import { generate } from "./generation.js";
import { focusAlternatives, inspect } from "./inspector.js";
import { FieldError, buildFields, check, readFields, writeFields } from "./parameters.js";
import { ServiceError, explain, request, whenReady } from "./service.js";
import { decode } from "./tokens.js";

const MOST_LINKED = 32; // answers that one link makes
const MOST_ANSWERS = 4; // side by side
const DRAWING_SHARE = 4; // drawing takes a quarter of the time at most

const service = { info: null, special: new Set() };
const running = new Map(); // the controller of each group of answers that is generated
let cards = [];
let pinned = null; // the card whose token stays in the panel
let frame = 0;
let drawAt = 0;
let isEdited = false; // since the answers were made

const say = (message, isFault = false) => {
  byId("status").textContent = message;
  byId("status").classList.toggle("bad", isFault);
};

const fail = (error) => say(explain(error), true);

/**
 * Draw what has changed, once a frame; less often where that takes long, as with thousands of tokens. All cards are
 * measured before any is changed: one layout.
 */
const draw = () => {
  frame ||= requestAnimationFrame((now) => {
    frame = 0;
    if (now < drawAt) return draw();
    const changed = cards.filter((card) => card.answer.isChanged);
    for (const card of changed) card.measure();
    for (const card of changed) card.draw();
    for (const card of changed) card.follow();
    drawAt = now + DRAWING_SHARE * (performance.now() - now);
  });
};

const isPrompt = ({ answer }) => answer.state === "prompt";

const showRunning = () => {
  const stop = byId("stop");
  if (!running.size && document.activeElement === stop) byId("generate").focus();
  stop.disabled = !running.size;
};

/** Run answers that begin alike until they end, are stopped or fail. */
const run = async (answers) => {
  const controller = new AbortController();
  running.set(controller, answers);
  showRunning();
  say("");
  for (const answer of answers) Object.assign(answer, { state: "waiting", stopReason: null, isChanged: true });
  draw();
  let end = "stopped";
  const onEvent = () => {
    say("");
    draw();
  };
  try {
    await generate(answers, { signal: controller.signal, onEvent, onWait: (reason) => say(reason, true) });
    onEvent();
  } catch (error) {
    if (error.name === "AbortError") say("Stopped.");
    else {
      end = "failed";
      fail(error);
    }
  }
  running.delete(controller);
  for (const answer of answers) if (!answer.isFinished) Object.assign(answer, { state: end, isChanged: true });
  showRunning();
  draw();
  keepAnswers();
};

const stop = () => {
  for (const controller of running.keys()) controller.abort();
};

/** Put what makes these answers again into the address. */
const keepAnswers = () => {
  const made = cards.map((card) => card.answer).filter((answer) => answer.fingerprint);
  if (isEdited || !made.length) return;
  const { prompt, ...parameters } = made[0].request;
  const tokenizer = made[0].fingerprint.slice(0, 16);
  writeAddress({ prompt, parameters, tokenizer, answers: made.slice(0, MOST_LINKED).map((answer) => answer.link) });
};

const readForm = () => {
  const n = byId("n");
  check(n, n.validity.valid, `Answers: ${n.min} to ${n.max}`);
  return readFields();
};

/** Put an edited form into the address, without the answers of its earlier state. */
const keepForm = () => {
  if (!isEdited || !service.info) return;
  try {
    writeAddress({ prompt: byId("prompt").value, parameters: readForm(), n: Number(byId("n").value) });
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
  }
};
const keepTyped = debounce(keepForm, 400);

const show = (answers) => {
  close();
  cards = [];
  byId("answers").replaceChildren();
  for (const answer of answers) addCard(answer, cards.length);
};

const addCard = (answer, at) => {
  const card = new Card(answer, answer.title ?? `Answer ${at + 1}`, service, actions);
  byId("answers").insertBefore(card.node, cards[at]?.node ?? null);
  cards.splice(at, 0, card);
  byId("result").hidden = false;
  card.draw();
  return card;
};

const close = () => {
  pinned?.select(-1);
  pinned = null;
  byId("inspector").hidden = true;
};

/** Put a text into the form. */
const editPrompt = (text) => {
  const prompt = byId("prompt");
  prompt.value = text;
  prompt.focus();
  prompt.setSelectionRange(prompt.value.length, prompt.value.length);
  prompt.scrollTop = prompt.scrollHeight;
  isEdited = true;
  keepForm();
};

/** Continue from another token: a branch beside the answer. Another one of the prompt edits it. */
const branch = (card, index, id) => {
  const { answer } = card;
  if (isPrompt(card)) return editPrompt(decode([...answer.ids.slice(0, index), id].flatMap(bytesOf)));
  const { alternatives } = answer.tokens[index];
  const { logprob } = alternatives.find((other) => other.id === id);
  const given = [...answer.tokens.slice(0, index), { id, logprob, alternatives }];
  const maxTokens = answer.maxTokens && Math.max(answer.maxTokens, given.length);
  const title = `${card.title.split(",")[0]}, another token ${index + 1}`;
  const next = new Answer(answer.request, { seed: answer.seed, maxTokens, given, title });
  next.fingerprint = answer.fingerprint;
  const added = addCard(next, cards.indexOf(card) + 1);
  actions.point(added, index, true);
  added.tokens.focus();
  if (service.info.eos_token_ids.includes(id) && !answer.request.ignore_eos) {
    Object.assign(next, { state: "stop", stopReason: id, maxTokens: given.length });
    added.draw();
    keepAnswers();
  } else run([next]);
};

/** Show the tokens of an answer's prompt before the answers, which all have the same. */
const score = async (card) => {
  const { prompt } = card.answer.request;
  const response = await request("generate", { json: { prompt, max_tokens: 0, prompt_logprobs: 20 } });
  const { choices } = await response.json();
  if (!cards.includes(card)) return;
  if (!isPrompt(cards[0])) addCard(scoredPrompt(prompt, choices[0]), 0);
  cards[0].tokens.focus();
};

const actions = {
  point(card, index, isPinned) {
    if (pinned && !isPinned) return;
    if (isPinned) {
      if (pinned !== card) pinned?.select(-1);
      pinned = card;
      card.select(index);
    }
    inspect(card, index, (id) => branch(card, index, id), close);
  },
  choose: focusAlternatives,
  extend({ answer }) {
    if (answer.state === "length") {
      const more = Number(byId("max_tokens").value) || service.info.defaults.max_tokens;
      const room = service.info.context_length - (answer.usage ? answer.usage.prompt_tokens - answer.numBefore : 1);
      answer.maxTokens = Math.min(answer.tokens.length + more, room);
      if (room <= answer.tokens.length) return say("The context is full.");
    }
    run([answer]);
  },
  edit: (card) => editPrompt(card.answer.request.prompt + card.text),
  score: (card) => score(card).catch(fail),
  remove(card) {
    if (pinned === card) close();
    cards = cards.filter((other) => other !== card);
    const shown = cards.map((other) => other.answer);
    for (const [controller, answers] of running) {
      if (!answers.some((answer) => shown.includes(answer))) controller.abort();
    }
    card.node.remove();
    byId("prompt").focus();
    isEdited ||= cards.every(isPrompt);
    keepAnswers();
    keepForm();
  },
};

const start = async () => {
  try {
    await loadInfo();
    const { seed, max_tokens: maxTokens, ...parameters } = readForm();
    stop();
    isEdited = false;
    const values = { prompt: byId("prompt").value, ...parameters };
    const answers = Array.from({ length: Number(byId("n").value) }, () => new Answer(values, { seed, maxTokens }));
    show(answers);
    await run(answers);
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    byId("parameters").open = true;
    error.input.focus();
    say(error.message, true);
  }
};

/** Fill in what a link holds, and make its answers again. */
const open = async ({ prompt = "", parameters = {}, n = 1, answers = [], tokenizer }) => {
  // Anyone may have made it: it decides no more than the form.
  const other = Object.keys(parameters).find((name) => !byId("fields").querySelector(`[name="${CSS.escape(name)}"]`));
  if (other) throw new Error(`${readable(other)} is not a parameter`);
  if (answers.length > MOST_LINKED) throw new Error(`it has more than ${MOST_LINKED} answers`);
  byId("prompt").value = prompt;
  const seed = answers[0]?.seed ?? parameters.seed;
  writeFields({ ...parameters, seed, max_tokens: answers.length ? answers[0].max_tokens : parameters.max_tokens });
  byId("n").value = Math.min(answers.length || n, byId("n").max);
  if (!answers.length) return;
  if (tokenizer && !service.info.fingerprint.startsWith(tokenizer)) {
    say("This link was made with another tokenizer: its answers cannot be made here.", true);
    return;
  }
  const request = { prompt, ...parameters };
  const made = answers.map(({ seed: own, max_tokens: maxTokens, given = [] }) => new Answer(request, {
    seed: own, maxTokens, given: given.map((id) => ({ id, logprob: null, alternatives: [] })),
  }));
  show(made);
  await Promise.all(made.map((answer) => run([answer])));
};

const loadInfo = async () => {
  if (service.info) return;
  service.info = await (await request("info")).json();
  service.special = new Set(Object.values(service.info.special_tokens));
  const { model, parameters, context_length: context } = service.info;
  const name = readable(model);
  byId("model").textContent = `${name}: ${grouped(parameters)} parameters, context of ${grouped(context)} tokens`;
  byId("n").max = Math.min(MOST_ANSWERS, service.info.ranges.n.maximum);
  buildFields(service.info);
};

const begin = async () => {
  for (;;) {
    try {
      await loadInfo();
      say("");
      const state = readAddress();
      if (state) await open(state).catch((error) => say(`This link is damaged: ${error.message}.`, true));
      else if (location.hash.length > 1) say("This link is damaged.", true);
      return;
    } catch (error) {
      fail(error);
      if (!(error instanceof ServiceError) || ![0, 503].includes(error.status)) return;
      await whenReady((reason) => say(reason, true));
    }
  }
};

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  start().catch(fail);
});
document.querySelector("main").addEventListener("input", () => {
  isEdited = true;
  keepTyped();
});
byId("stop").addEventListener("click", stop);
byId("colors").addEventListener("change", () => byId("answers").classList.toggle("colored", byId("colors").checked));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (running.size) stop();
  else if (pinned) {
    const { tokens } = pinned;
    if (byId("inspector").contains(document.activeElement)) tokens.focus();
    else close();
  }
});
window.addEventListener("hashchange", () => location.reload());
if (innerWidth < 960) byId("parameters").open = false;
begin();
