"""The tables of the documentation as Markdown: of policies, from the figures that are kept of reports of `headway compare`, and of
predictors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.compare.capacity import capacities
from benchmarks.compare.cells import not_clearly_behind, resampled
from benchmarks.compare.tables import capacity_text, three_digits
from benchmarks.pages import marked

#: `policies`: by policy `rates` (by rate: the measures as (mean, half-width of a 95 % interval), the attainment of each
#: draw as `draws`, and maybe `spend_over_least`, that of the first draw over the least that its quality costs), `capacity`
#: `commit` and maybe `ttft_capacity` as text. `oracle`, if there is one: the clairvoyant's attainment of the first draw, by
#: rate. `resampled`: the draws are of one recorded trace.
Figures = Mapping[str, Any]
#: What the name of a scenario's full form ends with.
FULL = ":full"


def by_rate(figures: Figures, times_at: str) -> str:
    """A row for each policy: its attainment at each rate, the rate at which it falls to the target, and mean times at the
    rate `times_at`. The best policy of a column is not marked: intervals overlap. The greatest half-widths follow."""
    rates = list(next(iter(figures["policies"].values()))["rates"])
    rows = []
    for policy, found in figures["policies"].items():
        cells = [f"{100 * found['rates'][rate]['attainment'][0]:.1f} %" for rate in rates]
        times = [f"{found['rates'][times_at][name][0]:.2f} s" for name in ("ttft_s_mean", "e2e_s_mean")]
        rows.append([f"`{policy}`", *cells, found["capacity"] + "/s", *times])
    oracle = figures.get("oracle")
    if oracle:
        cells = [f"{100 * oracle[rate]:.1f} %" for rate in rates]
        rows.append(["a clairvoyant schedule (one draw)", *cells, "", "", ""])
    widest = [
        max(found["rates"][rate]["attainment"][1] for found in figures["policies"].values()) for rate in rates
    ]
    told = (f"{100 * width:.1f} at {rate}/s" for rate, width in zip(rates, widest, strict=True))
    heading = ["policy", *(f"{rate}/s" for rate in rates), "95 % up to", "TTFT", "E2E"]
    return marked.table(heading, rows) + _half_widths(told)


def all_policies(results: Mapping[str, Figures], shown: Mapping[str, Sequence[int]]) -> str:
    """A row for each policy, a column for each scenario and rate: attainment in percent, and the mean of E2E in seconds.
    Bold as in `end_to_end`. A dash is what was not measured. The greatest half-widths of attainment follow."""
    rows: dict[str, dict[str, str]] = {}
    widest = []
    for column, scenario, rate in _runs(shown):
        figures = results[scenario]
        leading = _leading(figures, rate)
        found = {policy: each["rates"][rate] for policy, each in figures["policies"].items()}
        for policy, here in found.items():
            bold = "**" if policy in leading else ""
            rows.setdefault(policy, {"policy": f"`{policy}`"})[column] = (
                f"{bold}{100 * here['attainment'][0]:.1f}{bold} / {three_digits(here['e2e_s_mean'][0])}"
            )
        widest.append((column, max(here["attainment"][1] for here in found.values())))
    ordered = dict.fromkeys(column for row in rows.values() for column in row)
    shown_rows = ([row.get(column, "-") for column in ordered] for row in rows.values())
    told = (f"{100 * width:.1f} on {column}" for column, width in widest)
    return marked.table(list(ordered), shown_rows) + _half_widths(told)


def _half_widths(told: Iterable[str]) -> str:
    return f"\n\nHalf-widths of 95 % intervals of attainment, in points, at most: {', '.join(told)}."


def end_to_end(
    results: Mapping[str, Figures], shown: Mapping[str, Sequence[int]], detailed: Mapping[str, Sequence[str]]
) -> str:
    """A row for each scenario, rate and policy (by scenario, those that are `detailed`): attainment and how far it is behind
    the clairvoyant's, the quantiles of times, quality, spend, and spend over the least for its quality. The attainment of the
    best of all policies and of those that are not clearly behind it is bold. A dash is what does not differ or is not
    known."""
    rows = []
    for name, scenario, rate in _runs(shown):
        figures = results[scenario]
        leading = _leading(figures, rate)
        told = [policy for policy in figures["policies"] if policy in detailed[scenario]]
        for at, policy in enumerate(told):
            here = figures["policies"][policy]["rates"][rate]
            best = figures.get("oracle", {}).get(rate)
            usd, quality = here.get("cost_usd_per_request"), here.get("quality_mean")
            bold = "**" if policy in leading else ""
            rows.append(
                {
                    "scenario": "" if at else name,
                    "policy": f"`{policy}`",
                    "attained": f"{bold}{_percent(here['attainment'])}{bold}",
                    "regret": "-" if best is None else f"{100 * (best - here['draws'][0]):.1f}",
                    "TTFT p50 / p95 s": _quantiles(here, "ttft_s", ("p50", "p95")),
                    "E2E p50 / p95 s": _quantiles(here, "e2e_s", ("p50", "p95")),
                    "quality": "-" if quality is None else f"{quality[0]:.3f}",
                    "USD/1k": "-" if usd is None else three_digits(1000 * usd[0]),
                    "over least": f"{here['spend_over_least']:.2f}" if "spend_over_least" in here else "-",
                }
            )
    return marked.table_of(rows)


def _runs(shown: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str, str]]:
    """What a table calls each scenario at each rate, the scenario, and the rate."""
    for scenario, rates in shown.items():
        for rate in map(str, rates):
            yield f"`{scenario.removesuffix(FULL)}`, {rate}/s", scenario, rate


def _leading(figures: Figures, rate: str) -> list[str]:
    """The policy that attains most, and those whose difference to it, draw by draw, has an interval that holds zero."""
    draws = {
        policy: dict(enumerate(found["rates"][rate]["draws"]))
        for policy, found in figures["policies"].items()
    }
    return not_clearly_behind(draws, resampled=figures.get("resampled", False))


def block(figures: Figures) -> str:
    """Block's measures (arXiv 2508.03611): a row for each rate and policy, and the capacity by TTFT in the first of them."""
    rows = []
    for rate in next(iter(figures["policies"].values()))["rates"]:
        for at, (policy, found) in enumerate(figures["policies"].items()):
            here = found["rates"][rate]
            rows.append(
                {
                    "rate": "" if at else f"{rate}/s",
                    "policy": f"`{policy}`",
                    "attained": _percent(here["attainment"]),
                    "TTFT mean / p99 s": _quantiles(here, "ttft_s", ("mean", "p99")),
                    "E2E mean / p99 s": _quantiles(here, "e2e_s", ("mean", "p99")),
                    "TPOT mean / p99 ms": _quantiles(here, "tpot_s", ("mean", "p99"), 1e3),
                    "decision p50 µs": three_digits(1e6 * here["decision_s_p50"][0]),
                    "capacity": "" if rate != next(iter(found["rates"])) else f"{found['ttft_capacity']}/s",
                }
            )
    return marked.table_of(rows)


