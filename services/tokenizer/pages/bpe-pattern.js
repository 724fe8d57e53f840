// Patterns that split text into pretokens, translated from Oniguruma's syntax, in which tokenizer.json has them.
// Only what means the same in JavaScript is translated; everything else is refused by name.

const SPACE = "\\p{White_Space}"; // JavaScript's \s has U+FEFF and lacks U+0085
const SET = String.raw`\\p\{[LMNPSZ][a-z]?\}|\\[sSrnt]`;
const OUTSIDE = new RegExp(
  String.raw`(?<set>${SET})|(?<open>\[\^?)|(?<group>\((?:\?(?:[:=!]|i:))?)|(?<end>[)|])` +
  String.raw`|(?<repeat>(?:[?*+]\+?|\{\d{1,4}(?:,\d{0,4})?\}(?!\+))(?!\?))|[^\\^$.[{}?*+(]`, "uy");
const INSIDE = new RegExp(String.raw`(?<set>${SET})|(?<close>\])|[^\\[\-&^]`, "uy");
const LIGATURES = new Set(["ss", "st", "ff", "fi", "fl"]); // each is one character to Oniguruma where case is ignored
const OTHER_CASES = { s: "\u017f", k: "\u212a" };

/**
 * @param {string} pattern an expression from a tokenizer.json
 * @returns {RegExp} finds the same matches, with the flags g and u
 * @throws {Error} names the construct that is not supported, and its place
 */
export const translate = (pattern) => {
  const out = [];
  const groups = []; // for each open group, whether case is ignored outside of it
  let [ignoresCase, inClass, captures, atom, letter] = [false, false, 0, -1, ""];
  let at = 0;
  const refuse = (what) => {
    const where = `at character ${at}, which this page cannot match exactly`;
    throw new Error(`the pattern has ${what} ${where}: ${pattern.slice(0, 200)}`);
  };
  for (let part = ""; at < pattern.length; at += part.length) {
    const expression = inClass ? INSIDE : OUTSIDE;
    expression.lastIndex = at;
    const found = expression.exec(pattern) ?? refuse(JSON.stringify(pattern.slice(at, at + 4)));
    const { set, open, close, group, end, repeat } = found.groups;
    const before = letter;
    [part] = found;
    letter = !set && ignoresCase && !inClass ? part.toLowerCase() : "";
    if (LIGATURES.has(before + letter)) refuse(`${before + letter} in any case`);
    if (ignoresCase && (set || open === "[^" || /[^\0-\x7f]/.test(part))) refuse(`${part} in any case`);
    if (group) {
      groups.push(ignoresCase);
      ignoresCase ||= part === "(?i:";
      out.push(part === "(" || part === "(?i:" ? "(?:" : part);
      atom = -1;
    } else if (end) {
      if (part === ")") ignoresCase = groups.pop() ?? refuse("a ) without a (");
      out.push(part);
      atom = -1;
    } else if (repeat?.endsWith("+") && repeat.length === 2) {
      if (atom < 0) refuse(`${part} after a group`);
      // A lookahead is never entered again, so nothing that it captured is given back.
      out.push(`(?:(?=(${out.splice(atom).join("")}${part[0]}))\\${++captures})`);
      atom = -1;
    } else if (repeat) {
      out.push(part);
      atom = -1;
    } else if (close) {
      if (out.length === atom + 1) refuse("an empty class");
      inClass = false;
      out.push(part);
    } else {
      if (!inClass) atom = out.length;
      inClass ||= Boolean(open);
      out.push(open ? part : set ? translateSet(set) : character(part, ignoresCase, inClass));
    }
  }
  if (groups.length || inClass) refuse("no end");
  return compile(out.join(""), refuse);
};

const compile = (source, refuse) => {
  try {
    if (new RegExp(`^(?:${source})`, "u").test("")) refuse("a match of the empty string");
  } catch (error) {
    if (error instanceof SyntaxError) refuse(error.message);
    throw error;
  }
  return new RegExp(source, "gu");
};

const translateSet = (set) => (set === "\\s" ? SPACE : set === "\\S" ? "\\P{White_Space}" : set);

const character = (one, ignoresCase, inClass) => {
  if (!ignoresCase || !/[a-z]/i.test(one)) return /[/()|*+?{}$]/.test(one) ? `\\${one}` : one;
  const lower = one.toLowerCase();
  const all = lower + lower.toUpperCase() + (OTHER_CASES[lower] ?? "");
  return inClass ? all : `[${all}]`;
};
