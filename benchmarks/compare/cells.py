"""Runs of one policy at one rate taken together: means over seeds with 95 % intervals, and differences between policies, paired by
seed since a seed makes the requests and their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.compare.columns import five_digits
from benchmarks.measures import Interval, difference, interval
from router.core.types import Outcome

Run = Mapping[str, Any]


def figure_in(group: str, key: str) -> Callable[[Run], float | None]:
    """One figure of a run's distribution or group of figures; None where the run has no such group."""
    return lambda run: (run.get(group) or {}).get(key)


def _share(key: str) -> Callable[[Run], float | None]:
    return lambda run: run[key] / run["requests"] if run["requests"] and run[key] is not None else None


def _outcome_share(*outcomes: Outcome) -> Callable[[Run], float | None]:
    return lambda run: (
        sum(run["outcomes"].get(outcome.value, 0) for outcome in outcomes) / run["requests"]
        if run["requests"]
        else None
    )


#: The figures that cells and differences hold, in report order. Units stand in the names.
MEASURES: Mapping[str, Callable[[Run], float | None]] = {
    "attainment": lambda run: run["attainment"],
    "goodput_per_s": lambda run: run["goodput_per_s"],
    "offered_with_slo_share": _share("offered_with_slo"),
    **{
        f"{name}_{key}": figure_in(name, key)
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_wait_s")
        for key in ("mean", "p50", "p90", "p95", "p99")
    },
    "output_tokens_per_s": lambda run: run["output_tokens_per_s"],
    "output_tokens_per_request": _share("output_tokens"),
    "cost_usd_per_request": lambda run: run["cost_usd_per_request"],
    "cost_usd_per_offered": lambda run: run["cost_usd_per_offered"],
    "gpu_hours": lambda run: run.get("gpu_hours"),
    "instances_usd": lambda run: run.get("instances_usd"),
    "saved_share": lambda run: run.get("saved_share"),
    "quality_mean": lambda run: run["quality_mean"],
    "hedged_share": _share("hedged"),
    "preemptions_per_request": _share("preemptions"),
    "timed_out_before_decoding_share": _share("timed_out_before_decoding"),
    "out_of_budget_before_decoding_share": _share("out_of_budget_before_decoding"),
    "cut_by_budget_share": _outcome_share(Outcome.BUDGET_EXHAUSTED_MID_DECODE),
    "refused_for_slo_share": _outcome_share(Outcome.REJECTED_SLO),
    "gateway_attainment": lambda run: run["gateway_attainment"],
    "ttft_p95_coverage": figure_in("prediction", "ttft_p95_coverage"),
    "ttft_p50_median_relative_error": figure_in("prediction", "ttft_p50_median_relative_error"),
    "decision_s_p50": figure_in("decision_s", "p50"),
    "decision_s_p99": figure_in("decision_s", "p99"),
}

#: The figures whose differences are kept.
PAIRED = (
    *("attainment", "goodput_per_s", "ttft_s_p50", "ttft_s_p95", "tpot_s_p50", "tpot_s_p95"),
    *("e2e_s_p50", "e2e_s_p95", "cost_usd_per_request", "quality_mean"),
)


def unique(runs: Sequence[Run], key: str) -> list[Any]:
    """The different values of `key` in the order of their first run."""
    return list(dict.fromkeys(run[key] for run in runs))


def by_rate_and_policy(runs: Sequence[Run]) -> Iterator[tuple[float, str, list[Run]]]:
    """The runs of each policy at each rate that has some, by rate, then policy in the order of its first run."""
    for rate in sorted(unique(runs, "rate_per_s")):
        for policy in unique(runs, "policy"):
            own = [run for run in runs if run["policy"] == policy and run["rate_per_s"] == rate]
            if own:
                yield rate, policy, own


def resampled(runs: Sequence[Run]) -> bool:
    """Whether the draws of these runs (or oracles) are of one recorded trace."""
    return any(run.get("resampled") for run in runs)


