// The page about runs. Its data is within the file that `report` writes, or comes from the server of `watch`.
import { readAddress, writeAddress } from "./address.js";
import { Chart } from "./chart.js";
import { chartControls } from "./chart_controls.js";
import { AXES, Curves } from "./curves.js";
import { byId, element } from "./dom.js";
import { follow } from "./follow.js";
import { runLook, shown } from "./looks.js";
import { morphChildren } from "./morph.js";
import { SECTIONS } from "./sections.js";

const DEFAULTS = { x: "step", xLog: false, yLog: false, smoothing: 0.6 };

const savedView = () => {
  const view = { ...DEFAULTS, ...readAddress() };
  const smoothing = Math.min(0.99, Math.max(0, Number(view.smoothing) || 0));
  return { x: Object.hasOwn(AXES, view.x) ? view.x : "step", xLog: view.xLog === true, yLog: view.yLog === true, smoothing };
};

const view = savedView();
const curves = new Curves(byId("curves"), view);
curves.axis = view.x;

const setAbout = ({ title, written, figures }) => {
  const name = shown(title);
  document.title = `${name} – training`;
  byId("title").textContent = name;
  if (written) byId("status").textContent = `Written ${written} by python -m trainer report; the figures are files in ${shown(figures)}/ too.`;
};

const setPositions = (all) => {
  const charts = all.map(({ title, note, curves: lines }) => {
    const chart = new Chart({ title, unit: "nats a token", xLabel: "position (tokens)", xLog: true });
    for (const { run, name, steps, values } of lines) chart.addSeries(name, { look: runLook(run) }).append(steps, values);
    return element("div", {}, chart.element, element("p", { class: "soft" }, note));
  });
  byId("positions").replaceChildren(...(charts.length ? [element("h2", {}, "Loss by position"), element("div", { class: "charts" }, ...charts)] : []));
};

const OTHERS = { about: setAbout, positions: setPositions };

const apply = ({ isWhole, sections = {}, points = {} }) => {
  if (isWhole) curves.clear();
  for (const [name, content] of Object.entries(sections)) {
    if (Object.hasOwn(OTHERS, name)) OTHERS[name](content);
    else if (Object.hasOwn(SECTIONS, name)) morphChildren(byId(name), SECTIONS[name](content));
  }
  if (sections.runs) curves.setRuns(sections.runs);
  if (sections.events) curves.setEvents(sections.events);
  curves.add(points);
};

const choose = (change) => {
  Object.assign(view, change);
  writeAddress(view);
};

const axis = element("select", { id: "axis", change: (event) => {
  choose({ x: event.target.value });
  curves.setAxis(view.x);
} }, ...Object.keys(AXES).map((name) => element("option", { value: name, selected: name === view.x }, name)));

byId("controls").append(element("label", { for: "axis" }, "x axis "), axis,
  chartControls(() => curves.charts.map(({ chart }) => chart), view, choose));
byId("runs").addEventListener("change", ({ target }) => curves.setVisible(Number(target.dataset.run), target.checked));

const data = byId("data");
if (data) apply(JSON.parse(data.textContent));
else follow("events", apply, (text) => (byId("status").textContent = text));
