// One request: its decisions and its outcome.

import { admin } from "./api.js";
import { card, facts, h, head, s, table } from "./dom.js";
import { candidateTable, comparedTable } from "./explained.js";
import { below, cut, frame, nothing } from "./figure.js";
import { count, counted, moment, number, outcome, percent, seconds, usd, words } from "./format.js";

export async function show(main, { rest: id, signal }) {
  const back = h("p", null, h("a", { href: "#/requests" }, "All requests"));
  let request;
  try {
    request = await admin(`requests/${encodeURIComponent(id)}`, signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    main.append(back, head("No such request"), card(null, h("p", { class: "empty" }, "It was never recorded, or its record has been deleted.")));
    return;
  }
  main.append(
    back,
    head("Request", h("code", { id: "request-id" }, request.request_id), outcome(request.outcome)),
    h("div", { class: "grid" }, about(request), compared(request)),
    why(request),
    timeline(request),
    ...request.decisions.map((decision, at) => decisionCard(decision, at, request.decisions.length)),
    feedback(request),
  );
  main.querySelector("h1").focus({ preventScroll: true });
}

function about(request) {
  const slo = [["TTFT", request.slo_ttft_s], ["TPOT", request.slo_tpot_s], ["E2E", request.slo_e2e_s]].filter(([, value]) => value !== null);
  const met = { null: "not judged", true: "met", false: "missed" }[request.slo_met];
  return card("Request", facts([
    ["Received", moment(request.received_at)],
    ["Requested", `${request.model_requested ?? "—"} by ${words(request.api ?? "—")}`],
    ["Key", request.key_name ?? "none"],
    ["Policy", request.policy ?? "—"],
    ["Served by", request.instance ? `${request.instance}, ${request.model}` : "no instance"],
    ["SLO", slo.length ? `${slo.map(([name, value]) => `${name} ${seconds(value)}`).join(", ")}: ${met}` : "none"],
    ["Money cap", request.max_cost_usd === null ? "none" : usd(request.max_cost_usd)],
    ["Prompt", request.prompt_tokens !== null && counted(request.prompt_tokens, "token")],
    ["Waited in the queue", seconds(request.queue_wait_s)],
    ["Ended", [request.finish_reason, request.error_code].filter(Boolean).join(", ") || words(request.outcome)],
    ["Drawn with probability", request.propensity !== null && request.propensity < 1 && number(request.propensity)],
    ["Predicted by", request.artifact],
    ["Client's own id", request.client_request_id],
  ]));
}

function compared(request) {
  return card("Predicted and actual", comparedTable([
    ["TTFT", request.predicted_ttft_s_p50, request.ttft_s, seconds],
    ["TTFT, p95", request.predicted_ttft_s_p95, request.ttft_s, seconds],
    ["E2E", request.predicted_e2e_s_p50, request.attempts.length ? request.e2e_s : null, seconds],
    ["Output tokens", request.predicted_output_tokens_p50, request.output_tokens, count],
    ["Cost", request.predicted_cost_usd, request.cost_usd, usd],
    ["Quality", request.predicted_quality, request.feedback[0]?.quality ?? null, number],
  ]), request.tpot_s !== null && h("p", { class: "soft small" }, `Each further token took ${seconds(request.tpot_s)} on average, the longest gap was ${seconds(request.itl_max_s)}.`));
}

function why(request) {
  if (!request.why.length) return card("Why", h("p", { class: "empty" }, "There was no decision: the request ended before an instance was chosen."));
  return card("Why", h("ul", { class: "why", id: "why" }, request.why.map((line) => h("li", null, line))));
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
function timeline(request) {
  const start = request.received_at;
  const end = Math.max(start + (request.e2e_s ?? 0), ...request.attempts.map((each) => each.ended_at ?? each.started_at));
  const draw = (svg, area) => {
    if (!request.attempts.length) return nothing(svg, area, "It was not sent to any instance");
    const left = Math.min(130, area.width * 0.3);
    const span = Math.max(end - start, 0.001);
    const x = (at) => left + ((at - start) / span) * (area.right - left - 4);
    const marks = [[start, "received"], [end, seconds(end - start)]];
    request.attempts.forEach((each, at) => {
      const y = area.top + at * 30;
      const from = x(each.started_at);
      const first = each.first_token_at === null ? null : x(each.first_token_at);
      const to = x(each.ended_at ?? end);
      const k = { ok: 2, failed: 4 }[each.ended_how] ?? 3;
      svg.append(
        s("text", { x: left - 10, y: y + 15, "text-anchor": "end", class: "over-text" }, cut(`${each.number} · ${each.instance}`, left - 10)),
        s("rect", { class: `k${k}`, fill: "currentColor", "fill-opacity": 0.35, x: from, y: y + 4, width: Math.max(1.5, (first ?? to) - from), height: 15, rx: 2 }),
      );
      if (first !== null) svg.append(s("rect", { class: `k${k}`, fill: "currentColor", x: first, y: y + 4, width: Math.max(1.5, to - first), height: 15, rx: 2 }));
    });
    svg.append(s("line", { class: "axis", x1: left, x2: area.right - 4, y1: area.bottom, y2: area.bottom }));
    if (request.slo_ttft_s !== null && request.slo_ttft_s <= span) {
      const at = x(start + request.slo_ttft_s);
      svg.append(s("line", { class: "target", x1: at, x2: at, y1: area.top - 4, y2: area.bottom }));
      marks.push([start + request.slo_ttft_s, "TTFT target"]);
    }
    below(svg, { ...area, width: area.width + 30 }, marks.sort((one, other) => one[0] - other[0]).map(([at, text]) => [x(at), text]));
    return {
      stops: request.attempts.map((each) => x(each.first_token_at ?? each.started_at)),
      tell: (at) => [`Attempt ${request.attempts[at].number}: ${request.attempts[at].instance}`, attemptFacts(request.attempts[at], start)],
      summary: request.attempts.map((each) => `Attempt ${each.number} at ${each.instance} ${words(each.ended_how ?? "has not ended")}`).join(". ") + ".",
    };
  };
  const { node } = frame("Attempts", request.attempts.length ? "Pale: waiting for the first token." : null, draw, 46 + 30 * Math.max(1, request.attempts.length));
  const rows = request.attempts.map((each) => [
    String(each.number), h("span", { class: "name" }, each.instance), h("span", { class: "name" }, each.model), h("span", { class: `badge ${TONES[each.ended_how] ?? ""}` }, words(each.ended_how ?? "under way")),
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

function feedback(request) {
  if (!request.feedback.length) return "";
  return card("Feedback", h("ul", { class: "why" }, request.feedback.map((each) => h("li", null, `quality ${percent(each.quality, 0)}, `, moment(each.received_at)))));
}
