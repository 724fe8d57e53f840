// Search in the served vocabulary.
import { byId, debounce, element, grouped } from "./dom.js";
import { latest } from "./latest.js";
import { request } from "./service.js";
import { fromBase64, hex, shown } from "./spelling.js";

const LIMIT = 20; // tokens at once

/**
 * @param {(token: object) => void} onSelect gets a token that was chosen
 * @param {() => void} onChange is called for another search
 */
export const startVocabulary = (onSelect, onChange) => {
  const [by, query, found, entries, more] = ["by", "query", "found", "entries", "more"].map(byId);
  const rows = element("tbody");
  let next = 0;

  const search = latest(async (signal) => {
    if (next === 0) clear();
    if (query.value === "") return;
    const field = by.value;
    if (field === "id" && !/^\d{1,15}$/.test(query.value.trim())) return say("An id is a whole number.");
    const value = field === "id" ? Number(query.value) : query.value;
    const json = { [field]: value, first: next, limit: LIMIT };
    const answer = await (await request("vocabulary", { json, signal })).json();
    if (signal.aborted) return;
    rows.append(...answer.tokens.map(row));
    const needle = field === "text" ? shown(new TextEncoder().encode(value)) : value.toLowerCase?.();
    const what = field === "id" ? "from this id on" : `with “${needle}”, the shortest first`;
    const hole = field === "id" && next === 0 && answer.tokens[0]?.id !== value ? `No token has the id ${value}. ` : "";
    say(`${hole}${grouped(answer.total)} ${answer.total === 1 ? "token" : "tokens"} ${what}`);
    if (next === 0 && answer.tokens.length) entries.replaceChildren(table());
    next = answer.next;
    more.hidden = next === null;
  }, (sentence) => sentence && say(sentence));

  const say = (sentence) => (found.textContent = sentence);
  const clear = () => {
    rows.replaceChildren();
    entries.replaceChildren();
    say("");
    more.hidden = true;
  };
  const table = () => element("table", {}, element("thead", {}, element("tr", {},
    ...["id", "text", "bytes"].map((name) => element("th", { scope: "col" }, name)))), rows);
  const row = (entry) => {
    const bytes = fromBase64(entry.bytes);
    const open = () => onSelect({ id: entry.id });
    return element("tr", {},
      element("td", { class: "number" }, element("button", { type: "button", class: "link", click: open }, entry.id)),
      element("td", {}, element("span", { class: "mono text" }, shown(bytes)), entry.special ? " (added token)" : ""),
      element("td", {}, hex(bytes, 12)));
  };

  const start = () => {
    next = 0;
    return search();
  };
  const later = debounce(start, 150);
  query.addEventListener("input", () => {
    onChange();
    later();
  });
  by.addEventListener("change", () => {
    onChange();
    start();
  });
  more.addEventListener("click", search);
  return start;
};
