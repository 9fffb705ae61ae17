// One request: what was decided, why, and what happened.

import { admin } from "./api.js";
import { card, h, head, s, table } from "./dom.js";
import { candidateTable, comparedTable } from "./explained.js";
import { below, frame, nothing } from "./figure.js";
import { count, moment, number, outcome, percent, seconds, usd, words } from "./format.js";

export async function show(main, { rest: id, signal }) {
  const back = h("p", null, h("a", { href: "#/requests" }, "All requests"));
  let told;
  try {
    told = await admin(`requests/${encodeURIComponent(id)}`, signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    main.append(back, head("No such request"), card(null, h("p", { class: "empty" }, "It was never recorded, or its time in the store is over.")));
    return;
  }
  main.append(
    back,
    head("Request", h("code", { id: "request-id" }, told.request_id), outcome(told.outcome)),
    h("div", { class: "grid" }, facts(told), compared(told)),
    why(told),
    timeline(told),
    ...told.decisions.map((decision, at) => decisionCard(decision, at, told.decisions.length)),
    feedback(told),
  );
  main.querySelector("h1").focus({ preventScroll: true });
}

function facts(told) {
  const slo = [["TTFT", told.slo_ttft_s], ["TPOT", told.slo_tpot_s], ["E2E", told.slo_e2e_s]].filter(([, value]) => value !== null);
  const met = { null: "not judged", true: "met", false: "missed" }[told.slo_met];
  const rows = [
    ["Received", moment(told.received_at)],
    ["Asked for", `${told.model_requested ?? "—"} by ${words(told.api ?? "—")}`],
    ["Key", told.key_name ?? "none"],
    ["Policy", told.policy ?? "—"],
    ["Served by", told.instance ? `${told.instance}, ${told.model}` : "no instance"],
    ["SLO", slo.length ? `${slo.map(([name, value]) => `${name} ${seconds(value)}`).join(", ")}: ${met}` : "none"],
    ["Money cap", told.max_cost_usd === null ? "none" : usd(told.max_cost_usd)],
    ["Prompt", `${count(told.prompt_tokens)} tokens`],
    ["Waited in the queue", seconds(told.queue_wait_s)],
    ["Ended", [told.finish_reason, told.error_code].filter(Boolean).join(", ") || words(told.outcome)],
    told.propensity !== null && told.propensity < 1 ? ["Drawn with probability", number(told.propensity)] : null,
    told.artifact ? ["Predicted by", told.artifact] : null,
    told.client_request_id ? ["Client's own id", told.client_request_id] : null,
  ];
  return card("What was asked", h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)])));
}

function compared(told) {
  return card("Predicted and actual", comparedTable([
    ["TTFT", told.predicted_ttft_s_p50, told.ttft_s, seconds],
    ["TTFT, p95", told.predicted_ttft_s_p95, told.ttft_s, seconds],
    ["E2E", told.predicted_e2e_s_p50, told.attempts.length ? told.e2e_s : null, seconds],
    ["Output tokens", told.predicted_output_tokens_p50, told.output_tokens, count],
    ["Cost", told.predicted_cost_usd, told.cost_usd, usd],
    ["Quality", told.predicted_quality, told.feedback[0]?.quality ?? null, number],
  ]), told.tpot_s !== null && h("p", { class: "soft small" }, `Each further token took ${seconds(told.tpot_s)} on average, the longest gap was ${seconds(told.itl_max_s)}.`));
}

function why(told) {
  if (!told.why.length) return card("Why", h("p", { class: "empty" }, "Nothing was decided: the request ended before an instance was chosen."));
  return card("Why", h("ul", { class: "why", id: "why" }, told.why.map((line) => h("li", null, line))));
}

function decisionCard(decision, at, all) {
  const after = decision.decided_after_s === null ? "" : `${seconds(decision.decided_after_s)} after the request came`;
  const left = decision.candidates_left_out ? `; ${count(decision.candidates_left_out)} more candidates were not kept` : "";
  return card(all > 1 ? `Decision ${at + 1} of ${all}` : "Candidates",
    h("p", { class: "soft small" }, `By ${decision.policy}, ${after}${left}.`),
    candidateTable(decision.candidates, all > 1 ? `Candidates of decision ${at + 1}` : "Candidates"));
}

