// One column of the playground: a policy, its prediction, and the answer as it streams.

import { client, events, post } from "./api.js";
import { field, h, say, select } from "./dom.js";
import { candidateTable, comparedTable } from "./explained.js";
import { count, counted, outcome, seconds, usd, words } from "./format.js";

/** `requestBody(policy)` returns the body of the request. */
export function column(name, policies, chosen, requestBody) {
  const policy = select("policy", policies, chosen);
  const candidates = h("div");
  const answer = h("div", { class: "answer", tabindex: 0, role: "region", "aria-label": `Answer ${name}`, hidden: true });
  const state = h("p", { class: "soft small", role: "status" });
  const clock = h("span", { class: "clock" });
  const error = h("p", { class: "error", role: "alert" });
  const result = h("div");
  const stopButton = h("button", { type: "button", hidden: true, onclick: () => stop() }, "Stop");
  const node = h("section", { class: "card", "aria-label": `Column ${name}` }, field(`Policy ${name}`, policy), error, h("div", { class: "actions" }, stopButton, clock), state, answer, result, candidates);
  let under = null;

  function clear() {
    stop();
    say(error, "");
    say(state, "");
    say(clock, "");
    result.replaceChildren();
    candidates.replaceChildren();
  }

  async function predict() {
    clear();
    answer.hidden = true;
    stopButton.hidden = true;
    const mine = (under = new AbortController());
    try {
      const decided = await (await post("v1/routing/predict", requestBody(policy.value), mine.signal)).json();
      say(state, `${words(decided.policy)} would send it to ${decided.instance}, ${decided.model} (prompt: ${counted(decided.prompt_tokens, "token")}).`);
      candidates.replaceChildren(candidateTable(decided.candidates, `Candidates ${name}`));
    } catch (failure) {
      refused(failure);
    }
  }

  async function send() {
    clear();
    const mine = (under = new AbortController());
    const body = { ...requestBody(policy.value), stream: true, stream_options: { include_usage: true } };
    const began = performance.now();
    const run = { id: null, first_s: null, pieces: 0, headway: null };
    const tick = () => {
      if (under !== mine) return;
      const now = (performance.now() - began) / 1000;
      say(clock, run.first_s === null ? `TTFT ${seconds(now)} …` : `TTFT ${seconds(run.first_s)}, ${count(run.pieces)} pieces in ${seconds(now)}`);
      requestAnimationFrame(tick);
    };
    answer.replaceChildren();
    answer.hidden = false;
    answer.setAttribute("aria-busy", "true");
    stopButton.hidden = false;
    requestAnimationFrame(tick);
    let failure = null;
    try {
      const response = await post("v1/chat/completions", body, mine.signal);
      run.id = response.headers.get("x-request-id");
      const headers = (which) => response.headers.get(`x-headway-${which}`);
      const expected = headers("predicted-ttft-ms");
      say(state, `${headers("policy")} sent it to ${headers("instance")}, ${headers("model")}${expected ? `; predicted TTFT ${seconds(Number(expected) / 1000)}` : ""}.`);
      for await (const event of events(response)) {
        if (event.error) throw Object.assign(new Error(event.error.message), { status: 200, code: event.error.code });
        const delta = event.choices?.[0]?.delta ?? {};
        const text = delta.content || delta.reasoning_content || delta.reasoning || "";
        if (text) {
          run.first_s ??= (performance.now() - began) / 1000;
          run.pieces += 1;
          answer.append(text);
        }
        if (event.headway) run.headway = { ...event.headway, output_tokens: event.usage?.completion_tokens ?? null };
      }
    } catch (error) {
      failure = error;
    }
    if (under && under !== mine) return; // the column shows the next request
    answer.setAttribute("aria-busy", "false");
    if (document.activeElement === stopButton) answer.focus();
    stopButton.hidden = true;
    under = null;
    if (failure) refused(failure);
    if (failure?.name === "AbortError") say(state, "Stopped.");
    await happened(run);
  }

  /** Predicted beside actual: from the stream's last chunk, else from the record. */
  async function happened(run) {
    if (!run.id) return;
    const facts = run.headway ?? (await record(run.id));
    if (!facts || under) return;
    const expected = facts.predicted ?? {};
    say(clock, "");
    result.replaceChildren(
      h("p", { class: "small" }, outcome(facts.outcome), " ", facts.slo_met === null ? "" : facts.slo_met ? "SLO met. " : "SLO missed. ",
        h("a", { href: `#/requests/${encodeURIComponent(run.id)}` }, "Why, and every attempt")),
      comparedTable([
        ["TTFT", expected.ttft_s_p50, facts.ttft_ms === null ? null : facts.ttft_ms / 1000, seconds],
        ["E2E", expected.e2e_s_p50, facts.e2e_ms === null ? null : facts.e2e_ms / 1000, seconds],
        ["Output tokens", expected.output_tokens_p50, facts.output_tokens ?? null, count],
        ["Cost", expected.cost_usd, facts.cost_usd, usd],
      ], `Predicted and actual ${name}`));
  }

  async function record(id) {
    const ms = (value) => (value === null ? null : value * 1000);
    for (let tries = 0; tries < 20; tries += 1) {
      await new Promise((go) => setTimeout(go, 150)); // its record is being written
      try {
        const row = await client(`v1/routing/${encodeURIComponent(id)}`);
        return { outcome: row.outcome, slo_met: row.slo_met, ttft_ms: ms(row.ttft_s), e2e_ms: ms(row.e2e_s), cost_usd: row.cost_usd, output_tokens: row.output_tokens,
          predicted: { ttft_s_p50: row.predicted_ttft_s_p50, e2e_s_p50: row.predicted_e2e_s_p50, output_tokens_p50: row.predicted_output_tokens_p50, cost_usd: row.predicted_cost_usd } };
      } catch (failure) {
        if (failure.status !== 404) return null;
      }
    }
    return null;
  }

  function refused(failure) {
    if (failure.name === "AbortError") return;
    if (!("status" in failure)) throw failure;
    say(clock, "");
    say(error, `${failure.code ? `${words(failure.code)}: ` : ""}${failure.message}`);
  }
  function stop() {
    under?.abort();
    under = null;
  }
  return { node, policy, predict, send, stop };
}
