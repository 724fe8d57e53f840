// The page of the tokenizer service: what is typed goes to the service, and its tokens come back.
import { readAddress, writeAddress } from "./address.js";
import { OtherTokenizer } from "./compare.js";
import { asCurl, asPython } from "./copies.js";
import { startDecoding } from "./decode.js";
import { byId, copy, debounce, element, grouped, readable } from "./dom.js";
import { latest } from "./latest.js";
import { Pieces, readColumns } from "./pieces.js";
import { request } from "./service.js";
import { shown } from "./spelling.js";
import { TokenPanel } from "./token-panel.js";
import { startVocabulary } from "./vocabulary.js";

const EDITABLE = 50_000; // characters; a field with more slows the whole page down
const LINKED = 2_000; // characters of a text that are in the address
const EXAMPLE = "Once upon a time, 12,345 naïve cafés 👩‍🚀 opened.\n\tThe end.<|endoftext|>";
const SLOW = 400; // ms after which it is said that an answer takes time
const RAW = { "Content-Type": "text/plain; charset=utf-8", Accept: "application/octet-stream" };

const [field, held, status, file, close] = ["text", "held", "status", "file", "close"].map(byId);
const checks = ["special", "template", "white"].map(byId);
const [special, template, white] = checks;
const [view, by, query, ids] = ["view", "by", "query", "ids"].map(byId);
const panel = new TokenPanel(byId("token"));
const first = new Pieces(byId("first"), "Tokens", (token) => panel.show(token));
const second = new Pieces(byId("second"), "Tokens of the other tokenizer", (token) => panel.showOther(token));
const other = new OtherTokenizer();
let long = null; // a text that is too long for the field
let otherName = "";
let served = ""; // the fingerprint of the tokenizer that is described

const currentText = () => (long ?? field.value).toWellFormed(); // as it is sent: UTF-8 has no lone surrogates

const sizeOf = (text) => {
  let characters = 0;
  for (let at = 0; at < text.length; at++) characters += (text.charCodeAt(at) & 0xfc00) !== 0xdc00;
  return { characters, utf8: new TextEncoder().encode(text) };
};

const loadInfo = latest(async (signal) => {
  const { model, vocab_size: size, fingerprint } = await (await request("info", { signal })).json();
  served = fingerprint;
  byId("served").textContent = `${readable(model)} · ${grouped(size)} tokens · fingerprint ${fingerprint.slice(0, 12)}`;
}, () => {});

const encode = latest(async (signal) => {
  const text = currentText();
  const options = new URLSearchParams({ return_pieces: true });
  if (special.checked) options.set("allowed_special", "all");
  if (template.checked) options.set("add_special_tokens", true);
  const slow = setTimeout(() => (status.textContent = "Tokenizing …"), SLOW);
  let response, content;
  try {
    response = await request(`encode?${options}`, { body: text, headers: RAW, signal });
    content = await response.arrayBuffer();
  } finally {
    clearTimeout(slow);
  }
  if (signal.aborted) return;
  if (response.headers.get("X-Tokenizer-Fingerprint") !== served) loadInfo();
  first.show(readColumns(content, Number(response.headers.get("X-Token-Count"))), sizeOf(text));
  if (first.text !== text) panel.forgetPlace();
  first.text = text;
  describeDifference();
}, (sentence) => {
  if (sentence) {
    first.clear(); // they are those of another text
    first.text = null;
    describeDifference();
  }
  const lost = !(long ?? field.value).isWellFormed();
  status.textContent = sentence || (lost ? "The text has half of a UTF-16 pair: U+FFFD is sent in its place." : "");
});

const compare = async () => {
  if (!other.worker) return;
  const text = currentText();
  const slow = setTimeout(() => sayOfOther(`${otherName} is at work …`), SLOW);
  try {
    const columns = await other.encode(text, { special: special.checked, template: template.checked });
    if (!columns) return;
    second.show(columns, sizeOf(text));
    second.text = text;
    sayOfOther("");
  } catch (error) {
    if (error.name === "AbortError") return;
    second.clear();
    second.text = null;
    sayOfOther(`${otherName}: ${error.message}`);
  } finally {
    clearTimeout(slow);
  }
  describeDifference();
};

const sayOfOther = (sentence) => (byId("second-status").textContent = readable(sentence));

/** Compare the two, where both have tokens of the same text. */
const describeDifference = () => {
  const [ours, theirs] = [first.columns, second.columns];
  const isReady = first.text && first.text === second.text && ours.ids.length && theirs.ids.length;
  byId("difference").textContent = isReady ? differenceOf(ours, theirs) : "";
};