#: What is predicted, the artifact's kind, and of its figures the name, the predictor and the simple one.
_SHIPPED = (
    ("output length (tokens)", "length", "MAE", "LSTM", "TF-IDF + ridge on log length"),
    ("right or wrong, from the prompt", "relevance", "AUC", "relevance", "TF-IDF + logistic regression"),
    ("KV memory in use (share)", "memory", "MAE", "memory model", "closed form"),
)


def shipped(abouts: Mapping[str, Mapping[str, Any]]) -> str:
    """The shipped predictors beside the best simple ones, from the figures that the artifacts carry. `abouts`: by kind, what
    the artifact says about itself."""
    rows = []
    for what, kind, name, ours, simple in _SHIPPED:
        found = {
            each["of"]: each
            for each in abouts[kind]["metrics"]
            if each["name"] == name and each["part"] == "all"
        }
        less = found[f"{ours} - {simple}"]
        rows.append(
            {
                "": what,
                "figure": name,
                "shipped": three_digits(found[ours]["value"]),
                "simple": f"{three_digits(found[simple]['value'])} ({simple})",
                "difference": f"{less['value']:+.3g} [{less['low']:+.3g}, {less['high']:+.3g}]",
            }
        )
    return marked.table_of(rows)


def provenance(results: Mapping[str, Figures]) -> str:
    """The commits that figures are of, with their scenarios."""
    scenarios: dict[str, dict[str, None]] = {}
    for scenario, figures in results.items():
        for found in figures["policies"].values():
            form = f"`{scenario.removesuffix(FULL)}`{' (full)' if scenario.endswith(FULL) else ''}"
            scenarios.setdefault(found["commit"], {})[form] = None
    return "\n".join(f"- commit `{commit}`: {', '.join(names)}" for commit, names in scenarios.items())


