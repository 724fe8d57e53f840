// Opening a link: its messages are shown, and its answers made again.
import { addAssistant, addUser, draw, keep, messagesBefore, run, say, turns } from "./conversation.js";
import { byId } from "./dom.js";
import { writeFields } from "./parameters.js";

const MOST_TURNS = 200;
const OTHER_MODEL = "This link was made with another model: its answers are shown as texts.";

/** Show what a link holds. @param {any} state @throws {Error} it is damaged */
export const open = async ({ system = "", parameters = {}, turns: linked = [] }) => {
  check(system, [{ parameters }, ...linked.flatMap((turn) => turn.parts ?? [])], linked);
  byId("system").value = system;
  byId("system-field").open = system !== "";
  writeFields(parameters);
  for (const { role, text, parts } of linked) {
    if (role === "user") addUser(text);
    else addAssistant().linked = parts;
  }
  const answers = turns.filter((turn) => turn.linked);
  for (const { answer, linked: parts } of answers) answer.write(parts.map((part) => part.text).join(""));
  const before = answers.map(messagesBefore);
  const same = await Promise.all(answers.map((turn, index) => makeAgain(turn, before[index])));
  if (same.includes(false)) say(OTHER_MODEL, true);
  draw();
  keep();
};

/** Anyone may have made it: it decides no more than the form. */
const check = (system, parts, linked) => {
  const fields = [...byId("fields").querySelectorAll("[name]")].map((field) => field.name);
  const other = parts.flatMap((part) => Object.keys(part.parameters ?? {})).find((name) => !fields.includes(name));
  if (other) throw new Error(`${other} is not a parameter`);
  if (linked.length > MOST_TURNS) throw new Error(`it has more than ${MOST_TURNS} messages`);
  const texts = linked.flatMap(({ role, text, parts: own }) => {
    if (role === "user") return [text];
    if (role === "assistant") return own.map((part) => part.text);
    throw new Error("a message is neither yours nor the assistant's");
  });
  if ([system, ...texts].some((text) => typeof text !== "string")) throw new Error("a message has no text");
};

/** Generate the parts of an answer as a link has them; false where they come out otherwise, and are shown as texts. */
const makeAgain = async (turn, before) => {
  const { answer, linked } = turn;
  const whole = answer.text;
  if (!linked.some((part) => part.parameters)) return true;
  answer.cut(0);
  for (const { text, parameters } of linked) {
    if (parameters) await run(turn, parameters, before);
    else answer.write(text);
    if (answer.parts.at(-1)?.text === text) continue;
    const isSaid = ["stopped", "failed"].includes(answer.state);
    answer.cut(0);
    answer.write(whole);
    answer.state = "stopped";
    return isSaid;
  }
  return true;
};
