// The controls of several charts together: logarithmic axes and smoothing.
import { element } from "./dom.js";

const HELP = "In a chart: arrow keys or the pointer for values; + and −, or a drag, to zoom; 0 for all";

/**
 * @param {() => Iterable<import("./chart.js").Chart>} charts those there are at a change
 * @param {{xLog?: boolean, yLog?: boolean, smoothing?: number}} start
 * @param {(view: {xLog: boolean, yLog: boolean, smoothing: number}) => void} [onChange]
 */
export const chartControls = (charts, start, onChange = () => {}) => {
  const view = { xLog: false, yLog: false, smoothing: 0, ...start };
  const change = (part) => {
    Object.assign(view, part);
    for (const chart of charts()) chart.set(part);
    onChange(view);
  };
  const checkbox = (label, name) => element("label", {}, element("input", { type: "checkbox", checked: view[name],
    change: (event) => change({ [name]: event.target.checked }) }), ` ${label}`);
  const shown = element("output", { class: "mono" }, view.smoothing.toFixed(2));
  const slide = (event) => {
    const smoothing = Number(event.target.value);
    shown.textContent = smoothing.toFixed(2);
    change({ smoothing });
  };
  return element("div", { class: "row chart-controls", role: "group", "aria-label": "All charts" },
    checkbox("log x", "xLog"), checkbox("log y", "yLog"), element("label", {}, "smoothing ",
      element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smoothing, input: slide })), shown,
    element("span", { class: "soft" }, HELP));
};
