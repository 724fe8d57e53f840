// Line charts: several series, logarithmic axes, smoothing, gaps, tens of thousands of points.
//
//   import { Chart } from "./chart.js";                          // and chart.css beside base.css
//   const chart = new Chart({ title: "Loss", unit: "nats a token", xLabel: "step", height: 220 });
//   page.append(chart.element);                                   // a <figure>
//   const loss = chart.addSeries("training");                     // with the next of thirty looks (color and dashes)
//   chart.addSeries("validation", { look: 1, smoothing: false });  // a look of your choice; drawn as it is
//   loss.append(1, 10.8);
//   loss.append([2, 3], [10.1, null]);                          // null, NaN, Infinity, text: a gap; xs never step back
//   loss.cut(2);                                                  // after a rollback: drops the points at x >= 2
//   loss.set(xs, ys);                                             // all anew, for another x axis
//   chart.removeSeries(loss);
//   chart.set({ xLog: false, yLog: true, smoothing: 0.9 });       // any option, at any time
//   chart.setMarks([{ x: 120, label: "rolled back to 100" }]);    // vertical lines, named in the readout
//   chart.destroy();
//
// formatX and formatY are options as well. However many points come, the chart is drawn once a frame. Keyboard: arrows,
// Home, End, Page Up and Page Down move the readout, + and - zoom at it, 0 or Escape shows all. Mouse: a drag zooms, a
// double click shows all. Names may be any text. Controls of several charts together: chart_controls.js.
import { Series } from "./chart_data.js";
import { dot, drawAxes, drawLines, drawMarks, findRanges, freshContext, layOut, lookOf } from "./chart_draw.js";
import { formatNumber } from "./chart_scale.js";
import { fillTable, legendButton, readout, summary } from "./chart_text.js";
import { element } from "./dom.js";

const DEFAULTS = { title: "", unit: "", xLabel: "", height: 220, xLog: false, yLog: false, smoothing: 0,
  formatX: formatNumber, formatY: formatNumber };
const HINT = "Point at the chart, or focus it and press an arrow key. Drag, + and − zoom.";
let charts = 0;

