// The sections of the page except for the curves: from what they show to elements.
import { element, grouped, readable } from "./dom.js";
import { namedRun, swatch } from "./looks.js";
import { svg } from "./svg.js";

const soft = (...children) => element("p", { class: "soft" }, ...children);

/** A heading and what is below it; nothing where there is nothing. */
const titled = (title, all, show) => all.length ? [element("h2", {}, title), ...show(all)].filter(Boolean) : [];

const steps = (items, name) => element("dl", { class: name }, ...items.flatMap(([step, text]) =>
  [element("dt", {}, `step ${grouped(step)}`), element("dd", { class: "text" }, readable(text))]));

/** A table whose first cells name the rows. `cell` adds to a cell what is no text. */
const table = (label, names, rows, cell = () => {}) => {
  const cells = (texts, row) => texts.map((text, column) => {
    const made = element("td", {}, readable(text));
    cell(made, row, column);
    return made;
  });
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, element("table", {},
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, readable(name))))),
    element("tbody", {}, ...rows.map(([first, ...others], row) =>
      element("tr", {}, element("th", { scope: "row" }, first), ...cells(others, row))))));
};

const marked = (mark) => mark ? element("span", { class: "warn" }, ` ◆ ${mark}`) : null;

const folded = (run, isOpen, ...children) =>
  element("details", { "data-key": run.run, open: isOpen }, element("summary", {}, namedRun(run)), ...children);

const waiting = (paths) => paths.map((path) => element("p", {}, `Waiting for a run in ${readable(path)}.`));

const notes = ({ cautions, studies }) => [
  ...cautions.map((text) => element("p", { class: "warn" }, readable(text))),
  ...studies.map((text) => element("p", {}, readable(text))),
];

const now = (all) => all.map((run) => element("div", { class: "card now", "data-key": run.run },
  namedRun(run), ` ${run.state}`,
  run.share === null ? null
    : element("progress", { max: 1, value: run.share, "aria-label": `Progress of ${readable(run.name)}` }),
  element("dl", { class: "figures" },
    ...run.figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))))));

const runs = (all) => all.length < 2 ? [] : all.map((run) => element("label", { "data-key": run.run },
  element("input", { type: "checkbox", checked: true, "data-run": run.run }), swatch(run.run), swatch(run.run, 1),
  readable(run.name), marked(run.mark)));

const comparison = ({ headings, rows }) => titled("Comparison", rows, () => [
  table("Comparison of the runs", ["run", ...headings], rows.map((run) => [
    namedRun(run, marked(run.mark), run.is_best ? element("span", { class: "good" }, " ★ best") : null), ...run.cells,
  ]), (cell, row, column) => {
    if (column < headings.length - 1) return;
    cell.className = "state";
    if (rows[row].reason) cell.append(element("div", { class: "soft" }, readable(rows[row].reason)));
  }),
  soft("Bits per byte and validation loss are the last ones; training loss is the mean of the last tenth of the records.",
    rows.length > 1 ? " The best run is the first." : ""),
]);

const events = (all) => titled("What the guard did", all, () => all.flatMap((run) => [
  element("h3", {}, namedRun(run)),
  run.earlier ? soft(`${grouped(run.earlier)} earlier ones are in metrics.jsonl.`) : null,
  steps(run.items),
]));

const samples = (all) => titled("Samples", all, () => [
  soft("The same seed and prompt at every step; the newest is the first."),
  ...all.map((run, i) => folded(run, i === 0, steps([...run.items].reverse(), "samples"))),
]);

const picture = ({ title, note, source }) => element("figure", {}, element("h3", {}, readable(title)),
  element("img", { src: source, alt: `${readable(title)}. ${readable(note)}` }),
  element("figcaption", { class: "soft" }, readable(note)));

const pictures = (all) => titled("Results", all, () => [element("div", { class: "charts" }, ...all.map(picture))]);

const share = (value) => svg("svg", { class: "share", viewBox: "0 0 100 8", "aria-hidden": "true" },
  svg("rect", { width: 100 * value, height: 8 }));

const cells = (label, { headings, rows }, shares = []) => table(label, headings,
  rows.map(([first, ...others]) => [readable(first), ...others]), (cell, row, column) => {
    if (column === 0 && shares[row]) cell.prepend(share(shares[row]));
  });

const profiles = (all) => titled("Where the time went", all, () => all.map((profile, i) =>
  element("details", { "data-key": profile.name, open: i === 0 }, element("summary", {}, readable(profile.name)),
    ...profile.summary.map((line) => element("p", {}, readable(line))),
    cells("Stages", profile.stages, profile.shares), ...profile.notes.map((note) => soft(readable(note))),
    profile.operators.rows.length ? element("details", {},
      element("summary", {}, `Operators in ${readable(profile.traced)}`), cells("Operators", profile.operators),
      soft("Open profile_trace.json.gz of the run's folder at ui.perfetto.dev to see them one by one.")) : null)));

const made = (all) => titled("How the runs were made", all, () => all.map((run) => folded(run, all.length === 1,
  element("dl", {},
    element("dt", {}, "folder"), element("dd", {}, readable(run.folder)),
    ...run.starts.flatMap(({ label, text, command }) => [element("dt", {}, label),
      element("dd", {}, readable(text), element("br"), element("code", {}, readable(command)))]),
    element("dt", {}, "settings"), element("dd", {}, element("code", {}, readable(run.settings)))))));

const missing = (all) => all.length ? [element("details", {},
  element("summary", { class: "soft" }, `Not shown: ${all.length}`), ...all.map((text) => soft(readable(text))))] : [];

/** By the section's name: from its content to elements. */
export const SECTIONS = { waiting, notes, now, runs, comparison, events, samples, pictures, profiles, made, missing };
