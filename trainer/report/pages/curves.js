// The charts: one for each kind of value, with a line or two for each run, over steps, tokens or time.
import { readable } from "./dom.js";
import { Chart } from "./chart.js";
import { formatDuration, formatNumber } from "./chart_scale.js";
import { runLook } from "./looks.js";

/** What the x axis may be. `key`: of the curve that has the place of each step. */
export const AXES = {
  step: { format: formatNumber },
  tokens: { key: "tokens", format: formatNumber },
  time: { key: "seconds", format: formatDuration },
};

const KINDS = [
  { title: "Loss", unit: "nats per token", keys: { loss: "training", validation_loss: "validation" } },
  { title: "Bits per byte", unit: "validation", keys: { bits_per_byte: "" } },
  { title: "Learning rate", keys: { learning_rate: "" } },
  { title: "Gradient norm", keys: { grad_norm: "" } },
  { title: "Throughput", unit: "tokens per second", keys: { tokens_per_second: "" } },
];
const SMOOTHED = ["loss", "grad_norm", "tokens_per_second"];

export class Curves {
  /**
   * @param {HTMLElement} place where the charts go
   * @param {{x: keyof typeof AXES, xLog: boolean, yLog: boolean, smoothing: number}} view of all charts; may change
   */
  constructor(place, view) {
    Object.assign(this, { place, view, points: new Map(), hidden: new Set(), marks: [] });
    this.setRuns([]);
  }

  /** @param {{run: number, name: string}[]} runs all there are */
  setRuns(runs) {
    if (runs.length === this.runs?.size && runs.every(({ run, name }) => this.runs.get(run) === name)) return;
    for (const chart of this.charts?.values() ?? []) chart.destroy();
    this.place.replaceChildren();
    this.place.classList.toggle("several", runs.length > 1);
    const names = runs.map(({ run, name }) => [run, name]);
    Object.assign(this, { runs: new Map(names), charts: new Map(), lines: new Map() });
    this.redraw();
  }

  /** @param {Object<string, Object<string, {from: number, steps: number[], values: (number|null)[]}>>} points */
  add(points) {
    for (const [id, curves] of Object.entries(points)) {
      const run = Number(id);
      if (!this.points.has(run)) this.points.set(run, new Map());
      const known = this.points.get(run);
      for (const [key, { from, steps, values }] of Object.entries(curves)) {
        const old = known.get(key) ?? { steps: [], values: [] };
        const after = (name, more) => [...old[name].slice(0, from), ...more];
        known.set(key, { steps: after("steps", steps), values: after("values", values) });
      }
      this.draw(run, AXES[this.view.x].key in curves ? known.keys() : Object.keys(curves));
    }
  }

  redraw() {
    const { x, xLog } = this.view;
    for (const chart of this.charts.values()) chart.set({ xLabel: x, formatX: AXES[x].format, xLog });
    for (const [run, curves] of this.points) this.draw(run, curves.keys());
    this.showMarks();
  }

  draw(run, keys) {
    if (!this.runs.has(run)) return;
    for (const key of keys) {
      const { steps, values } = this.points.get(run).get(key);
      const places = this.places(run, steps);
      this.line(run, key)?.set(places, places.length ? values : []);
    }
  }

  /** The line of a curve in the chart of its kind; both are made when first needed. Some curves have none. */
  line(run, key) {
    const id = `${run} ${key}`;
    const kind = KINDS.find(({ keys }) => key in keys);
    if (!this.lines.has(id) && kind) {
      const part = kind.keys[key];
      const name = this.runs.size > 1 || !part ? `${this.runs.get(run)} ${part}`.trimEnd() : part;
      const look = runLook(run, Object.keys(kind.keys).indexOf(key));
      const line = this.chart(kind).addSeries(name, { look, smoothing: SMOOTHED.includes(key) });
      line.visible = !this.hidden.has(run);
      this.lines.set(id, line);
    }
    return this.lines.get(id);
  }

  chart(kind) {
    if (!this.charts.has(kind)) {
      const { title, unit = "" } = kind;
      const { x, ...options } = this.view;
      this.charts.set(kind, new Chart({ title, unit, xLabel: x, formatX: AXES[x].format, ...options }));
      this.showMarks();
      this.place.replaceChildren(...KINDS.flatMap((each) => this.charts.get(each)?.element ?? []));
    }
    return this.charts.get(kind);
  }

  /** Where steps are on the x axis: between two recorded places in proportion; none where none is recorded. */
  places(run, steps) {
    const { key } = AXES[this.view.x];
    if (!key) return steps;
    const known = this.points.get(run)?.get(key);
    if (!known?.steps.length) return [];
    let [i, last] = [0, -Infinity];
    return steps.map((step) => {
      while (i < known.steps.length - 2 && known.steps[i + 1] < step) i += 1;
      const [from, to = from] = known.values.slice(i, i + 2);
      const [low, high = low] = known.steps.slice(i, i + 2);
      const share = high > low ? Math.min(1, Math.max(0, (step - low) / (high - low))) : 1;
      last = Math.max(last, from + share * (to - from)); // a chart's xs may not step back
      return last;
    });
  }

  /** Show or hide a run in all charts. */
  setVisible(run, isVisible) {
    this.hidden[isVisible ? "delete" : "add"](run);
    for (const [id, line] of this.lines) if (Number.parseInt(id, 10) === run) line.visible = isVisible;
    for (const chart of this.charts.values()) chart.showLegend();
    this.showMarks();
  }

  /** @param {{run: number, name: string, items: [number, string][]}[]} events of the guard */
  setEvents(events) {
    this.marks = events.flatMap(({ run, name, items }) =>
      items.map(([step, text]) => ({ run, step, label: `${readable(name)}: ${readable(text)}` })));
    this.showMarks();
  }

  showMarks() {
    const marks = this.marks.filter(({ run }) => !this.hidden.has(run))
      .flatMap(({ run, step, label }) => this.places(run, [step]).map((x) => ({ x, label })));
    for (const chart of this.charts.values()) chart.setMarks(marks);
  }
}