export class Chart {
  /** @param {Partial<typeof DEFAULTS>} options */
  constructor(options) {
    Object.assign(this, { options: { ...DEFAULTS }, series: [], shown: [], marks: [], looks: 0 });
    Object.assign(this, { zoom: null, cursor: null, drag: null, pointer: 0, plot: null });
    this.build();
    this.set(options);
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.area);
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.theme.onchange = () => this.redraw();
  }

  build() {
    const id = `chart-${(charts += 1)}`;
    this.caption = element("figcaption");
    this.legend = element("div", { class: "row chart-legend" });
    this.canvas = element("canvas");
    this.overlay = element("canvas");
    this.area = element("div", { class: "chart-area", tabindex: 0, role: "application", "aria-describedby": id,
      "aria-roledescription": "line chart", keydown: (event) => this.onKey(event), dblclick: () => this.zoomTo(null),
      pointermove: (event) => this.pointAt(event.offsetX), pointerdown: (event) => this.startDrag(event),
      pointerup: (event) => this.endDrag(event.offsetX), pointercancel: () => this.endDrag(this.drag),
      pointerleave: () => this.drag === null && this.moveTo(null) }, this.canvas, this.overlay);
    this.readout = element("output", { class: "soft chart-readout" });
    this.summary = element("p", { class: "visually-hidden", id });
    this.table = element("details", { class: "soft", toggle: () => this.redraw() },
      element("summary", {}, "Values as a table"));
    this.element = element("figure", { class: "chart" },
      this.caption, this.legend, this.area, this.readout, this.summary, this.table);
  }

  /** Change options; the others stay. */
  set(options) {
    const { title, unit, xLabel, height } = Object.assign(this.options, options);
    this.caption.replaceChildren(title, " ", element("span", { class: "soft" }, unit));
    this.area.setAttribute("aria-label", xLabel ? `${title} by ${xLabel}` : title);
    this.area.style.height = `${height}px`;
    if ("xLog" in options) this.zoom = null;
    this.redraw();
  }

  /** @param {string} name @param {{look?: number, smoothing?: boolean}} [options] @returns {Series} */
  addSeries(name, { look = this.looks, smoothing = true } = {}) {
    this.looks = look + 1;
    const series = new Series(name, { look, smoothing, onChange: () => this.redraw() });
    this.series.push(series);
    this.showLegend();
    return series;
  }

  /** @param {Series} series */
  removeSeries(series) {
    this.series = this.series.filter((other) => other !== series);
    this.showLegend();
  }

  showLegend() {
    const buttons = this.series.map((series) => legendButton(series, lookOf(series.look), () => this.redraw()));
    this.legend.replaceChildren(...(buttons.length > 1 ? buttons : []));
    this.redraw();
  }

  /** @param {{x: number, label: string}[]} marks */
  setMarks(marks) {
    this.marks = marks;
    this.redraw();
  }

  destroy() {
    this.observer.disconnect();
    this.theme.onchange = null;
    cancelAnimationFrame(this.frame);
  }

  redraw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      if (this.area.clientWidth) this.draw();
    });
  }

  draw() {
    const { area, options, series, color } = this;
    series.forEach((one) => one.smoothBy(one.smoothing ? options.smoothing : 0));
    this.shown = series.filter((one) => one.visible && one.length);
    this.ranges = findRanges(this.shown, options, this.zoom);
    const context = freshContext(this.canvas, area.clientWidth, area.clientHeight);
    this.plot = layOut(context, area.clientWidth, area.clientHeight, this.ranges, options);
    drawAxes(context, this.plot, options, color);
    drawMarks(context, this.marks, this.plot, color);
    drawLines(context, this.shown, this.plot, this.ranges, options, color);
    this.summary.textContent = summary(this.shown, options, this.ranges.left);
    if (this.table.open) fillTable(this.table, this.shown, options);
    this.showCursor();
  }

  /** The value of a CSS variable as a color that a canvas takes. */
  color = (name) => {
    this.caption.style.outlineColor = `var(${name})`;
    return getComputedStyle(this.caption).outlineColor;
  };

  pointAt(pixel) {
    if (!this.plot) return;
    this.readout.ariaLive = "off";
    this.pointer = pixel;
    this.moveTo(this.nearest(this.plot.x.value(pixel)));
  }

  moveTo(x) {
    this.cursor = x;
    if (this.plot) this.showCursor();
  }

  /** The x of the point nearest to `wanted` of those that are shown and pass; null where there is none. */
  nearest(wanted, passes = () => true) {
    const [low, high] = this.ranges.x;
    const around = this.shown.flatMap((series) => series.xsAround(wanted));
    const xs = around.filter((x) => x >= low && x <= high && passes(x));
    return xs.length ? xs.reduce((best, x) => Math.abs(x - wanted) < Math.abs(best - wanted) ? x : best) : null;
  }

  onKey(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { left, right, x } = this.plot;
    const at = this.cursor === null ? left : x.pixel(this.cursor);
    const step = (passes) => this.cursor === null ? this.pointAt(left)
      : this.moveTo(this.nearest(this.cursor, passes) ?? this.cursor);
    const keys = {
      ArrowLeft: () => step((other) => other < this.cursor),
      ArrowRight: () => step((other) => other > this.cursor),
      PageDown: () => this.pointAt(Math.max(left, at - (right - left) / 10)),
      PageUp: () => this.pointAt(Math.min(right, at + (right - left) / 10)),
      Home: () => this.pointAt(left),
      End: () => this.pointAt(right),
      "+": () => this.zoomToPixels(at - (at - left) / 2, at + (right - at) / 2),
      "-": () => this.zoomToPixels(2 * left - at, 2 * right - at),
      0: () => this.zoomTo(null),
      Escape: () => this.zoomTo(null),
    };
    const action = Object.hasOwn(keys, event.key) && keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
    this.readout.ariaLive = "polite";
  }

  startDrag(event) {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    this.area.setPointerCapture(event.pointerId);
    this.drag = event.offsetX;
  }

  endDrag(pixel) {
    const from = this.drag;
    this.drag = null;
    if (from !== null && Math.abs(pixel - from) > 6) this.zoomToPixels(Math.min(from, pixel), Math.max(from, pixel));
  }

  zoomToPixels(from, to) {
    const [low, high] = findRanges(this.shown, this.options, null).x;
    const range = [Math.max(low, this.plot.x.value(from)), Math.min(high, this.plot.x.value(to))];
    if (range[0] <= low && range[1] >= high) this.zoomTo(null);
    else if (range[1] - range[0] > 1e-9 * Math.abs(range[1])) this.zoomTo(range);
  }

  /** @param {[number, number]|null} range of x; null shows all */
  zoomTo(range) {
    this.zoom = range;
    this.redraw();
  }

  showCursor() {
    const { area, plot, cursor, drag, color } = this;
    const context = freshContext(this.overlay, area.clientWidth, area.clientHeight);
    context.strokeStyle = context.fillStyle = color("--soft");
    context.globalAlpha = 0.2;
    if (drag !== null) context.fillRect(drag, plot.top, this.pointer - drag, plot.bottom - plot.top);
    context.globalAlpha = 1;
    if (cursor === null) {
      this.readout.textContent = this.shown.length ? HINT : "No values yet.";
      return;
    }
    const at = Math.round(plot.x.pixel(cursor)) + 0.5;
    context.stroke(new Path2D(`M${at} ${plot.top}V${plot.bottom}`));
    for (const series of this.shown) {
      const point = series.at(cursor);
      if (!point) continue;
      context.fillStyle = color(lookOf(series.look).color);
      dot(context, plot.x.pixel(point.x), plot.y.pixel(point.smooth), 3.5);
    }
    const reach = Math.abs(plot.x.value(at + 4) - cursor);
    const marks = this.marks.filter(({ x }) => Math.abs(x - cursor) <= reach);
    this.readout.textContent = readout(this.shown, cursor, marks, this.options);
  }
}
