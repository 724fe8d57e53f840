// The page about runs. Its data is within the file that `report` writes, or comes from the server of `watch`.
import { readAddress, writeAddress } from "./address.js";
import { Chart } from "./chart.js";
import { chartControls } from "./chart_controls.js";
import { AXES, Curves } from "./curves.js";
import { byId, element, readable } from "./dom.js";
import { follow } from "./follow.js";
import { runLook } from "./looks.js";
import { morphChildren } from "./morph.js";
import { SECTIONS } from "./sections.js";

const savedView = () => {
  const { x, xLog, yLog, smoothing = 0.6 } = readAddress() ?? {};
  const weight = Math.min(0.99, Math.max(0, Number(smoothing) || 0));
  return { x: Object.hasOwn(AXES, x) ? x : "step", xLog: xLog === true, yLog: yLog === true, smoothing: weight };
};

const view = savedView();
const curves = new Curves(byId("curves"), view);

const setAbout = ({ title, written, figures }) => {
  byId("title").textContent = readable(title);
  document.title = `${readable(title)} – training`;
  const files = `the figures are files in ${readable(figures ?? "")}/ too`;
  if (written) byId("status").textContent = `Written ${written} by python -m trainer report; ${files}.`;
};

const setPositions = (all) => {
  const charts = all.map(({ title, note, curves: lines }) => {
    const chart = new Chart({ title, unit: "nats per token", xLabel: "position (tokens)", xLog: true });
    for (const { run, name, steps, values } of lines) chart.addSeries(name, { look: runLook(run) }).set(steps, values);
    return element("div", {}, chart.element, element("p", { class: "soft" }, note));
  });
  if (!all.length) return;
  byId("positions").append(element("h2", {}, "Loss by position"), element("div", { class: "charts" }, ...charts));
};

const OTHERS = { about: setAbout, positions: setPositions };

const apply = ({ isWhole, sections = {}, points = {} }) => {
  if (isWhole) curves.points.clear();
  for (const [name, content] of Object.entries(sections)) {
    if (Object.hasOwn(OTHERS, name)) OTHERS[name](content);
    else morphChildren(byId(name), SECTIONS[name](content));
  }
  if (sections.runs) curves.setRuns(sections.runs);
  curves.add(points);
  if (sections.events) curves.setEvents(sections.events);
};

const choose = (change) => writeAddress(Object.assign(view, change));

const axis = element("select", { id: "axis", change: () => {
  choose({ x: axis.value });
  curves.redraw();
} }, ...Object.keys(AXES).map((name) => element("option", { value: name, selected: name === view.x }, name)));

byId("controls").append(element("label", { for: "axis" }, "x axis "), axis,
  chartControls(() => curves.charts.values(), view, choose));
byId("runs").addEventListener("change", ({ target }) => curves.setVisible(Number(target.dataset.run), target.checked));

const data = byId("data");
if (data) apply(JSON.parse(data.textContent));
else follow("events", apply, (text) => (byId("status").textContent = text));
