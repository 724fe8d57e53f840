// Changing what a message says: its text, or one token of it.
import { actions, act, addUser, draw, ends, keep, removeFrom, reply, say, service, turns } from "./conversation.js";
import { element } from "./dom.js";
import { button } from "./token_list.js";

/** Edit a message in its place. An answer to it is generated; what an assistant's message says can be continued. */
export const edit = (turn) => {
  const field = element("textarea", { rows: 4, dir: "auto", "aria-label": `Text of ${turn.title}` });
  field.value = turn.text;
  const end = () => {
    field.replaceWith(turn.content);
    row.replaceWith(turn.buttons);
    turn.buttons.querySelector("button:enabled").focus();
  };
  const save = () => act(() => {
    end();
    return turn.answer ? rewrite(turn, field.value) : askAnew(turn, field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    else return;
    event.stopPropagation();
  });
  const row = element("div", { class: "row actions" },
    button(turn.answer ? "Save" : "Save and answer", save), button("Cancel", end));
  turn.content.replaceWith(field);
  turn.buttons.replaceWith(row);
  field.focus();
};

const rewrite = ({ answer }, text) => {
  if (text === answer.text) return;
  removeFrom(turns.length); // nothing; "back" returns to the former text
  answer.cut(0);
  answer.write(text);
  answer.state = "stopped";
  draw();
  keep();
};

const askAnew = (turn, text) => {
  removeFrom(turns.indexOf(turn));
  addUser(text);
  return reply();
};

/** Continue an answer from another token; what followed is removed. */
export const branch = (turn, index, id) => {
  const { answer } = turn;
  if (!turns.includes(turn)) return say("Choose another token in an answer.", true);
  const isSpecial = typeof id === "number";
  if (isSpecial && !ends.has(id) && !service.info.eos_token_ids.includes(id)) {
    return say("This is a special token, which no message can contain.", true);
  }
  const { alternatives } = answer.tokens[index];
  const token = { ...alternatives.find((other) => other.id === id), alternatives };
  const text = wholeText(answer, index, token);
  if (text === null) return say("No character ends here: choose another token.", true);
  removeFrom(turns.indexOf(turn) + 1);
  answer.cut(index);
  if (!isSpecial) {
    answer.write(text, token);
    actions.point(turn, index, true);
    turn.tokens.focus();
    return reply(turn);
  }
  Object.assign(answer, { state: "stop", stopReason: id });
  draw();
  keep();
};

/** The text of a token, or null where it or what is before it ends within a character. */
const wholeText = (answer, index, token) => {
  try {
    answer.textOf(answer.tokens.slice(0, index));
    return answer.textOf([token]);
  } catch {
    return null;
  }
};
