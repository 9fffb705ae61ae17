// Shared by all charts: title, legend, a drawing that follows its width, a readout, and the figures as a table.

import { h, renew, s, table } from "./dom.js";

const HEIGHT = 190;
const LEFT = 50;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 24;

/** A chart's frame. `draw(svg, area, data)` draws into `area` {left, right, top, bottom, width, height} and returns
 *  `{stops: [x], tell: at => [heading, [[name, value, colour]]], table: [columns, rows], summary}`; it is called again
 *  whenever the width changes, and by `update(data)`. Arrow keys walk over the stops. */
export function frame(title, note, draw, height = HEIGHT) {
  const svg = s("svg", { "aria-hidden": "true", height });
  const readout = h("div", { class: "readout", hidden: true, "aria-live": "polite" });
  const plot = h("div", { class: "plot", tabindex: 0, role: "img" }, svg, readout);
  const legend = h("ul", { class: "legend" });
  const figures = h("div");
  const details = h("details", { ontoggle: () => fillTable() }, h("summary", null, "Show as a table"), figures);
  const node = h("figure", null, h("div", { class: "title" }, h("h3", null, title), legend), note && h("p", { class: "note" }, note), plot, details);
  let data = null;
  let shown = null;
  let at = null;
  let width = 0;

  function redraw() {
    if (width < 60) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const area = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM, width, height };
    shown = draw(svg, area, data);
    plot.setAttribute("aria-label", `${title}. ${shown.summary} Arrow keys read single values; the table below has all.`);
    legend.replaceChildren(...(shown.legend ?? []).map(([name, k, dash]) => h("li", null, swatch(k, dash), name)));
    if (at !== null && at >= shown.stops.length) at = null;
    point();
    fillTable();
  }
  function fillTable() {
    details.hidden = !shown?.table;
    if (details.open && shown?.table) renew(figures, [table(...shown.table, { label: title })]);
  }
  function point() {
    svg.querySelector(".cursor")?.remove();
    readout.hidden = at === null || !shown?.stops.length;
    if (readout.hidden) return;
    const x = shown.stops[at];
    svg.append(s("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: height - BOTTOM }));
    const [heading, values] = shown.tell(at);
    readout.replaceChildren(h("b", null, heading), ...values.map(([name, value, k]) => h("span", null, k && swatch(k), name, h("i", null, value))));
    readout.style.left = x > width / 2 ? "auto" : `${x + 12}px`;
    readout.style.right = x > width / 2 ? `${width - x + 12}px` : "auto";
  }
  const nearest = (x) => shown.stops.reduce((best, stop, each) => (Math.abs(stop - x) < Math.abs(shown.stops[best] - x) ? each : best), 0);
  plot.addEventListener("pointermove", (event) => {
    if (!shown?.stops.length) return;
    at = nearest(event.clientX - plot.getBoundingClientRect().left);
    point();
  });
  const off = () => { at = null; point(); };
  plot.addEventListener("pointerleave", off);
  plot.addEventListener("blur", off);
  plot.addEventListener("keydown", (event) => {
    const last = (shown?.stops.length ?? 0) - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (last < 0 || (!step && event.key !== "Home" && event.key !== "End" && event.key !== "Escape")) return;
    if (event.key !== "Escape") event.preventDefault();
    if (step) at = at === null ? (step > 0 ? 0 : last) : Math.min(last, Math.max(0, at + step));
    else at = { Home: 0, End: last, Escape: null }[event.key];
    point();
  });
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = Math.round(entry.contentRect.width);
    redraw();
  }).observe(plot);
  return { node, update(given) { data = given; redraw(); } };
}

function swatch(k, dash) {
  return s("svg", { class: `swatch k${k}`, viewBox: "0 0 15 9", "aria-hidden": "true" },
    dash === undefined
      ? s("rect", { width: 15, height: 9, rx: 2, fill: "currentColor" })
      : s("line", { x1: 0, x2: 15, y1: 4.5, y2: 4.5, stroke: "currentColor", "stroke-width": 2.5, "stroke-dasharray": dash }));
}

/** Round steps from 0 (or `low`) to at least `high`: at most five. */
export function steps(highest, low = 0) {
  const high = highest > low ? highest : low + 1;
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => power * factor >= rough * 0.999);
  const found = [];
  for (let at = low; ; at += step) {
    found.push(Number(at.toPrecision(12)));
    if (at >= high - step * 1e-6) return found;
  }
}

/** Horizontal rules with their values. */
export function rules(svg, area, ticks, y, form) {
  for (const tick of ticks) {
    svg.append(
      s("line", { class: tick === ticks[0] ? "axis" : "rule", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) }),
      s("text", { x: area.left - 8, y: y(tick) + 4, "text-anchor": "end" }, form(tick)),
    );
  }
}

/** Labels under the chart; `labels`: [[x, text]], thinned so that they do not touch. */
export function below(svg, area, labels) {
  let free = -Infinity;
  for (const [x, text] of labels) {
    const half = text.length * 3.2;
    if (x - half < free || x - half < 0 || x + half > area.width) continue;
    svg.append(s("text", { x, y: area.bottom + 17, "text-anchor": "middle" }, text));
    free = x + half + 12;
  }
}

/** As much of a text as has room in `width`. */
export function cut(text, width) {
  const most = Math.floor(width / 6.6);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

export function nothing(svg, area, text) {
  svg.append(
    s("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }),
    s("text", { x: (area.left + area.right) / 2, y: (area.top + area.bottom) / 2, "text-anchor": "middle" }, text),
  );
  return { stops: [], tell: () => ["", []], table: null, summary: `${text}.` };
}

/** A line's path over gaps: points of null break it; a point alone is a dot. */
export function line(svg, points, k, { dash, width = 2 } = {}) {
  let run = [];
  const end = () => {
    if (run.length === 1) svg.append(s("circle", { class: `k${k}`, cx: run[0][0], cy: run[0][1], r: 2.5, fill: "currentColor" }));
    if (run.length > 1) {
      svg.append(s("polyline", { class: `k${k}`, points: run.map((point) => point.map((value) => value.toFixed(1)).join()).join(" "), fill: "none",
        stroke: "currentColor", "stroke-width": width, "stroke-linejoin": "round", "stroke-linecap": "round", "stroke-dasharray": dash }));
    }
    run = [];
  };
  for (const point of points) {
    if (point[1] === null) end();
    else run.push(point);
  }
  end();
}

