// How a model was trained: curves, samples along the way, data, settings.
import { readAddress, writeAddress } from "./address.js";
import { Chart } from "./chart.js";
import { chartControls } from "./chart_controls.js";
import { formatDuration, formatNumber } from "./chart_scale.js";
import { element, grouped, readable } from "./dom.js";
import { card, facts } from "./model_facts.js";

const CHARTS = [
  { title: "Loss", unit: "nats per token", height: 280, lines: { loss: "training", validation_loss: "validation" } },
  { title: "Bits per byte", unit: "of the validation text", lines: { bits_per_byte: "bits" } },
  { title: "Learning rate", lines: { learning_rate: "rate" } },
  { title: "Throughput", unit: "tokens per second", lines: { tokens_per_second: "tokens" } },
  { title: "Gradient norm", unit: "before clipping", lines: { grad_norm: "norm" } },
];
const VALIDATION = ["validation_loss", "bits_per_byte"];

/** A heading and what follows it; nothing where there are no items. */
const section = (title, items, ...content) => items.length ? [element("h2", {}, title), ...content] : [];

const chart = ({ lines, ...options }, curves, events, view) => {
  const made = new Chart({ ...options, xLabel: "step", ...view });
  for (const [key, name] of Object.entries(lines).filter(([line]) => curves[line])) {
    made.addSeries(name, { smoothing: !VALIDATION.includes(key) }).set(curves[key].steps, curves[key].values);
  }
  made.setMarks(events.map(({ step, text }) => ({ x: step, label: text })));
  return made;
};

/** What the address says of the charts' controls; anything else counts as nothing. */
const readView = () => {
  const { xLog, yLog, smoothing } = readAddress() ?? {};
  const inRange = typeof smoothing === "number" && smoothing >= 0 && smoothing <= 0.99;
  return { xLog: xLog === true, yLog: yLog === true, smoothing: inRange ? smoothing : 0 };
};

const curveSection = ({ curves, events }) => {
  const view = readView();
  const charts = CHARTS.filter(({ lines }) => Object.keys(lines).some((key) => curves[key]))
    .map((plan) => chart(plan, curves, events, view));
  return section("Training curves", charts, chartControls(() => charts, view, writeAddress),
    element("div", { class: "charts" }, ...charts.map(({ element: figure }) => figure)));
};

const dates = new Intl.DateTimeFormat(undefined, { dateStyle: "long", timeStyle: "short" });
const day = (time) => time && dates.format(new Date(time));

const bytes = (size) => {
  const [unit, name] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [0, "bytes"]].find(([least]) => size >= least);
  return `${formatNumber(Number((size / (unit || 1)).toPrecision(3)))} ${name}`;
};

const nats = (value) => value === null ? null : `${value.toPrecision(4)} nats per token`;

const code = ({ git, ownlm_version, torch_version }) => {
  const revision = git ? `, revision ${readable(git.revision).slice(0, 12)}${git.dirty ? " with changes" : ""}` : "";
  return `ownlm ${readable(ownlm_version ?? "?")}${revision}, torch ${readable(torch_version ?? "?")}`;
};

const machine = ({ device, cpu, cpus, processes }) =>
  [readable(device), `${readable(cpu)}, ${cpus ?? "?"} CPUs`, processes > 1 ? `${processes} processes` : ""]
    .filter(Boolean).join("; ");

const resultCard = ({ best_validation_loss: best, ...record }) => card("The run", facts([
  ["Steps", `${grouped(record.steps)}, of ${grouped(record.tokens)} tokens in all`],
  ["Training loss", nats(record.loss)],
  ["Validation loss", nats(record.validation_loss)],
  ["Best", best && `${nats(best.value)}, at step ${grouped(best.step)}`],
  ["Bits per byte", record.bits_per_byte === null ? null : record.bits_per_byte.toPrecision(4)],
  ["Started", day(record.started)],
  ["Saved", day(record.saved)],
  ["Duration", formatDuration(record.seconds) + (record.starts > 1 ? `, started ${grouped(record.starts)} times` : "")],
  ["Machine", record.machine && machine(record.machine)],
  ["Code", code({ ...record, git: record.machine?.git })],
]));

const sources = ({ sources: named, num_sources }) => {
  const texts = named.map(({ name, bytes: size, documents }) =>
    element("li", {}, `${readable(name)} (${bytes(size)}, ${grouped(documents)} documents)`));
  const rest = num_sources - named.length;
  return element("ul", {}, ...texts, rest > 0 ? element("li", {}, `${grouped(rest)} more`) : null);
};

const tokenData = (title, data) => [element("h3", {}, title), facts([
  ["Tokens", grouped(data.tokens)],
  ["Documents", grouped(data.documents)],
  ["Text", `${bytes(data.bytes)}, ${formatNumber(data.bytes / data.tokens)} bytes per token`],
])];

const dataCard = ({ data: { training, validation } }) => {
  const isHeldOut = JSON.stringify(validation?.sources) === JSON.stringify(training.sources);
  return card("Data", ...tokenData("Training", training), sources(training),
    ...(validation ? tokenData("Validation", validation) : []),
    validation && (isHeldOut ? element("p", { class: "soft" }, "Held out of the same texts.") : sources(validation)));
};

const sample = ({ step, text }, prompt) => {
  const opening = text.startsWith(prompt) ? prompt : "";
  return element("li", {}, element("span", { class: "soft" }, `step ${grouped(step)}`),
    element("div", { class: "text", dir: "auto" }, opening && element("mark", {}, readable(opening)),
      readable(text.slice(opening.length))));
};

const sampleSection = ({ samples, sample_prompt }) => section("Samples along the way", samples,
  element("p", { class: "soft" }, "What the model wrote at these steps, from the same prompt, with the same seed."),
  element("ol", { class: "samples" }, ...samples.map((one) => sample(one, sample_prompt))));

const eventSection = ({ events, num_events }) => section("Steps that went wrong", events,
  element("ol", { class: "samples" }, ...events.map((one) => sample(one, ""))),
  num_events > events.length ? element("p", { class: "soft" }, `${grouped(num_events)} in all`) : null);

const settingsSection = ({ settings }) => {
  const value = (setting) => setting === null ? "default" : [setting].flat().join(", ");
  const rows = Object.entries(settings).map(([name, setting]) => element("tr", {},
    element("th", { scope: "row", class: "mono" }, readable(name)), element("td", {}, readable(value(setting)))));
  return element("details", {}, element("summary", {}, "Settings that decide the result"),
    element("table", {}, element("tbody", {}, ...rows)));
};

/** The sections of what /training says. @returns {HTMLElement[]} */
export const trainingSections = (record) => [
  ...curveSection(record), ...sampleSection(record), ...eventSection(record), element("h2", {}, "Training"),
  element("div", { class: "cards" }, resultCard(record), dataCard(record)), settingsSection(record),
].filter(Boolean);
