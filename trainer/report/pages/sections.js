// The sections of the page but for the curves: from what they show to elements.
import { element, svg } from "./dom.js";
import { namedRun, shown, swatch } from "./looks.js";

const number = (value) => value.toLocaleString("en-US");
const soft = (...children) => element("p", { class: "soft" }, ...children);

const steps = (items, className) => element("dl", { class: className },
  ...items.flatMap(([step, text]) => [element("dt", {}, `step ${number(step)}`), element("dd", { class: "text" }, shown(text))]));

const wide = (label, table) => element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, table);

const headings = (names) => element("thead", {},
  element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, shown(name)))));

const marked = (mark) => mark ? element("span", { class: "warn" }, ` ◆ ${mark}`) : null;

const folded = (run, isOpen, ...children) =>
  element("details", { "data-key": run.run, open: isOpen }, element("summary", {}, namedRun(run)), ...children);

const notes = ({ cautions, studies }) => [
  ...cautions.map((text) => element("p", { class: "warn" }, shown(text))),
  ...studies.map((text) => element("p", {}, shown(text))),
];

const waiting = (paths) => paths.map((path) => element("p", {}, `Waiting for a run in ${shown(path)}.`));

const now = (runs) => runs.map((run) => element("div", { class: "card now", "data-key": run.run },
  element("div", {}, namedRun(run), ` ${run.state}`),
  run.share === null ? null : element("progress", { max: 1, value: run.share, "aria-label": `Progress of ${shown(run.name)}` }),
  element("dl", { class: "figures" },
    ...run.figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))))));

const runs = (all) => all.length < 2 ? [] : all.map(({ run, name, mark }) => element("label", { "data-key": run },
  element("input", { type: "checkbox", checked: true, "data-run": run }), swatch(run), swatch(run, 1), shown(name), marked(mark)));

const comparison = ({ headings: names, rows }) => !rows.length ? [] : [
  element("h2", {}, "Comparison"),
  wide("Comparison of the runs", element("table", {}, headings(["run", ...names]), element("tbody", {}, ...rows.map(comparedRun)))),
  soft("Bits a byte and validation loss are the last ones; training loss is the mean of the last tenth of the records.",
    rows.length > 1 ? " The best run is the first." : ""),
];

const comparedRun = (row) => {
  const name = namedRun(row, marked(row.mark), row.is_best ? element("span", { class: "good" }, " ★ best") : null);
  const cells = row.cells.map((text) => element("td", {}, shown(text)));
  if (row.reason) cells.at(-1).append(element("div", { class: "soft" }, shown(row.reason)));
  return element("tr", { class: row.is_best ? "best" : null }, element("th", { scope: "row" }, name), ...cells);
};

const events = (all) => !all.length ? [] : [
  element("h2", {}, "What the guard did"),
  ...all.flatMap((run) => [
    element("h3", {}, namedRun(run)),
    run.earlier ? soft(`${number(run.earlier)} earlier ones are in metrics.jsonl.`) : null,
    steps(run.items, "events"),
  ].filter(Boolean)),
];

const samples = (all) => !all.length ? [] : [
  element("h2", {}, "Samples"),
  soft("The same seed and prompt at every step; the newest is the first."),
  ...all.map((run, i) => folded(run, i === 0, steps([...run.items].reverse(), "samples"))),
];

const picture = ({ title, note, source }) => element("figure", { class: "picture" }, element("h3", {}, shown(title)),
  element("img", { src: source, alt: `${shown(title)}. ${shown(note)}` }), note ? element("figcaption", { class: "soft" }, shown(note)) : null);

const pictures = (all) => !all.length ? [] : [
  element("h2", {}, "Results"), element("div", { class: "charts" }, ...all.map(picture))];

const cells = (label, table, shares = []) => wide(label, element("table", { class: "cells" }, headings(table.headings),
  element("tbody", {}, ...table.rows.map((row, i) => element("tr", {}, ...row.map((text, column) =>
    element("td", {}, column === 1 && shares[i] ? share(shares[i]) : null, shown(text))))))));

const share = (value) => svg("svg", { class: "share", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
  svg("rect", { width: 100 * value, height: 10 }));

const profiles = (all) => !all.length ? [] : [
  element("h2", {}, "Where the time went"),
  ...all.map((profile, i) => element("details", { "data-key": profile.name, open: i === 0 },
    element("summary", {}, shown(profile.name)), ...profile.summary.map((line) => element("p", {}, shown(line))),
    cells("Stages", profile.stages, profile.shares), ...profile.notes.map((note) => soft(shown(note))),
    profile.operators.rows.length ? element("details", {}, element("summary", {}, `Operators in ${shown(profile.traced)}`),
      cells("Operators", profile.operators),
      soft("Open profile_trace.json.gz of the run's folder at ui.perfetto.dev to see them one by one.")) : null)),
];

const made = (all) => !all.length ? [] : [
  element("h2", {}, "How the runs were made"),
  ...all.map((run) => folded(run, all.length === 1, element("dl", {},
    element("dt", {}, "folder"), element("dd", {}, shown(run.folder)),
    ...run.starts.flatMap(({ label, text, command }) => [element("dt", {}, label),
      element("dd", {}, shown(text), element("br"), element("code", {}, shown(command)))]),
    element("dt", {}, "settings"), element("dd", {}, element("code", {}, shown(run.settings)))))),
];

const missing = (all) => !all.length ? [] : [element("details", {},
  element("summary", { class: "soft" }, `Not shown: ${all.length}`), ...all.map((text) => soft(shown(text))))];

/** By the section's name: from its content to elements. */
export const SECTIONS = { waiting, notes, now, runs, comparison, events, samples, pictures, profiles, made, missing };
