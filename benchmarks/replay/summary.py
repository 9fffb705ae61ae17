"""The numbers of a run: latencies, attainment, goodput, cost, outcomes, where it was served, client lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.measures import Summary, attainment, mean_rate, offered_period_s
from benchmarks.replay.row import Row
from router.core.types import Outcome

#: A client that sends later than this (99th percentile) has become what it measures.
LAG_WARNING_S = 0.05


def summarise(rows: Sequence[Row], speed: float = 1.0) -> dict[str, Any]:
    """One run in numbers, times in seconds of the workload's clock, latencies of complete answers only; `speed` converts
    client lag to real seconds. `attainment`, `goodput_per_s` and `outcomes` are the client's measure, `gateway_attainment`
    and `gateway_outcomes` what the gateway reported, of requests that it reported anything of; `disagreements` are requests
    where the two differ. `cost_usd_per_request` is all that was spent, as far as reported, over complete answers."""
    arrivals_s = sorted(row.scheduled_s for row in rows)
    period_s = offered_period_s(arrivals_s)
    # A request that failed without a known SLO had none.
    seen = attainment(((row.outcome, row.met) for row in rows), period_s)
    complete = [row for row in rows if row.complete]
    costs = [cost for row in rows if (cost := row.cost_usd) is not None]
    output_tokens = sum(row.output_tokens or 0 for row in rows)
    return {
        "requests": len(rows),
        "complete": len(complete),
        "rate_per_s": mean_rate(arrivals_s),
        "ttft_s": asdict(Summary.of(row.ttft_s for row in complete)),
        "tpot_s": asdict(Summary.of(row.tpot_s for row in complete)),
        "itl_max_s": asdict(Summary.of(row.itl_max_s for row in complete)),
        "e2e_s": asdict(Summary.of(row.e2e_s for row in complete)),
        **seen,
        "gateway_attainment": attainment(
            (
                (row.gateway_outcome, None if row.met is None else _met_by_gateway(row))
                for row in rows
                if row.gateway_outcome is not None
            ),
            period_s,
        )["attainment"],
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / period_s if period_s else None,
        "cost_usd": sum(costs) if costs else None,
        "cost_usd_per_request": sum(costs) / len(complete) if costs and complete else None,
        "outcomes": _counted(row.outcome for row in rows),
        "gateway_outcomes": _counted(row.gateway_outcome for row in rows if row.gateway_outcome),
        "disagreements": sum(
            row.gateway_outcome is not None and row.gateway_outcome != row.outcome for row in rows
        ),
        "instances": _counted(row.instance or "(none)" for row in rows),
        "errors": _counted(row.error_code or row.error for row in rows if row.error),
        "client_lag_s": asdict(Summary.of(row.lag_s / speed for row in rows)),
    }


def _met_by_gateway(row: Row) -> bool:
    """An answer that its money ended may be in time too; what the gateway could not tell with the answer (a refusal) is not."""
    told = (row.headway or {}).get("slo_met")
    return told if isinstance(told, bool) else row.gateway_outcome == Outcome.OK


def _counted(names: Any) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def milliseconds(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1000:,.0f}" if value_s >= 0.1 else f"{value_s * 1000:.1f}"


def text(summary: Mapping[str, Any]) -> str:
    lines = [
        f"requests   {summary['requests']:,}, complete {summary['complete']:,}"
        + ("" if summary["rate_per_s"] is None else f", offered at {summary['rate_per_s']:.3f}/s")
    ]
    for name, values in (("TTFT", summary["ttft_s"]), ("TPOT", summary["tpot_s"]), ("E2E", summary["e2e_s"])):
        cells = ", ".join(f"{key} {milliseconds(values[key])}" for key in ("p50", "p95", "p99"))
        lines.append(f"{name:<10} {cells} ms")
    if summary["offered_with_slo"]:
        lines.append(
            f"SLO        {100 * summary['attainment']:.1f} % of {summary['offered_with_slo']:,} met"
            + ("" if summary["goodput_per_s"] is None else f", goodput {summary['goodput_per_s']:.3f}/s")
        )
    lines.append(
        f"output     {summary['output_tokens']:,} tokens"
        + ("" if summary["output_tokens_per_s"] is None else f", {summary['output_tokens_per_s']:,.1f}/s")
    )
    if summary["cost_usd"] is not None:
        each = summary["cost_usd_per_request"]
        lines.append(
            f"cost       {summary['cost_usd']:.6f} USD" + ("" if each is None else f", {each:.6f} a request")
        )
    lines.append("outcomes   " + _list(summary["outcomes"]))
    if summary["gateway_outcomes"]:
        lines.append(
            "gateway    "
            + _list(summary["gateway_outcomes"])
            + f" ({summary['disagreements']} seen otherwise here)"
        )
    if set(summary["instances"]) != {"(none)"}:
        lines.append("instances  " + _list(summary["instances"]))
    if summary["errors"]:
        lines.append("errors     " + _list(dict(list(summary["errors"].items())[:5])))
    lag = summary["client_lag_s"]
    lines.append(
        f"client lag p50 {milliseconds(lag['p50'])}, p99 {milliseconds(lag['p99'])}, max {milliseconds(lag['max'])} ms"
    )
    if lag["p99"] is not None and lag["p99"] > LAG_WARNING_S:
        lines.append("           the client fell behind: its times say more of it than of what it measured")
    return "\n".join(lines)


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
