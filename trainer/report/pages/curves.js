// The charts: one for each kind of value, with a line or two for each run, over steps, tokens or time.
import { Chart } from "./chart.js";
import { formatNumber } from "./chart_scale.js";
import { runLook, shown } from "./looks.js";

const clock = (seconds) => {
  const whole = Math.round(seconds);
  const two = (value) => String(value).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
};

/** What the x axis may be: the key of the points that say where a step is, and how a place is written. */
export const AXES = {
  step: { key: null, label: "step", format: formatNumber },
  tokens: { key: "tokens", label: "tokens", format: formatNumber },
  time: { key: "seconds", label: "time", format: clock },
};

const KINDS = [
  { title: "Loss", unit: "nats a token", keys: { loss: "training", validation_loss: "validation" } },
  { title: "Bits a byte", unit: "validation", keys: { bits_per_byte: "" } },
  { title: "Learning rate", keys: { learning_rate: "" } },
  { title: "Gradient norm", keys: { grad_norm: "" } },
  { title: "Throughput", unit: "tokens a second", keys: { tokens_per_second: "" } },
];
const SMOOTHED = new Set(["loss", "grad_norm", "tokens_per_second"]);

export class Curves {
  /** @param {HTMLElement} place where the charts go @param {object} view options of all charts */
  constructor(place, view) {
    Object.assign(this, { place, view, axis: "step", runs: new Map(), points: new Map(), hidden: new Set(), marks: [] });
    this.lines = new Map();
    this.charts = [];
  }

  /** Forget everything: all comes anew. */
  clear() {
    this.points.clear();
    this.setRuns([]);
  }

  /** @param {{run: number, name: string}[]} runs those there are */
  setRuns(runs) {
    if (runs.length === this.runs.size && runs.every(({ run, name }) => this.runs.get(run)?.name === name)) return;
    this.runs = new Map(runs.map((run) => [run.run, run]));
    this.place.classList.toggle("several", runs.length > 1);
    for (const { chart } of this.charts) chart.destroy();
    this.place.replaceChildren();
    this.charts = [];
    this.lines.clear();
    for (const run of this.runs.keys()) for (const key of this.points.get(run)?.keys() ?? []) this.draw(run, key, 0);
    this.showMarks();
  }

  /** @param {Object<string, Object<string, {from: number, steps: number[], values: (number|null)[]}>>} points by run and key */
  add(points) {
    for (const [id, curves] of Object.entries(points)) {
      const run = Number(id);
      if (!this.points.has(run)) this.points.set(run, new Map());
      const known = this.points.get(run);
      for (const [key, { from, steps, values }] of Object.entries(curves)) {
        if (!known.has(key)) known.set(key, { steps: [], values: [] });
        const curve = known.get(key);
        curve.steps.splice(from, Infinity, ...steps);
        curve.values.splice(from, Infinity, ...values);
      }
      if (!this.runs.has(run)) continue;
      for (const [key, { from }] of Object.entries(curves)) this.draw(run, key, from);
      if (AXES[this.axis].key in curves) this.moveRun(run);
    }
  }

  /** Draw a curve; its first `kept` points are drawn already. */
  draw(run, key, kept) {
    const line = this.line(run, key);
    if (!line) return;
    const { steps, values } = this.points.get(run).get(key);
    if (this.axis !== "step" || !kept || kept > line.length) line.set(this.places(run, steps), values);
    else {
      if (kept < line.length) line.cut(line.xs[kept]);
      line.append(steps.slice(kept), values.slice(kept));
    }
  }

  /** The line of a curve, in the chart of its kind; both are made when first needed. */
  line(run, key) {
    const id = `${run} ${key}`;
    if (this.lines.has(id)) return this.lines.get(id);
    const kind = KINDS.findIndex(({ keys }) => key in keys);
    if (kind < 0) return null;
    const curve = Object.keys(KINDS[kind].keys).indexOf(key);
    const name = [this.runs.size > 1 || !KINDS[kind].keys[key] ? this.runs.get(run).name : "", KINDS[kind].keys[key]];
    const line = this.chart(kind).addSeries(name.filter(Boolean).join(" "), { look: runLook(run, curve), smoothing: SMOOTHED.has(key) });
    line.visible = !this.hidden.has(run);
    this.lines.set(id, line);
    return line;
  }

  chart(kind) {
    const there = this.charts.find((each) => each.kind === kind);
    if (there) return there.chart;
    const { title, unit = "" } = KINDS[kind];
    const chart = new Chart({ title, unit, ...this.view, ...this.axisOptions() });
    const next = this.charts.find((each) => each.kind > kind);
    this.place.insertBefore(chart.element, next?.chart.element ?? null);
    this.charts.push({ kind, chart });
    this.charts.sort((one, other) => one.kind - other.kind);
    chart.setMarks(this.placedMarks());
    return chart;
  }

  axisOptions() {
    const { label, format } = AXES[this.axis];
    return { xLabel: label, formatX: format };
  }

  /** Where steps are on the x axis: between two recorded places in proportion. Places never step back. */
  places(run, steps) {
    const { key } = AXES[this.axis];
    if (!key) return steps;
    const known = this.points.get(run)?.get(key);
    if (!known?.steps.length) return steps.map(() => 0);
    let i = 0;
    let last = -Infinity;
    return steps.map((step) => {
      while (i < known.steps.length - 2 && known.steps[i + 1] < step) i += 1;
      const [from, to] = [known.values[i] ?? 0, known.values[i + 1] ?? known.values[i] ?? 0];
      const width = (known.steps[i + 1] ?? known.steps[i]) - known.steps[i];
      const share = width > 0 ? Math.min(1, Math.max(0, (step - known.steps[i]) / width)) : 1;
      last = Math.max(last, from + share * (to - from));
      return last;
    });
  }

  moveRun(run) {
    for (const [key, { steps, values }] of this.points.get(run) ?? []) this.line(run, key)?.set(this.places(run, steps), values);
  }

  /** @param {keyof typeof AXES} axis */
  setAxis(axis) {
    this.axis = axis;
    for (const { chart } of this.charts) chart.set({ ...this.axisOptions(), xLog: this.view.xLog });
    for (const run of this.runs.keys()) this.moveRun(run);
    this.showMarks();
  }

  /** Show or hide a run in all charts. */
  setVisible(run, isVisible) {
    if (isVisible) this.hidden.delete(run);
    else this.hidden.add(run);
    for (const [id, line] of this.lines) if (Number(id.split(" ")[0]) === run) line.visible = isVisible;
    for (const { chart } of this.charts) chart.showLegend();
    this.showMarks();
  }

  /** @param {{run: number, name: string, items: [number, string][]}[]} events of the guard */
  setEvents(events) {
    this.marks = events.flatMap(({ run, name, items }) => items.map(([step, text]) => ({ run, step, label: `${shown(name)}: ${shown(text)}` })));
    this.showMarks();
  }

  showMarks() {
    for (const { chart } of this.charts) chart.setMarks(this.placedMarks());
  }

  placedMarks() {
    return this.marks.filter(({ run }) => !this.hidden.has(run))
      .map(({ run, step, label }) => ({ x: this.places(run, [step])[0], label }));
  }
}
