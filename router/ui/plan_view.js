// One plan: the drawing of its cluster, and a table of the ranked placements.

import { card, facts, h, table } from "./dom.js";
import { count, counted, number, percent, ratio, seconds, usd } from "./format.js";

export const VERSION = 1;

/** The parts of the page that show a plan. `picture`: the address of its drawing, or null. */
export function planView(plan, name, picture) {
  const batch = !("plans" in plan); // of `headway plan --batch`
  return [
    card(null, h("h2", { tabindex: -1 }, name), facts(batch ? aboutBatch(plan) : about(plan))),
    picture && card("The best plan", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The best plan, drawn" },
      h("img", { src: picture, class: "drawing", alt: `The cluster with the groups of the best plan: ${summary(batch ? plan.groups : plan.plans[0].groups).join("; ")}.` }))),
    batch ? card("Groups", batchGroups(plan)) : card("Ranked plans", h("p", { class: "soft small" }, "95 % of other draws of the requests lie in the interval."), ranked(plan)),
  ].filter(Boolean);
}

function about(plan) {
  const [[measure, bound]] = Object.entries(plan.bound);
  const form = { attainment: percent, multiple: ratio, usd_per_hour: usd }[measure] ?? number;
  return [
    ["Objective", plan.objective],
    ["Policy", plan.policy],
    ["Cluster", plan.cluster.pools.map(({ gpu, gpus }) => `${count(gpus)} × ${gpu}`).join(", ")],
    ["Workload", plan.workload.source],
    ["Target", plan.objective === "attainment" ? null : percent(plan.target)],
    ["Bound", bound === null ? null : `${form(bound)} (no placement is better)`],
  ];
}

function aboutBatch(plan) {
  return [
    ["Model", plan.model],
    ["Cluster", `${count(plan.gpus)} × ${plan.gpu}`],
    ["Batch", `${counted(plan.prompts, "prompt")} of ${counted(plan.tokens, "token")}`],
    ["Prefilled in", seconds(plan.makespan_s)],
    ["Bound", `${seconds(plan.bound_s)} (no groups need less)`],
  ];
}

function batchGroups({ groups }) {
  const rows = groups.map(({ tensor, prefill_s, tokens }, at) => [String(at + 1), count(tensor), count(tokens.length), count(Math.max(0, ...tokens)), seconds(prefill_s)]);
  return table(["Group", "Tensor degree", "Prompts", "Longest prompt, tokens", "Prefill"].map((name, at) => ({ name, num: at > 0 })), rows, { label: "Groups" });
}

function ranked(plan) {
  const load = plan.objective === "throughput";
  const rows = plan.plans.map((each, at) => row(String(at + 1), each));
  if (plan.present) rows.push(row("present", plan.present));
  for (const each of plan.what_if) rows.push("infeasible" in each ? [each.change, "—", "—", "—", "—", ...(load ? ["—"] : []), h("span", { class: "long" }, each.infeasible)] : row(each.change, each));
  const columns = [{ name: "Plan" }, { name: "SLO attainment", num: true }, { name: "TTFT p95", num: true }, { name: "GPUs", num: true }, { name: "USD /h", num: true },
    ...(load ? [{ name: "Load", num: true }] : []), { name: "Groups" }];
  return table(columns, rows, { label: "Ranked plans" });

  function row(name, each) {
    return [
      name,
      h("span", null, percent(each.attainment), h("small", null, `${percent(each.low)} to ${percent(each.high)}`)),
      seconds(each.ttft_s_p95), count(each.gpus), usd(each.usd_per_hour),
      ...(load ? [ratio(each.multiple)] : []),
      h("span", { class: "long lines" }, summary(each.groups ?? []).map((text) => h("span", null, text))),
    ];
  }
}

/** Equal groups counted: `2 × llama-3.1-8b fp8 on 2 l4 (TP 2 × PP 1)`. */
function summary(groups) {
  const counts = new Map();
  for (const text of groups.map(inWords)) counts.set(text, (counts.get(text) ?? 0) + 1);
  return [...counts].map(([text, times]) => `${times} × ${text}`);
}

function inWords({ models, weights, gpu, gpus, tensor, pipeline, stages }) {
  const name = `${models.join(", ")} ${weights}`;
  if (stages) return `${name} on ${stages.map((stage) => `${stage.gpus.length} ${stage.gpu}: ${stage.layers} layers`).join(", ")}`;
  return `${name} on ${gpus.length} ${gpu} (TP ${tensor} × PP ${pipeline})`;
}