const differenceOf = (ours, theirs) => {
  const [count, others] = [ours.ids.length, theirs.ids.length];
  const share = Math.abs(100 * (others / count - 1)).toFixed(1);
  const amount = count === others ? "as many tokens" : `${share} % ${others < count ? "fewer" : "more"} tokens`;
  const sentence = `${otherName} has ${amount} (${grouped(others)}; the served one ${grouped(count)})`;
  if (ours.bytes.length !== theirs.bytes.length) return `${sentence}.`;
  let both = 0;
  for (let at = 0, place = 0; at < count; at++) {
    while (place < others && theirs.byteEnds[place] < ours.byteEnds[at]) place++;
    both += theirs.byteEnds[place] === ours.byteEnds[at];
  }
  return `${sentence}; ${grouped(both)} of its ${grouped(others)} tokens end where one of the served tokenizer ends.`;
};

const forgetOther = () => {
  other.close();
  second.clear();
  second.text = null;
  byId("second-title").textContent = "Beside another tokenizer";
  describeDifference();
};

const refresh = () => {
  encode();
  compare();
};
const refreshSoon = debounce(refresh, 120);

const writeState = debounce(() => {
  const short = (text) => (text.length > LINKED ? "" : text);
  writeAddress({
    text: short(long ?? field.value), ids: short(ids.value), by: by.value, query: short(query.value), view: view.value,
    ...Object.fromEntries(checks.map((check) => [check.id, check.checked])),
  });
}, 500);

const search = startVocabulary((token) => panel.show(token), writeState);
const decode = startDecoding(writeState);

const readState = () => {
  const state = readAddress();
  if (typeof state !== "object" || state === null) return;
  for (const one of [query, ids]) if (typeof state[one.id] === "string") one.value = state[one.id];
  for (const one of [by, view]) {
    if ([...one.options].some(({ value }) => value === state[one.id])) one.value = state[one.id];
  }
  for (const check of checks) if (typeof state[check.id] === "boolean") check.checked = state[check.id];
  if (typeof state.text === "string") setText(state.text);
};

/** A long text is kept beside the field. */
const setText = (text) => {
  const wasLong = long !== null;
  long = text.length > EDITABLE ? text : null;
  field.value = long === null ? text : "";
  field.hidden = long !== null;
  held.hidden = long === null;
  if (long === null) return wasLong && field.focus();
  const clear = element("button", { type: "button", click: () => {
    setText("");
    changed();
  } }, "Clear");
  const beginning = shown(new TextEncoder().encode(text.slice(0, 60)));
  const size = `A text of ${grouped(sizeOf(text).characters)} characters, too long to edit here.`;
  held.replaceChildren(element("p", { class: "text" }, `${size} It begins: ${beginning}…`), clear);
  clear.focus();
};

const changed = () => {
  refreshSoon();
  writeState();
};

const redraw = () => {
  for (const pieces of [first, second]) pieces.restyle(view.value, white.checked);
  writeState();
};

field.addEventListener("input", () => {
  if (field.value.length > EDITABLE) setText(field.value);
  changed();
});
field.addEventListener("paste", (event) => {
  const pasted = event.clipboardData.getData("text/plain");
  const whole = field.value.slice(0, field.selectionStart) + pasted + field.value.slice(field.selectionEnd);
  if (whole.length <= EDITABLE) return;
  event.preventDefault();
  setText(whole);
  changed();
});
for (const check of [special, template]) check.addEventListener("change", changed);
for (const control of [white, view]) control.addEventListener("change", redraw);
file.addEventListener("change", async () => {
  const [chosen] = file.files;
  if (!chosen) return;
  otherName = readable(chosen.name);
  forgetOther();
  close.hidden = false;
  sayOfOther(`Reading ${otherName} …`);
  try {
    const { tokens, merges, special: control } = await other.open(chosen);
    const sizes = `${grouped(tokens)} tokens, ${grouped(merges)} merges, ${grouped(control)} special`;
    byId("second-title").textContent = `Beside ${otherName}: ${sizes}`;
    await compare();
  } catch (error) {
    if (error.name === "AbortError") return;
    other.close();
    sayOfOther(`${otherName} cannot be compared: ${error.message}`);
  }
});
close.addEventListener("click", () => {
  forgetOther();
  [file.value, close.hidden] = ["", true];
  sayOfOther("");
  file.focus();
});
const body = () => ({
  text: currentText(),
  ...(special.checked && { allowed_special: "all" }),
  ...(template.checked && { add_special_tokens: true }),
});
byId("example").addEventListener("click", () => {
  setText(EXAMPLE);
  changed();
});
byId("curl").addEventListener("click", (event) => copy(event.target, asCurl(body())));
byId("python").addEventListener("click", (event) => copy(event.target, asPython(body())));

const start = () => {
  readState();
  first.restyle(view.value, white.checked);
  second.restyle(view.value, white.checked);
  refresh();
  search();
  decode();
};
addEventListener("hashchange", start);
start();