def with_savings(runs: Sequence[Run], baseline: str) -> list[Run]:
    """The runs with `saved_share`: the part of the baseline's cost for each offered request, on the same draw at the
    same rate, that a policy did not spend; None for the baseline itself and without its run."""
    spent = {
        (run["rate_per_s"], run["seed"]): run["cost_usd_per_offered"]
        for run in runs
        if run["policy"] == baseline
    }
    found: list[Run] = []
    for run in runs:
        own, other = run["cost_usd_per_offered"], spent.get((run["rate_per_s"], run["seed"]))
        known = run["policy"] != baseline and own is not None and other
        found.append({**run, "saved_share": 1 - own / other if known else None})
    return found


def cells(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One cell for each policy and rate that has runs, by rate, then policy. Figures as Intervals; `outcomes`
    and `instances` are mean shares of requests, `curves` the mean of the seeds' quantiles."""
    return [_cell(policy, rate, own) for rate, policy, own in by_rate_and_policy(runs)]


def _cell(policy: str, rate_per_s: float, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "policy": policy,
        "rate_per_s": rate_per_s,
        "seeds": len(runs),
        "requests": sum(run["requests"] for run in runs),
        "measures": {
            name: interval((measure(run) for run in runs), resampled=resampled(runs))
            for name, measure in MEASURES.items()
        },
        "outcomes": _mean_shares(runs, "outcomes"),
        "instances": _mean_shares(runs, "instances"),
        "models": _mean_shares(runs, "models"),
        "curves": {
            name: [_mean(values) for values in zip(*(run["curves"][name] for run in runs), strict=True)]
            for name in runs[0]["curves"]
        },
    }


def _mean_shares(runs: Sequence[Run], key: str) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run[key])
    total = sum(run["requests"] for run in runs)
    return {name: sum(run[key].get(name, 0) for run in runs) / total for name in names} if total else {}


def _mean(values: Sequence[float | None]) -> float | None:
    mean = Interval.of(values).mean
    return None if mean is None else five_digits(mean)


def paired_differences(runs: Sequence[Run], baseline: str) -> list[dict[str, Any]]:
    """For each rate and each policy but the baseline: its figures less the baseline's, over the seeds that
    both have, as Intervals."""
    others = {(run["rate_per_s"], run["seed"]): run for run in runs if run["policy"] == baseline}
    found = []
    for rate, policy, own in by_rate_and_policy(runs):
        pairs = [(run, others[rate, run["seed"]]) for run in own if (rate, run["seed"]) in others]
        if policy == baseline or not pairs:
            continue
        differences = {
            name: interval(
                (difference(MEASURES[name](one), MEASURES[name](other)) for one, other in pairs),
                resampled=resampled(runs),
            )
            for name in PAIRED
        }
        found.append({"policy": policy, "rate_per_s": rate, "differences": differences})
    return found


def excludes_zero(difference: Interval) -> bool:
    """Whether a paired difference was shown: its 95 % interval does not hold zero (of a single pair, which has
    none: the two differ)."""
    return difference.mean is not None and abs(difference.mean) > (difference.half_width or 0.0)


def leaders(runs: Sequence[Run], rate_per_s: float, measure: str, *, least: bool = False) -> list[str]:
    """The policy with the best mean at a rate, and by their means those that are not clearly behind it: paired
    with it draw by draw. Empty where nothing is known."""
    known: dict[str, dict[Any, float]] = {}
    for run in runs:
        if run["rate_per_s"] == rate_per_s and (value := MEASURES[measure](run)) is not None:
            known.setdefault(run["policy"], {})[run["seed"]] = value
    return not_clearly_behind(known, resampled=resampled(runs), least=least)


def not_clearly_behind(
    known: Mapping[str, Mapping[Any, float]], *, resampled: bool, least: bool = False
) -> list[str]:
    """`leaders` of known values by policy and draw."""
    ordered = sorted(
        known, key=lambda policy: Interval.of(known[policy].values()).mean or 0.0, reverse=not least
    )

    def behind(policy: str) -> Interval:
        best, own = known[ordered[0]], known[policy]
        return Interval.of((own[seed] - best[seed] for seed in own if seed in best), resampled=resampled)

    return [policy for policy in ordered if not excludes_zero(behind(policy))]
