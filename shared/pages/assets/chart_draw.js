// Draws on a canvas. Of a line, at most four points for each column of pixels: what all of its points would look like.
import { makeScale, widened } from "./chart_scale.js";

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [16, 5]];

/** Color (a CSS variable) and dash pattern number `look`: thirty pairs. */
export const lookOf = (look) => ({ color: `--series-${(look % 6) + 1}`, dash: DASHES[look % DASHES.length] });

/** The context of a canvas, cleared, in CSS pixels, as sharp as the screen. */
export const freshContext = (canvas, width, height) => {
  const ratio = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  context.scale(ratio, ratio);
  Object.assign(context, { lineJoin: "round", lineCap: "round", font: "12px system-ui, sans-serif" });
  return context;
};

const spread = (range, value) => {
  if (value < range[0]) range[0] = value;
  if (value > range[1]) range[1] = value;
};

/** The ranges to draw, that of x no more than `zoom`, and how many points a logarithmic axis leaves out. */
export const findRanges = (shown, { xLog, yLog }, zoom = null) => {
  const [xs, ys] = [[Infinity, -Infinity], [Infinity, -Infinity]];
  let left = 0;
  for (const series of shown) {
    const from = xLog ? series.indexAfter(0) : 0;
    left += from;
    if (from < series.length) [series.xs[from], series.xs[series.length - 1]].forEach((x) => spread(xs, x));
  }
  const x = zoom ?? (xs[0] < xs[1] ? xs : widened(xLog, ...xs, 0));
  for (const series of shown) {
    const to = series.indexAfter(x[1]);
    for (let i = series.indexFrom(x[0]); i < to; i += 1) {
      if (yLog && series.raw[i] <= 0) left += 1;
      else if (!Number.isNaN(series.raw[i])) {
        spread(ys, series.raw[i]);
        if (!yLog || series.smooth[i] > 0) spread(ys, series.smooth[i]);
      }
    }
  }
  return { x, y: widened(yLog, ...ys, 0.06), left };
};

/** Scales, ticks and the edges of the plot in CSS pixels. */
export const layOut = (context, width, height, ranges, { xLog, yLog, formatX, formatY }) => {
  const widest = (values, format) => Math.max(24, ...values.map((value) => context.measureText(format(value)).width));
  const [top, bottom] = [10, height - 24];
  const y = makeScale(yLog, ranges.y, [bottom, top]);
  const yTicks = y.ticks((bottom - top) / 34);
  const [left, right] = [Math.ceil(widest(yTicks, formatY)) + 10, width - 12];
  const x = makeScale(xLog, ranges.x, [left, right]);
  return { x, y, xTicks: x.ticks((right - left) / (widest(ranges.x, formatX) + 24)), yTicks, left, right, top, bottom };
};

export const drawAxes = (context, plot, { formatX, formatY }, color) => {
  Object.assign(context, { strokeStyle: color("--line"), fillStyle: color("--soft") });
  Object.assign(context, { textAlign: "right", textBaseline: "middle" });
  context.beginPath();
  for (const tick of plot.yTicks) {
    const at = Math.round(plot.y.pixel(tick)) + 0.5;
    context.moveTo(plot.left, at);
    context.lineTo(plot.right, at);
    context.fillText(formatY(tick), plot.left - 8, at);
  }
  Object.assign(context, { textAlign: "center", textBaseline: "top" });
  let free = plot.left - 30;
  for (const tick of plot.xTicks) {
    const at = Math.round(plot.x.pixel(tick)) + 0.5;
    context.moveTo(at, plot.bottom);
    context.lineTo(at, plot.bottom + 4);
    const half = context.measureText(formatX(tick)).width / 2;
    const middle = Math.min(at, plot.right + 10 - half);
    if (middle - half < free) continue;
    free = middle + half + 8;
    context.fillText(formatX(tick), middle, plot.bottom + 8);
  }
  context.moveTo(plot.left, plot.bottom + 0.5);
  context.lineTo(plot.right, plot.bottom + 0.5);
  context.stroke();
};

/** The indices of the points to draw: those within the range of x, and one beyond each end. */
const within = (series, [low, high]) =>
  [Math.max(0, series.indexFrom(low) - 1), Math.min(series.length, series.indexAfter(high) + 1)];

const trace = (context, { x, y, yLog }, series, ys, [from, to]) => {
  let [column, first, lowest, highest, last] = [NaN, -1, 0, 0, 0];
  let isLine = false;
  const put = (i, beside = 0) => {
    context[isLine ? "lineTo" : "moveTo"](x.pixel(series.xs[i]) + beside, y.pixel(ys[i]));
    isLine = true;
  };
  const endColumn = () => {
    if (first < 0) return;
    put(first);
    put(Math.min(lowest, highest));
    put(Math.max(lowest, highest));
    put(last, 0.01); // makes a lone point a dot
    first = -1;
  };
  for (let i = from; i < to; i += 1) {
    const pixel = x.pixel(series.xs[i]);
    if (Number.isNaN(ys[i]) || (yLog && ys[i] <= 0) || !Number.isFinite(pixel)) {
      endColumn();
      isLine = false;
      continue;
    }
    if (first >= 0 && Math.floor(pixel) !== column) endColumn();
    if (first < 0) [column, first, lowest, highest] = [Math.floor(pixel), i, i, i];
    if (ys[i] < ys[lowest]) lowest = i;
    if (ys[i] > ys[highest]) highest = i;
    last = i;
  }
  endColumn();
};

/** A dot in the context's `fillStyle`; none where x or y is NaN. */
export const dot = (context, x, y, radius) => {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
};

/** All lines; where they are smoothed, the raw values are faint below them. Points far from one another get dots. */
export const drawLines = (context, shown, plot, ranges, { yLog, smoothing }, color) => {
  context.save();
  context.beginPath();
  context.rect(plot.left - 3, plot.top - 4, plot.right - plot.left + 7, plot.bottom - plot.top + 8);
  context.clip();
  for (const key of smoothing ? ["raw", "smooth"] : ["smooth"]) {
    for (const series of shown) {
      const look = lookOf(series.look);
      const range = within(series, ranges.x);
      context.strokeStyle = context.fillStyle = color(look.color);
      context.globalAlpha = key === "raw" ? 0.28 : 1;
      context.lineWidth = key === "raw" ? 1 : 1.75;
      context.setLineDash(key === "raw" ? [] : look.dash);
      context.beginPath();
      trace(context, { ...plot, yLog }, series, series[key], range);
      context.stroke();
      if (key === "raw" || range[1] - range[0] > (plot.right - plot.left) / 14) continue;
      for (let i = range[0]; i < range[1]; i += 1) {
        const y = series.smooth[i];
        if (!yLog || y > 0) dot(context, plot.x.pixel(series.xs[i]), plot.y.pixel(y), 2.5);
      }
    }
  }
  context.restore();
};

/** Vertical lines with a triangle at the top, where something happened. */
export const drawMarks = (context, marks, plot, color) => {
  context.strokeStyle = context.fillStyle = color("--soft");
  context.setLineDash([1, 4]);
  for (const at of marks.map((mark) => plot.x.pixel(mark.x)).filter((x) => x >= plot.left && x <= plot.right)) {
    context.stroke(new Path2D(`M${at} ${plot.bottom}V${plot.top}`));
    context.fill(new Path2D(`M${at - 4} ${plot.top - 6}h8l-4 6z`));
  }
};
