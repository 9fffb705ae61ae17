// The fleet now: fetched once a second while the page is visible.

import { admin, poll } from "./api.js";
import { card, facts, h, head, renew, s, say, table, tiles } from "./dom.js";
import { count, number, percent, seconds, usd } from "./format.js";

const HISTORY_S = 120;
const RECENT_S = 60;

const COLUMNS = [
  { name: "Instance" },
  { name: "Health" },
  { name: "Serves" },
  { name: "In flight", num: true, title: "Unfinished requests that the router (all replicas) has sent there" },
  { name: "Last 2 min" },
  { name: "Running / waiting", num: true, title: "As the engine reports" },
  { name: "KV memory", num: true, title: "Share of the engine's KV blocks in use" },
  { name: "TTFT, last minute", num: true, title: "Mean time to the first token: actual and predicted" },
  { name: "TTFT within p95", num: true, title: "Share of first tokens within the predicted 95 % quantile; close to 95 % is right" },
];

export async function show(main, { signal }) {
  const error = h("p", { class: "error", role: "alert" });
  const figures = h("div");
  const instances = table(COLUMNS, [], { label: "Instances" });
  instances.id = "instances";
  const body = instances.querySelector("tbody");
  const empty = h("p", { class: "empty", hidden: true }, "The fleet has no instance. Add one to the fleet file, or with POST /admin/instances.");
  const rows = new Map();
  const models = h("div");
  const replicas = h("div");
  const targets = h("div");
  main.append(
    head("Fleet", "What each instance does now, and how accurate predictions are."),
    error,
    figures,
    card("Instances", instances, empty),
    replicas,
    targets,
    models,
  );
  let recent = new Map();
  let turn = 0;
  let modelsShown = "";
  let targetsShown = "";
  await poll(signal, 1000, error, async () => {
    const fleet = await admin("fleet", signal);
    try {
      if (turn % 3 === 0) await look();
      turn += 1;
    } finally {
      if (!signal.aborted) update(fleet); // also while the database does not answer
    }
  });

  async function look() {
    const { instances } = await admin(`overview/instances?window_s=${RECENT_S}`, signal);
    recent = new Map(instances.map((each) => [each.instance, each]));
    const held = JSON.stringify((await admin("targets", signal)).targets);
    if (held === targetsShown) return;
    targetsShown = held;
    renew(targets, targetTable(JSON.parse(held)));
  }

  function update(fleet) {
    summary(figures, fleet, recent);
    for (const instance of fleet.instances) {
      if (!rows.has(instance.name)) rows.set(instance.name, row());
      rows.get(instance.name).update(instance, recent.get(instance.name));
    }
    const names = fleet.instances.map((each) => each.name);
    for (const name of [...rows.keys()]) if (!names.includes(name)) rows.delete(name);
    const nodes = names.map((name) => rows.get(name).node);
    if (nodes.length !== body.childElementCount || nodes.some((node, at) => body.children[at] !== node)) body.replaceChildren(...nodes);
    empty.hidden = names.length > 0;
    const served = JSON.stringify([fleet.models, fleet.instances.map((each) => each.serves)]);
    if (served !== modelsShown) {
      modelsShown = served;
      renew(models, [modelTable(fleet)]);
    }
    renew(replicas, sharing(fleet));
  }
}

function summary(node, fleet, recent) {
  const healthy = fleet.instances.filter((each) => each.healthy && !each.draining).length;
  const inFlight = fleet.instances.reduce((sum, each) => sum + total(each), 0);
  const tokens = [...recent.values()].reduce((sum, each) => sum + each.output_tokens, 0) / RECENT_S;
  const finished = [...recent.values()].reduce((sum, each) => sum + each.requests, 0) / RECENT_S;
  const values = [
    ["Healthy instances", `${healthy} of ${fleet.instances.length}`],
    ["Requests in flight", count(inFlight)],
    ["Waiting in the queue", count(fleet.queue_depth)],
    ["Served, last minute", `${number(finished)} /s`],
    ["Output tokens, last minute", `${number(tokens)} /s`],
  ];
  if (fleet.draining) values.push(["This replica", "draining"]);
  if (node.querySelectorAll("dd").length !== values.length) node.replaceChildren(tiles(values.map(([name, value]) => ({ name, value }))));
  node.querySelectorAll("dd").forEach((each, at) => say(each, values[at][1]));
}