def differences(old: Figures, new: Figures, at_most: float) -> Iterator[str]:
    """What the draws that both have attain differently by more than `at_most`, one line each."""
    for policy, found in new["policies"].items():
        for rate, here in found["rates"].items():
            kept = old["policies"][policy]["rates"][rate]["draws"]
            for draw, (before, now) in enumerate(zip(kept, here["draws"], strict=False)):
                if abs(before - now) > at_most:
                    yield f"{policy}, {rate}/s, draw {draw}: {before:.4f} is told, {now:.4f} measured"


def _percent(figure: Sequence[float]) -> str:
    return f"{100 * figure[0]:.1f} ±{100 * figure[1]:.1f} %"


def _quantiles(here: Mapping[str, Any], name: str, of: Sequence[str], scale: float = 1.0) -> str:
    return " / ".join(three_digits(scale * here[f"{name}_{each}"][0]) for each in of)


# --- what is kept of a report ----------------------------------------------------------------------------
#: What is kept of each policy at each rate; `benchmarks.compare.cells.MEASURES` says what they are.
LATENCIES = ("attainment", *(f"{time}_s_{of}" for time in ("ttft", "e2e") for of in ("mean", "p50", "p95")))
PRICED = (*LATENCIES, "cost_usd_per_request", "quality_mean")
BLOCK = (
    *LATENCIES,
    *("ttft_s_p99", "e2e_s_p99", "tpot_s_mean", "tpot_s_p99", "decision_s_p50", "preemptions_per_request"),
)
#: The bound of the 99th percentile of TTFT (s) for Block's capacity.
TTFT_P99_S = 3.0
_DIGITS = 7


def measured(report: Mapping[str, Any], measures: Sequence[str] = LATENCIES) -> dict[str, Any]:
    """The `Figures` of a report of `headway compare`. Numbers are rounded to seven decimals."""
    found: dict[str, Any] = {"policies": {}}
    for capacity in report["capacity"]:
        found["policies"][capacity["policy"]] = {"capacity": capacity_text(capacity), "rates": {}}
    if "ttft_s_p99" in measures:
        for capacity in capacities(
            report["runs"], report["baseline"], -TTFT_P99_S, lambda run: -run["ttft_s"]["p99"]
        ):
            found["policies"][capacity["policy"]]["ttft_capacity"] = capacity_text(capacity)
    for cell in report["cells"]:
        found["policies"][cell["policy"]]["rates"][f"{cell['rate_per_s']:g}"] = {
            **{
                name: [round(cell["measures"][name][part] or 0.0, _DIGITS) for part in ("mean", "half_width")]
                for name in measures
            },
            "draws": [round(run["attainment"], 5) for run in _runs_of(report, cell)],
        }
    if resampled(report["runs"]):
        found["resampled"] = True
    if report["oracle"]:
        found["oracle"] = {
            f"{each['rate_per_s']:g}": round(each["clairvoyant_attainment"]["mean"], 5)
            for each in report["oracle"]
        }
    for oracle in report["oracle"] if "quality_mean" in measures else ():
        points = oracle["quality_cost"]
        quality, usd = ([each[name] for each in points] for name in ("quality", "cost_usd_per_request"))
        for cell in report["cells"]:
            if cell["rate_per_s"] == oracle["rate_per_s"]:
                first = _runs_of(report, cell)[0]
                least = float(np.interp(first["quality_mean"], quality, usd))
                here = found["policies"][cell["policy"]]["rates"][f"{cell['rate_per_s']:g}"]
                here["spend_over_least"] = round(first["cost_usd_per_request"] / least, 4)
    return found


def _runs_of(report: Mapping[str, Any], cell: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A cell's runs, draw by draw."""
    own = (
        run
        for run in report["runs"]
        if run["policy"] == cell["policy"] and run["rate_per_s"] == cell["rate_per_s"]
    )
    return sorted(own, key=lambda run: run["seed"])
