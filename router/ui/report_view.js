// One comparison: its settings, a table of policies by metrics, and curves over the rate.

import { card, facts, field, h, select, table } from "./dom.js";
import { counted, number, percent, seconds, usd } from "./format.js";
import { ratechart } from "./ratechart.js";

export const VERSION = 3;

const thousand = (value) => usd(value === null ? null : value * 1000);

/** [measure, name, form, which is better]. */
const MEASURES = [
  ["attainment", "SLO attainment", percent, "high"],
  ["goodput_per_s", "Goodput /s", number, "high"],
  ["ttft_s_p50", "TTFT p50", seconds, "low"],
  ["ttft_s_p95", "TTFT p95", seconds, "low"],
  ["tpot_s_p95", "TPOT p95", seconds, "low"],
  ["e2e_s_p95", "E2E p95", seconds, "low"],
  ["cost_usd_per_request", "Cost of 1,000", thousand, "low"],
  ["quality_mean", "Quality", number, "high"],
  ["timed_out_before_decoding_share", "Timed out before decoding", percent, "low"],
  ["out_of_budget_before_decoding_share", "Out of budget before decoding", percent, "low"],
];

/** The parts of the page that show a report. */
export function reportView(report, name) {
  const { policies, rates_per_s: rates, attainment_target: target } = report;
  const at = select("rate", rates.map((rate) => [String(rate), `${number(rate)} requests/s`]), String(rates[rates.length - 1]));
  const shown = h("div", { id: "cells" });
  const fill = () => shown.replaceChildren(cellTable(report, Number(at.value)));
  at.addEventListener("change", fill);
  fill();
  const of = (measure) => policies.map((policy) => ({
    name: policy,
    points: rates.map((rate) => [rate, report.cells.find((cell) => cell.policy === policy && cell.rate_per_s === rate)?.measures[measure] ?? null]),
  }));
  const charts = [
    ratechart("SLO attainment over the rate", of("attainment"), { form: (value) => percent(value, 0), top: 1, bottom: lowest(report), target: [target, `capacity is read at ${percent(target, 0)}`] }),
    ratechart("Goodput over the rate", of("goodput_per_s"), { form: number }),
    ratechart("TTFT, p95, over the rate", of("ttft_s_p95"), { form: seconds }),
    ratechart("Cost of 1,000 requests over the rate", of("cost_usd_per_request"), { form: thousand }),
  ];
  return [
    card(null, h("h2", { tabindex: -1 }, name), about(report)),
    card("Policies and metrics", h("div", { class: "fields" }, field("Rate", at)), h("p", { class: "soft small" }, `Mean over ${counted(report.seeds.length || 1, "seed")} ± half of the 95 % interval. The best in each column is in bold.`), shown),
    h("div", { class: "grid wide" }, charts.map((chart) => h("section", { class: "card" }, chart.node))),
    capacityCard(report),
  ];
}

/** Where the scale of attainment begins: at a round share below all that was measured. */
function lowest(report) {
  const least = Math.min(1, ...report.cells.map((cell) => cell.measures.attainment?.mean ?? 1));
  return Math.max(0, Math.floor(least * 10 - 0.5) / 10);
}

function about(report) {
  const header = report.workload?.header ?? {};
  return facts([
    ["Workload", [header.source, header.requests && counted(header.requests, "request")].filter(Boolean).join(", ") || "—"],
    ["Scenario", report.scenario],
    ["Instances", report.fleet ? String(report.fleet.length) : report.url],
    ["Seeds", report.seeds.join(", ")],
    ["Baseline", report.baseline],
    ["Made by", report.command ? h("code", null, report.command) : null],
    ["Complete", report.complete ? null : "no: the comparison ended early"],
    ["Warning", report.warning],
  ]);
}

function cellTable(report, rate) {
  const cells = report.policies.map((policy) => report.cells.find((cell) => cell.policy === policy && cell.rate_per_s === rate)).filter(Boolean);
  const used = MEASURES.filter(([measure]) => cells.some((cell) => cell.measures[measure]?.mean !== null && cell.measures[measure] !== undefined));
  const best = new Map(used.map(([measure, , , better]) => {
    const means = cells.map((cell) => cell.measures[measure]?.mean).filter((mean) => mean !== null && mean !== undefined);
    const differ = means.some((mean) => mean !== means[0]);
    return [measure, differ ? (better === "high" ? Math.max(...means) : Math.min(...means)) : null];
  }));
  const rows = cells.map((cell) => [cell.policy, ...used.map(([measure, , form]) => interval(cell.measures[measure], form, best.get(measure)))]);
  return table([{ name: "Policy" }, ...used.map(([, name]) => ({ name, num: true }))], rows, { label: `Policies at ${number(rate)} requests a second` });
}

function interval(value, form, best) {
  if (!value || value.mean === null) return "—";
  return h(value.mean === best ? "strong" : "span", null, form(value.mean), value.half_width === null ? null : h("small", null, `± ${form(value.half_width)}`));
}

function capacityCard({ capacity, attainment_target: target }) {
  const rows = capacity.map((each) => [each.policy, rateRange(each), each.ratio?.mean ? `×${number(each.ratio.mean)}` : "—"]);
  return card("Capacity", h("p", { class: "soft small" }, `Requests a second at which ${percent(target, 0)} still meet their SLOs.`),
    table([{ name: "Policy" }, { name: "Requests /s" }, { name: "Over the baseline", num: true }], rows, { label: "Capacity" }));
}

function rateRange({ bound, low_per_s: low, high_per_s: high, rate_per_s: rate }) {
  if (rate?.mean !== null && rate?.mean !== undefined) return `${number(rate.mean)}${rate.half_width === null ? "" : ` ± ${number(rate.half_width)}`}`;
  if (bound === "below") return `below ${number(high)}`;
  if (bound === "at_least") return `at least ${number(low)}`;
  if (low === null && high === null) return "—";
  return high === null ? `between ${number(low)} and at least the highest rate, by seed` : `between ${number(low ?? 0)} and ${number(high)}`;
}