/** One instance's row; its parts are changed in place. */
function row() {
  const name = h("span");
  const about = h("small");
  const health = h("span", { class: "badge" });
  const serves = h("span", { class: "long" });
  const flight = h("span");
  const elsewhere = h("small");
  const spark = s("svg", { class: "spark", viewBox: `0 0 ${HISTORY_S} 24`, preserveAspectRatio: "none", role: "img" });
  const load = h("td", { class: "num" });
  const kv = h("span");
  const fill = h("span", { class: "bar-fill" });
  const ttft = h("span");
  const predicted = h("small");
  const holds = h("td", { class: "num" });
  const past = [];
  const node = h("tr", null,
    h("th", { scope: "row" }, h("span", { class: "name" }, name, about)), h("td", null, health), h("td", null, serves), h("td", { class: "num" }, flight, elsewhere), h("td", null, spark), load,
    h("td", { class: "num" }, h("span", { class: "meter" }, kv, h("span", { class: "bar-track", "aria-hidden": "true" }, fill))),
    h("td", { class: "num" }, ttft, predicted), holds);
  return {
    node,
    update(instance, lately) {
      say(name, instance.name);
      say(about, [instance.hardware, instance.kind].filter(Boolean).join(" · "));
      const [state, tone] = instance.draining ? ["draining", "warn"] : instance.healthy ? ["healthy", "good"] : ["not healthy", "bad"];
      say(health, state);
      health.className = `badge ${tone}`;
      health.title = instance.ejections ? `ejected ${instance.ejections} times` : "";
      say(serves, Object.keys(instance.serves).join(", "));
      say(flight, instance.max_concurrency ? `${total(instance)} of ${instance.max_concurrency}` : String(total(instance)));
      const others = instance.elsewhere?.in_flight ?? 0;
      say(elsewhere, others ? `${others} by other replicas` : "");
      const now = performance.now() / 1000;
      past.push([now, total(instance)]);
      while (past[0][0] < now - HISTORY_S) past.shift();
      draw(spark, past, instance.max_concurrency);
      say(load, instance.running === null ? "—" : `${instance.running} / ${instance.waiting ?? "—"}`);
      say(kv, percent(instance.kv_usage, 0));
      fill.style.width = `${Math.min(100, (instance.kv_usage ?? 0) * 100)}%`;
      fill.classList.toggle("high", (instance.kv_usage ?? 0) > 0.85);
      say(ttft, seconds(lately?.ttft_s));
      say(predicted, lately?.predicted_ttft_s ? `predicted ${seconds(lately.predicted_ttft_s)}` : "");
      say(holds, percent(lately?.within_p95 ?? instance.prediction?.ttft_within_p95, 0));
    },
  };
}

/** In flight of this replica and of the others. */
const total = (instance) => instance.in_flight + (instance.elsewhere?.in_flight ?? 0);

function draw(svg, past, most) {
  const highest = Math.max(...past.map(([, value]) => value));
  const top = Math.max(4, highest, most && most <= 8 ? most : 0);
  const [now, last] = past[past.length - 1];
  const points = past.map(([at, value]) => `${(HISTORY_S - now + at).toFixed(1)},${(23 - (value / top) * 21).toFixed(1)}`);
  svg.setAttribute("aria-label", `In flight over the last two minutes: now ${last}, at most ${highest}`);
  svg.replaceChildren(s("polyline", { points: points.join(" "), fill: "none", stroke: "currentColor", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" }));
}

const quality = (value) => value?.toFixed(3);

/** What `cost` holds in each scope that it has served. */
function targetTable(scopes) {
  const rows = scopes.filter((each) => each.prices).map(({ key, attainment, prices }) => [
    key ?? "Fleet",
    percent(attainment),
    percent(prices.attainment),
    quality(prices.wished_quality),
    quality(prices.reachable_quality),
    quality(prices.reached_quality),
    usd(prices.usual_answer_usd),
    usd(prices.miss_usd),
    usd(prices.quality_usd / 100),
  ]);
  if (!rows.length) return [];
  return [card("Targets of cost", table([
    { name: "Scope" },
    { name: "Attainment target", num: true },
    { name: "reached", num: true, title: "Over recent requests with an SLO" },
    { name: "Quality target", num: true, title: "The target; by default what is reachable, less half of quality_slack" },
    { name: "reachable", num: true, title: "If spend did not count, while attainment is kept" },
    { name: "reached", num: true, title: "Predicted, over recent requests" },
    { name: "Usual answer", num: true },
    { name: "Price of a miss", num: true },
    { name: "0.01 of quality", num: true },
  ], rows, { label: "Targets of cost" }))];
}

function modelTable({ models, instances }) {
  const rows = models.map((model) => [
    h("span", null, model.name, model.aliases?.length ? h("small", null, `also ${model.aliases.join(", ")}`) : null),
    count(instances.filter((each) => model.name in each.serves).length),
    count(model.context_tokens),
    usd(model.price?.input_usd_per_mtok),
    usd(model.price?.output_usd_per_mtok),
    number(model.quality),
    model.slo ? [["ttft_ms", "TTFT"], ["tpot_ms", "TPOT"], ["e2e_ms", "E2E"]].filter(([key]) => model.slo[key]).map(([key, label]) => `${label} ${seconds(model.slo[key] / 1000)}`).join(", ") : "none",
  ]);
  return card("Models", table([{ name: "Model" }, { name: "Instances", num: true }, { name: "Context, tokens", num: true }, { name: "Input, per Mtok", num: true }, { name: "Output, per Mtok", num: true }, { name: "Quality (prior)", num: true }, { name: "SLO by default" }], rows, { label: "Models" }));
}

/** Replicas of the router and the state that they share, where there are several; and what operators changed. */
function sharing({ replicas, state, changes }) {
  const rows = [];
  const add = (name, value) => rows.push([name, value]);
  if (replicas > 1 || state?.shared) {
    add("Replicas of the router", count(replicas));
    if (state) {
      add("Shared state", h("span", { class: `badge ${state.connected ? "good" : "bad"}` }, state.connected ? "connected" : "does not answer: each replica decides alone"));
      add("Exchanges", `${count(state.exchanges)}, ${seconds(state.exchanges ? state.exchange_s / state.exchanges : null)} each; ${count(state.failures)} failed`);
      if (state.alone_s) add("Time alone", seconds(state.alone_s));
    }
  }
  for (const name of ["added", "removed", "draining"]) if (changes?.[name]?.length) add(`Instances ${name} over the fleet file`, changes[name].join(", "));
  if (changes?.trouble) add("Change not applied", h("span", { class: "error" }, changes.trouble));
  return rows.length ? [card("Replicas and changes", facts(rows))] : [];
}
