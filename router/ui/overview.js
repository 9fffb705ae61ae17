// The records of a time window.

import { admin, poll } from "./api.js";
import { card, choices, h, head, renew, table, tiles } from "./dom.js";
import { count, number, percent, ratio, seconds, short, usd } from "./format.js";
import { histogram } from "./histogram.js";
import { lines, stacks } from "./timechart.js";

const WINDOWS = [["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["86400", "24 h"], ["604800", "7 d"]];
const BUCKETS = 60;
const REFRESH_MS = 5000;
const RATE_S = 5; // a rate over less time says nothing

/** Groups of outcomes: name for people, colour, and what is in them. */
const ANSWERED = [["ok", "ok", 2], ["late", "late", 3], ["cut_short", "cut short", 5], ["stopped", "stopped by the client", 6]];
const BEFORE = [
  ["timed_out", "timed out", 4, "expired in the queue or before the first token"],
  ["out_of_budget", "out of budget", 5, "refused: the budget is spent, or cannot pay the prompt"],
  ["rejected", "rejected", 3, "refused: invalid, no key, rate, SLO out of reach, overload, no instance"],
  ["failed", "failed", 7, "every attempt failed upstream"],
  ["left", "client left", 6, "the client went before the first token"],
];
const PREDICTED = [["ttft", "TTFT", 1], ["e2e", "E2E", 2], ["output_tokens", "Output tokens", 5]];

export async function show(main, { query, signal }) {
  let window_s = WINDOWS.some(([value]) => value === query.get("window")) ? query.get("window") : "3600";
  const error = h("p", { class: "error", role: "alert" });
  const note = h("p", { class: "soft small", role: "status" }, "Looking …");
  const figures = h("div", { id: "totals" });
  const outcomes = h("div");
  const spend = h("div", { class: "grid" });
  const charts = build();
  const drawn = h("div", { hidden: true },
    h("div", { class: "grid wide" }, charts.time.map((chart) => h("section", { class: "card" }, chart.node))),
    card("Latency", h("div", { class: "grid three" }, Object.values(charts.latency).map((chart) => chart.node))),
    card("Predictions: actual over predicted values",
      h("p", { class: "soft small" }, "1 is right, 2 means twice as much as predicted. The line is the median, the band holds 80 % of the requests."),
      h("div", { class: "grid three" }, charts.prediction.map((chart) => chart.node))));
  const pick = (value) => {
    window_s = value;
    history.replaceState(null, "", `#/overview?window=${value}`);
    note.textContent = "Looking …"; // the figures below are of the window before
    note.hidden = false;
    again();
  };
  main.append(
    head("Overview", "SLO attainment, latency and cost of recorded requests.", choices("Window", WINDOWS, window_s, pick)),
    error, note, figures, drawn, outcomes, spend,
  );
  const update = async () => {
    const requested = window_s;
    const answer = await admin(`overview?window_s=${requested}&buckets=${BUCKETS}`, signal);
    if (signal.aborted || requested !== window_s) return;
    const sampled = answer.sampled_share < 1;
    note.textContent = sampled ? `Estimated from ${percent(answer.sampled_share, 0)} of ${count(answer.requests)} requests.` : answer.requests ? "" : "No request was recorded in this window.";
    note.hidden = !note.textContent;
    renew(figures, [totals(answer)]);
    [...charts.time, ...charts.prediction].forEach((chart) => chart.update(answer.buckets));
    for (const [name, chart] of Object.entries(charts.latency)) chart.update(answer.latency[name]);
    drawn.hidden = false;
    renew(outcomes, [outcomeTable(answer.totals)]);
    renew(spend, [["policy", "Policy"], ["model", "Model"], ["key", "Key"]].map(([by, name]) => spendTable(name, answer.spend[by], answer.totals)));
  };
  const again = () => update().catch((failure) => { if (!("status" in failure)) throw failure; });
  await poll(signal, REFRESH_MS, error, update);
}

function build() {
  const rate = (of) => (bucket) => (bucket.seconds < RATE_S ? null : of(bucket));
  const per = (amount) => rate((bucket) => bucket[amount] / bucket.seconds);
  const group = ([key, name, k]) => ({ name, k, of: (bucket) => bucket.groups[key] ?? 0 });
  return {
    time: [
      lines("SLO attainment", { note: "Offered requests that met their SLO; refused requests count as missed.", form: (value) => percent(value, 0), top: 1, series: [{ name: "attainment", k: 2, of: (bucket) => bucket.attainment }] }),
      lines("Goodput", { note: "Requests a second that met their SLO, beside all requests.", form: number, series: [{ name: "all requests /s", k: 6, of: per("requests") }, { name: "goodput /s", k: 2, of: rate((bucket) => (bucket.offered ? bucket.goodput_per_s : null)) }] }),
      stacks("Answered", { note: "Requests that decoded, by outcome.", form: short, series: ANSWERED.map(group) }),
      stacks("Ended before decoding", { note: "Requests without any token, by reason.", form: short, series: BEFORE.map(group) }),
      lines("Time to the first token", { form: seconds, series: [["p99", 4], ["p95", 3], ["p50", 1]].map(([name, k]) => ({ name, k, of: (bucket) => bucket.ttft_s[name] })) }),
      lines("Tokens", { note: "Tokens a second: prompts sent and output received.", form: short, series: [{ name: "prompt /s", k: 6, of: per("prompt_tokens") }, { name: "output /s", k: 1, of: per("output_tokens") }] }),
    ],
    latency: { ttft_s: histogram("TTFT: to the first token", 1), tpot_s: histogram("TPOT: for each further token", 2), e2e_s: histogram("E2E: to the end", 5) },
    prediction: PREDICTED.map(([key, name, k]) => lines(name, { form: ratio, target: [1, "as predicted"], series: [{ name: "median", k, of: (bucket) => bucket.prediction[key].p50 }], band: [(bucket) => bucket.prediction[key].p10, (bucket) => bucket.prediction[key].p90] })),
  };
}

function totals({ totals: all, latency, prediction }) {
  const before = BEFORE.reduce((sum, [key]) => sum + (all.groups[key] ?? 0), 0);
  return tiles([
    { name: "Requests", value: count(all.requests) },
    { name: "SLO attainment", value: percent(all.attainment), small: all.offered ? `of ${short(all.offered)}` : "no SLO" },
    { name: "Goodput", value: `${number(all.goodput_per_s)} /s` },
    { name: "Ended before decoding", value: count(before), small: all.requests ? percent(before / all.requests) : "" },
    { name: "TTFT, median", value: seconds(latency.ttft_s.p50), small: `p95 ${seconds(latency.ttft_s.p95)}` },
    { name: "TTFT over predicted", value: ratio(prediction.ttft.p50), small: "median" },
    { name: "Output tokens", value: short(all.output_tokens) },
    { name: "Spent", value: usd(all.cost_usd) },
  ]);
}

function outcomeTable(all) {
  const rows = (groups, when) => groups.map(([key, name, , about]) => [name, count(all.groups[key] ?? 0), all.requests ? percent((all.groups[key] ?? 0) / all.requests) : "—", when, about ?? ""]);
  const single = Object.entries(all.outcomes).map(([name, n]) => `${name} ${count(n)}`).join(", ");
  return card("Outcomes", table([{ name: "Ended" }, { name: "Requests", num: true }, { name: "Share", num: true }, { name: "When" }, { name: "" }],
    [...rows(ANSWERED, "after the first token"), ...rows(BEFORE, "before decoding")], { label: "Outcomes" }),
    single && h("p", { class: "soft small" }, `As recorded: ${single}.`));
}

function spendTable(name, { names, others }, all) {
  const row = (label, each) => [label, count(each.requests), short(each.output_tokens), usd(each.cost_usd), all.cost_usd ? percent(each.cost_usd / all.cost_usd, 0) : "—"];
  const rows = [...names.map((each) => row(each.name || "(none)", each)), ...(others ? [row("all others", others)] : [])];
  return card(`Spent, by ${name.toLowerCase()}`, rows.length
    ? table([{ name }, { name: "Requests", num: true }, { name: "Output tokens", num: true }, { name: "Spent", num: true }, { name: "Share", num: true }], rows, { label: `Spent, by ${name.toLowerCase()}` })
    : h("p", { class: "empty" }, "Nothing yet."));
}
