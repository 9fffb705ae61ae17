// Sends a prompt to the fleet, or predicts the decision; compares two policies.

import { admin, client, keys } from "./api.js";
import { card, field, h, head, select } from "./dom.js";
import { column } from "./playground_column.js";

let kept = {}; // what was entered when the view was left, such as for the page of a request
const EXAMPLE = "Explain in three sentences why queues grow faster than load.";

export async function show(main, { about, signal }) {
  const number = (name, attributes) => h("input", { name, type: "number", step: "any", min: 0, inputmode: "decimal", ...attributes });
  const key = h("input", { name: "client-key", type: "password", autocomplete: "off", spellcheck: "false", value: keys.client });
  const model = select("model", [["auto", "auto (any model)"]], kept.model ?? "auto");
  const controls = {
    ttft_ms: number("ttft_ms"), tpot_ms: number("tpot_ms"), e2e_ms: number("e2e_ms"),
    on_miss: select("on_miss", [["", "by default"], ["best_effort", "soft: answer late"], ["reject", "hard: refuse"]], ""),
    max_cost_usd: number("max_cost_usd"), min_quality: number("min_quality", { max: 1 }),
    priority: h("input", { name: "priority", type: "number", step: 1, min: 0 }),
    max_tokens: h("input", { name: "max_tokens", type: "number", step: 1, min: 1, value: 200 }),
  };
  const prompt = h("textarea", { name: "prompt", required: true, rows: 4 }, EXAMPLE);
  const error = h("p", { class: "error", role: "alert" });
  const both = h("input", { type: "checkbox", name: "both", onchange: () => {
    second.node.hidden = !both.checked;
    if (!both.checked) second.stop();
  } });
  const policies = [["", `default (${about.default_policy})`], ...about.policies.map((name) => [name, name])];
  const first = column("A", policies, "", requestBody);
  const second = column("B", policies, about.policies.includes("price") ? "price" : "", requestBody);
  second.node.hidden = true;
  const used = () => (both.checked ? [first, second] : [first]);
  const entered = { model, prompt, ...controls, A: first.policy, B: second.policy };
  for (const [name, value] of Object.entries(kept)) entered[name].value = value;
  signal.addEventListener("abort", () => {
    kept = Object.fromEntries(Object.entries(entered).map(([name, { value }]) => [name, value]));
    [first, second].forEach((each) => each.stop());
  });

  /** The request's body as the form says it; what is empty is left out. */
  function requestBody(policy) {
    const value = (name) => (controls[name].value === "" ? undefined : controls[name].type === "number" ? Number(controls[name].value) : controls[name].value);
    const slo = Object.fromEntries(["ttft_ms", "tpot_ms", "e2e_ms"].filter((name) => value(name) !== undefined).map((name) => [name, value(name)]));
    const routing = { policy: policy || undefined, slo: Object.keys(slo).length ? slo : undefined };
    for (const name of ["on_miss", "max_cost_usd", "min_quality", "priority"]) routing[name] = value(name);
    return { model: model.value, messages: [{ role: "user", content: prompt.value }], max_tokens: value("max_tokens"), routing: JSON.parse(JSON.stringify(routing)) };
  }
  function each(act) {
    if (!form.reportValidity()) return;
    error.textContent = "";
    keys.client = key.value.trim();
    used().forEach(act);
  }

  const form = h("form", { onsubmit: (event) => { event.preventDefault(); each((one) => one.send()); } },
    h("div", { class: "fields" }, field("Model", model), field("TTFT target, ms", controls.ttft_ms), field("TPOT target, ms", controls.tpot_ms), field("E2E target, ms", controls.e2e_ms), field("When a target is missed", controls.on_miss),
      field("Money cap, USD", controls.max_cost_usd), field("Minimum quality, 0 to 1", controls.min_quality), field("Priority", controls.priority), field("Maximum output tokens", controls.max_tokens),
      about.client_key_needed || keys.client ? field("Client key", key) : null),
    field("Prompt", prompt), error,
    h("div", { class: "actions" },
      h("button", { class: "main" }, "Send"),
      h("button", { type: "button", onclick: () => each((one) => one.predict()) }, "Predict"),
      h("label", { class: "check" }, both, "Compare two policies on this prompt")));
  main.append(
    head("Playground", "Predict shows the decision without sending anything. Send calls an engine and shows predicted and actual values."),
    card(null, form), h("div", { class: "grid wide" }, first.node, second.node));
  await models(about, model, key, error, signal);
}

/** Fill in the models; again when a client key is given, and when the gateway answers again. */
async function models(about, model, key, error, signal) {
  let loading = false;
  let loaded = false;
  const load = async () => {
    loading = true;
    try {
      const { data } = await client("v1/models", signal);
      const chosen = model.value;
      model.replaceChildren(h("option", { value: "auto" }, "auto (any model)"), ...data.map(({ id }) => h("option", { value: id }, id)));
      model.value = data.some(({ id }) => id === chosen) ? chosen : "auto";
      error.textContent = "";
      loaded = true;
    } catch (failure) {
      if (signal.aborted || !("status" in failure)) throw failure;
      error.textContent = failure.status === 401 ? (keys.client ? "That is not a client key of this gateway." : "This gateway needs a client key.") : failure.message;
    } finally {
      loading = false;
    }
  };
  key.addEventListener("change", () => { keys.client = key.value.trim(); load(); });
  addEventListener("reachable", ({ detail: answers }) => { if (answers && !loaded && !loading) load(); }, { signal });
  await load();
}
