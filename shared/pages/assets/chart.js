// Line charts: several series, log axes, smoothing, gaps, tens of thousands of points. With chart.css beside base.css:
//
//   const chart = new Chart({ title: "Loss", unit: "nats a token", xLabel: "step" });    // or other DEFAULTS
//   page.append(chart.element);
//   const loss = chart.addSeries("training", { look: 0, smoothing: false });
//   loss.append([1, 2], [10.1, null]);                            // or one; what is no number is a gap
//   loss.set(xs, ys);                                             // all anew, as after a rollback
//   chart.set({ xLog: false, yLog: true, smoothing: 0.9 });
//   chart.setMarks([{ x: 120, label: "rolled back" }]);           // vertical lines, named in the readout
//
// It is drawn once a frame, however much has changed. Names may be any text. chart_controls.js sets several charts.
import { Series } from "./chart_data.js";
import { dot, drawAxes, drawLines, drawMarks, findRanges, freshContext, layOut, lookOf } from "./chart_draw.js";
import { formatNumber } from "./chart_scale.js";
import { fillTable, legendButton, readout, summary } from "./chart_text.js";
import { element } from "./dom.js";

const DEFAULTS = { title: "", unit: "", xLabel: "", height: 220, xLog: false, yLog: false, smoothing: 0,
  formatX: formatNumber, formatY: formatNumber };
let charts = 0;

export class Chart {
  /** @param {Partial<typeof DEFAULTS>} options */
  constructor(options) {
    Object.assign(this, { options: { ...DEFAULTS }, series: [], shown: [], marks: [], looks: 0, plot: null });
    Object.assign(this, { zoom: null, cursor: null, drag: null, pointer: 0 }); // xs; the mouse's pixels
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
      pointerleave: (event) => this.leave(event) }, this.canvas, this.overlay);
    this.readout = element("output", { class: "soft chart-readout", "aria-live": "off" });
    this.summary = element("p", { class: "visually-hidden", id });
    this.table = element("details", { class: "soft", toggle: () => this.redraw() },
      element("summary", {}, "Values as a table"),
      element("div", { class: "wide chart-table", tabindex: 0, role: "region" }));
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

  /** `look` numbers color and dashes: the next of thirty, if left out. @returns {Series} */
  addSeries(name, { look = this.looks, smoothing = true } = {}) {
    this.looks = look + 1;
    const series = new Series(name, { look, smoothing, onChange: () => this.redraw() });
    this.series.push(series);
    this.showLegend();
    return series;
  }

  showLegend() {
    this.isLegendOld = true;
    this.redraw();
  }

  drawLegend() {
    const buttons = this.series.map((series) => legendButton(series, lookOf(series.look), () => this.redraw()));
    this.legend.replaceChildren(...(buttons.length > 1 ? buttons : []));
    this.isLegendOld = false;
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
    if (this.isLegendOld) this.drawLegend();
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
    this.moveTo(pixel === null ? null : this.nearest(this.plot.x.value(pixel)));
  }

  leave({ pointerType }) {
    if (pointerType === "mouse" && this.drag === null) this.pointAt(null);
  }

  moveTo(x) {
    this.cursor = x;
    if (this.plot) this.showCursor();
  }

  /** The x of the nearest point that is shown and passes; null where there is none. */
  nearest(wanted, passes = () => true) {
    const [low, high] = this.ranges.x;
    const around = this.shown.flatMap((series) => series.xsAround(wanted));
    const xs = around.filter((x) => x >= low && x <= high && passes(x));
    return xs.length ? xs.reduce((best, x) => Math.abs(x - wanted) < Math.abs(best - wanted) ? x : best) : null;
  }

  onKey(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { left, right, x } = this.plot;
    const cursor = this.cursor ?? this.ranges.x[0];
    const at = x.pixel(cursor);
    const tenth = (right - left) / 10;
    const go = (pixel, sign) => {
      const wanted = pixel === at ? cursor : x.value(pixel); // exactly the cursor
      this.moveTo(this.nearest(wanted, (other) => sign * (other - cursor) > 0) ?? cursor);
    };
    const keys = {
      ArrowLeft: () => go(at, -1),
      ArrowRight: () => go(at, 1),
      PageDown: () => go(at - tenth, -1),
      PageUp: () => go(at + tenth, 1),
      Home: () => this.pointAt(left),
      End: () => this.pointAt(right),
      "+": () => this.zoomToPixels(at - (at - left) / 2, at + (right - at) / 2),
      "-": () => this.zoomToPixels(2 * left - at, 2 * right - at),
      0: () => this.zoomTo(null),
      Escape: () => this.zoomTo(null),
    };
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
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
    const [low, high] = findRanges(this.shown, this.options).x;
    const range = [Math.max(low, this.plot.x.value(from)), Math.min(high, this.plot.x.value(to))];
    if (range[0] <= low && range[1] >= high) this.zoomTo(null);
    else if (range[1] - range[0] > 1e-9 * Math.abs(range[1])) this.zoomTo(range);
  }

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
    const shownX = cursor ?? this.nearest(this.ranges.x[1]) ?? this.ranges.x[1];
    const at = Math.round(plot.x.pixel(shownX)) + 0.5;
    const reach = Math.abs(plot.x.value(at + 4) - shownX);
    const marks = this.marks.filter(({ x }) => Math.abs(x - shownX) <= reach);
    const text = this.shown.length ? readout(this.shown, shownX, marks, this.options) : "No values yet.";
    if (this.readout.textContent !== text) this.readout.textContent = text;
    if (cursor === null) return;
    context.stroke(new Path2D(`M${at} ${plot.top}V${plot.bottom}`));
    for (const series of this.shown) {
      const point = series.at(cursor);
      context.fillStyle = color(lookOf(series.look).color);
      if (point) dot(context, plot.x.pixel(point.x), plot.y.pixel(point.smooth), 3.5);
    }
  }
}
