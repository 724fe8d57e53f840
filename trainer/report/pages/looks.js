// How runs look in charts and in texts.
import { lookOf } from "./chart_draw.js";
import { element, readable } from "./dom.js";
import { svg } from "./svg.js";

/**
 * With more runs than colors the dashes differ too; the second curve of a run has its color and other dashes.
 * @param {number} run
 * @param {number} [curve] 0, or 1 for the second one
 * @returns {number} a look of the charts
 */
export const runLook = (run, curve = 0) => (25 * (run % 6) + 6 * ((2 * Math.floor(run / 6) + curve) % 5)) % 30;

/** A short piece of a run's line. */
export const swatch = (run, curve = 0) => {
  const { color, dash } = lookOf(runLook(run, curve));
  const line = svg("line", { x1: 0, x2: 30, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": dash.join(" ") });
  line.style.stroke = `var(${color})`;
  return svg("svg", { class: "swatch", viewBox: "0 0 30 10", "aria-hidden": "true" }, line);
};

/** A run's name with its line before it. */
export const namedRun = ({ run, name }, ...more) => element("span", {}, swatch(run), readable(name), ...more);