const TONES = { ok: "good", failed: "bad", cancelled: "warn", hedge_lost: "warn" };

/** Every attempt as a bar from its start to its end, the wait for its first token paler. */
function timeline(told) {
  const start = told.received_at;
  const end = Math.max(start + (told.e2e_s ?? 0), ...told.attempts.map((each) => each.ended_at ?? each.started_at));
  const draw = (svg, area) => {
    if (!told.attempts.length) return nothing(svg, area, "It was sent to no instance");
    const left = Math.min(130, area.width * 0.3);
    const span = Math.max(end - start, 0.001);
    const x = (at) => left + ((at - start) / span) * (area.right - left - 4);
    const marks = [[start, "received"], [end, seconds(end - start)]];
    told.attempts.forEach((each, at) => {
      const y = area.top + at * 30;
      const from = x(each.started_at);
      const first = each.first_token_at === null ? null : x(each.first_token_at);
      const to = x(each.ended_at ?? end);
      const k = { ok: 2, failed: 4 }[each.ended_how] ?? 3;
      svg.append(
        s("text", { x: left - 10, y: y + 15, "text-anchor": "end", class: "over-text" }, `${each.number} · ${each.instance}`),
        s("rect", { class: `k${k}`, fill: "currentColor", "fill-opacity": 0.35, x: from, y: y + 4, width: Math.max(1.5, (first ?? to) - from), height: 15, rx: 2 }),
      );
      if (first !== null) svg.append(s("rect", { class: `k${k}`, fill: "currentColor", x: first, y: y + 4, width: Math.max(1.5, to - first), height: 15, rx: 2 }));
    });
    svg.append(s("line", { class: "axis", x1: left, x2: area.right - 4, y1: area.bottom, y2: area.bottom }));
    if (told.slo_ttft_s !== null && told.slo_ttft_s <= span) {
      const at = x(start + told.slo_ttft_s);
      svg.append(s("line", { class: "target", x1: at, x2: at, y1: area.top - 4, y2: area.bottom }));
      marks.push([start + told.slo_ttft_s, "TTFT target"]);
    }
    below(svg, { ...area, width: area.width + 30 }, marks.sort((one, other) => one[0] - other[0]).map(([at, text]) => [x(at), text]));
    return {
      stops: told.attempts.map((each) => x(each.first_token_at ?? each.started_at)),
      tell: (at) => [`Attempt ${told.attempts[at].number}: ${told.attempts[at].instance}`, attemptFacts(told.attempts[at], start)],
      summary: told.attempts.map((each) => `Attempt ${each.number} at ${each.instance} ${words(each.ended_how ?? "has not ended")}`).join(". ") + ".",
      legend: [["pale: waiting for the first token", 2]],
    };
  };
  const { node } = frame("Attempts", null, draw, 46 + 30 * Math.max(1, told.attempts.length));
  const rows = told.attempts.map((each) => [
    String(each.number), each.instance, each.model, h("span", { class: `badge ${TONES[each.ended_how] ?? ""}` }, words(each.ended_how ?? "under way")),
    ...times(each, start), count(each.output_tokens), usd(each.cost_usd), h("span", { class: each.error ? "long" : null }, each.error ?? ""),
  ]);
  return h("section", { class: "card" }, node, rows.length ? table([{ name: "Attempt" }, { name: "Instance" }, { name: "Model" }, { name: "Ended" }, { name: "Sent after", num: true },
    { name: "First token after", num: true }, { name: "Ended after", num: true }, { name: "Output tokens", num: true }, { name: "Cost", num: true }, { name: "Error" }], rows, { label: "Attempts" }) : null);
}

const times = (each, start) => [each.started_at, each.first_token_at, each.ended_at].map((at) => (at === null ? "—" : seconds(Math.max(0, at - start))));
const attemptFacts = (each, start) => {
  const [sent, first, ended] = times(each, start);
  return [["sent after", sent], ["first token after", first], ["ended after", ended], ["output tokens", count(each.output_tokens)]];
};

function feedback(told) {
  if (!told.feedback.length) return "";
  return card("Feedback", h("ul", { class: "why" }, told.feedback.map((each) => h("li", null, `quality ${percent(each.quality, 0)}, `, moment(each.received_at)))));
}
