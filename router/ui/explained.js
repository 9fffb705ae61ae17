// A decision's candidates and their predictions, as a table.

import { h, table } from "./dom.js";
import { count, number, percent, ratio, seconds, usd } from "./format.js";

const COLUMNS = [{ name: "Candidate" }, { name: "Score", num: true, title: "Lower is better; the scale depends on the policy" }, { name: "TTFT", num: true, title: "Median and 95 % quantile" },
  { name: "E2E", num: true, title: "Median and 95 % quantile" }, { name: "Output tokens", num: true, title: "Median and 90 % quantile" }, { name: "Cost", num: true },
  { name: "Quality", num: true }, { name: "P(miss)", num: true, title: "Probability that an SLO is missed" }, { name: "Decision" }];

const two = (form, middle, high, at) => (middle === null ? "—" : h("span", null, form(middle), high === null ? null : h("small", null, `${at} ${form(high)}`)));

/** `candidates` as the API returns them. */
export function candidateTable(candidates, label = "Candidates") {
  const rows = [...candidates]
    .sort((one, other) => Number(other.chosen) - Number(one.chosen) || (one.score ?? Infinity) - (other.score ?? Infinity) || 0)
    .map(({ instance, model, score, chosen, reason, predicted: expected }) => ({
      mark: chosen ? "chosen" : null,
      cells: [
        h("span", null, instance, h("small", null, model)),
        number(score),
        two(seconds, expected.ttft_s_p50, expected.ttft_s_p95, "p95"),
        two(seconds, expected.e2e_s_p50, expected.e2e_s_p95, "p95"),
        two((value) => count(Math.round(value)), expected.output_tokens_p50, expected.output_tokens_p90, "p90"),
        usd(expected.cost_usd),
        number(expected.quality),
        percent(expected.p_miss),
        h("span", { class: "long" }, chosen ? "chosen" : (reason ?? "not chosen")),
      ],
    }));
  return table(COLUMNS, rows, { label });
}

/** What was predicted beside what happened: rows [name, predicted, actual, form]. */
export function comparedTable(rows, label = "Predicted and actual") {
  return table([{ name: "" }, { name: "Predicted", num: true }, { name: "Actual", num: true }, { name: "Actual / predicted", num: true }],
    rows.map(([name, predicted, actual, form]) => [name, form(predicted), form(actual),
      predicted && actual !== null && actual !== undefined ? ratio(actual / predicted) : "—"]), { label });
}
