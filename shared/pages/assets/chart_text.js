// A chart in words: its legend, readout, summary for screen readers, and its values as a table.
import { element, readable } from "./dom.js";
import { svg } from "./svg.js";

const ROWS = 40;

/** A button that shows or hides a series. */
export const legendButton = (series, { color, dash }, onChange) => {
  const line = svg("line", { x1: 1, x2: 33, y1: 5, y2: 5, "stroke-width": 2, "stroke-dasharray": dash.join(" ") });
  line.style.stroke = `var(${color})`;
  const click = () => {
    series.visible = !series.visible;
    button.ariaPressed = series.visible;
    onChange();
  };
  const button = element("button", { type: "button", click, "aria-pressed": series.visible ? "true" : "false" },
    svg("svg", { width: 34, height: 10, "aria-hidden": "true" }, line), readable(series.name));
  return button;
};

/** x, each series' last value there, and what happened there. */
export const readout = (shown, x, marks, { xLabel, formatX, formatY, smoothing }) => {
  const values = shown.map((series) => {
    const point = series.at(x);
    if (!point) return "";
    const raw = smoothing && series.smoothing ? ` (raw ${formatY(point.raw)})` : "";
    const where = point.x === x ? "" : ` at ${formatX(point.x)}`;
    return `${readable(series.name)} ${formatY(point.smooth)}${raw}${where}`;
  });
  const labels = marks.map(({ label }) => readable(label));
  return [`${xLabel} ${formatX(x)}`, ...values, ...labels].filter(Boolean).join(" · ");
};

/** How each series begins and ends. `left`: points without a place on a logarithmic axis. */
export const summary = (shown, { xLabel, formatX, formatY }, left) => {
  const lines = shown.map(({ name, xs, raw, length }) => {
    const values = raw.subarray(0, length);
    const known = (value) => !Number.isNaN(value);
    return `${readable(name)}: ${length} points, ${xLabel} ${formatX(xs[0])} to ${formatX(xs[length - 1])}, ` +
      `from ${formatY(values.find(known))} to ${formatY(values.findLast(known))}.`;
  });
  if (left) lines.push(`${left} points are not above 0: a logarithmic axis has no place for them.`);
  return lines.join(" ") || "No values yet.";
};

/** Fill the last child of a `<details>` element with up to `ROWS` rows, evenly spaced among all xs, both ends too. */
export const fillTable = (details, shown, { title, xLabel, formatX, formatY }) => {
  const xs = [...new Set(shown.flatMap((series) => [...series.xs.subarray(0, series.length)]))].sort((a, b) => a - b);
  const rows = Math.min(ROWS, xs.length);
  const chosen = Array.from({ length: rows }, (_, i) => xs[Math.round((i * (xs.length - 1)) / Math.max(1, rows - 1))]);
  const names = [xLabel || "x", ...shown.map((series) => readable(series.name))];
  const value = (point) => point ? formatY(point.raw) : "";
  const row = (x) => element("tr", {}, element("th", { scope: "row" }, formatX(x)),
    ...shown.map((series) => element("td", { class: "number" }, value(series.at(x)))));
  const table = element("table", {},
    element("caption", {}, "Not smoothed; each value is the last one up to there."),
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...chosen.map(row)));
  details.lastChild.ariaLabel = `${title}: values`;
  details.lastChild.replaceChildren(table);
};
