// Recorded requests, newest first, with filters and older pages.

import { admin, now_s, tried } from "./api.js";
import { card, field, h, head, renew, select, table } from "./dom.js";
import { count, counted, moment, outcome, seconds, usd, words } from "./format.js";

const OUTCOMES = ["ok", "late", "rejected_invalid", "rejected_auth", "rejected_rate", "rejected_budget", "rejected_slo", "rejected_overload", "rejected_no_instance",
  "expired_in_queue", "expired_before_first_token", "expired_mid_decode", "budget_exhausted_mid_decode", "backend_error", "client_cancelled"];
const SINCE = [["", "any time"], ["900", "15 min"], ["3600", "1 hour"], ["86400", "24 hours"], ["604800", "7 days"]];
const PAGE = 50;
const MOST = 1000; // that one call returns
const COLUMNS = [{ name: "Received" }, { name: "Outcome" }, { name: "Policy" }, { name: "Served by" }, { name: "TTFT", num: true }, { name: "E2E", num: true },
  { name: "Output tokens", num: true }, { name: "Cost", num: true }, { name: "SLO" }];

export async function show(main, { about, query, signal }) {
  const fleet = await admin("fleet", signal);
  const any = (names, label) => [["", label], ...names.map((name) => [name, words(name)])];
  const same = (names, label) => [["", label], ...names.map((name) => [name, name])];
  const controls = {
    outcome: select("outcome", any(OUTCOMES, "any"), query.get("outcome") ?? ""),
    policy: select("policy", same(about.policies, "any"), query.get("policy") ?? ""),
    model: select("model", same(fleet.models.map((each) => each.name), "any"), query.get("model") ?? ""),
    instance: select("instance", same(fleet.instances.map((each) => each.name), "any"), query.get("instance") ?? ""),
    key: h("input", { name: "key", value: query.get("key"), autocomplete: "off", spellcheck: "false" }),
    since: select("since", SINCE, query.get("since") ?? ""),
  };
  const labels = { outcome: "Outcome", policy: "Policy", model: "Model", instance: "Instance", key: "Key's name", since: "Received within" };
  // Back from a request, the list is as long as it was, and scrolled to where it was.
  const before = history.state;
  const rows = h("div", { id: "requests", onclick: () => history.replaceState({ shown: shown.length, top: scrollY }, "") });
  const found = h("p", { class: "soft small", role: "status" });
  const error = h("p", { class: "error", role: "alert" });
  const older = h("button", { type: "button", hidden: true, onclick: () => load(true) }, "Older requests");
  let cursor = null;
  let shown = [];
  let turn = 0;

  async function load(more, limit = PAGE) {
    const mine = ++turn;
    const query = new URLSearchParams({ limit });
    for (const [name, control] of Object.entries(controls)) {
      if (!control.value) continue;
      query.set(name, name === "since" ? now_s() - Number(control.value) : control.value);
    }
    if (more && cursor) query.set("cursor", cursor);
    await tried(error, async () => {
      const page = await admin(`requests?${query}`, signal);
      if (mine !== turn) return;
      shown = more ? [...shown, ...page.requests] : page.requests;
      cursor = page.next_cursor;
      older.hidden = cursor === null;
      found.textContent = shown.length ? `${counted(shown.length, "request")}${cursor ? ", older ones follow" : ""}` : "";
      renew(rows, [shown.length ? table(COLUMNS, shown.map(line), { label: "Requests" }) : h("p", { class: "empty" }, cursor ? "No request matches so far. Search older ones." : "No request matches. Send one from the playground, or loosen the filters.")]);
    });
  }

  const form = h("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); changed(); }, onchange: () => changed() },
    Object.entries(controls).map(([name, control]) => field(labels[name], control)));
  function changed() {
    const kept = new URLSearchParams(Object.entries(controls).flatMap(([name, control]) => (control.value ? [[name, control.value]] : [])));
    history.replaceState(null, "", `#/requests${kept.size ? `?${kept}` : ""}`);
    load(false);
  }
  main.append(
    head("Requests", "Every request that reached the router. Prompts are never shown.", h("button", { type: "button", onclick: () => load(false) }, "Refresh")),
    card(null, form), card(null, found, error, rows, h("div", { class: "actions" }, older)));
  main.querySelector("h1").focus({ preventScroll: true });
  await load(false, Math.min(Math.max(before?.shown ?? 0, PAGE), MOST));
  if (before) scrollTo(0, before.top);
}

function line(row) {
  const predicted = (value, form) => (value === null ? null : h("small", null, `predicted ${form(value)}`));
  return [
    h("a", { href: `#/requests/${encodeURIComponent(row.id)}`, title: row.id }, moment(row.received_at)),
    outcome(row.outcome),
    row.policy ?? "—",
    row.instance ? h("span", { class: "name" }, row.model, h("small", null, row.instance)) : h("span", { class: "name soft" }, row.model_requested ?? "—"),
    h("span", null, seconds(row.ttft_s), predicted(row.predicted_ttft_s_p50, seconds)),
    h("span", null, seconds(row.e2e_s), predicted(row.instance ? row.predicted_e2e_s_p50 : null, seconds)),
    h("span", null, count(row.output_tokens), predicted(row.predicted_output_tokens_p50, count)),
    usd(row.cost_usd),
    row.slo_met === null ? "—" : row.slo_met ? "met" : h("span", { class: "error" }, "missed"),
  ];
}
