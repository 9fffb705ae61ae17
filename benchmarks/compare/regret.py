"""Policies against the oracles: what is left to gain, and how much of what could be gained was ("Oracles" in docs/simulator.md).

What any policy could reach lies between a clairvoyant schedule that was found and an upper bound that was proved. So regret and
the share of the gap that a policy closes are brackets too. All of it is taken draw by draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.compare.cells import by_rate_and_policy, figure_in, resampled, unique
from benchmarks.measures import interval

#: A gap below this share of the offered rate is within the noise: no share of it is reported.
_LEAST_GAP = 0.01

Oracle = Mapping[str, Any]
Run = Mapping[str, Any]


#: The figures of an oracle that are taken together over draws.
_FIGURES: Mapping[str, Callable[[Oracle], float | None]] = {
    "goodput_upper_bound_per_s": lambda oracle: oracle.get("goodput_upper_bound_per_s"),
    "attainment_upper_bound": lambda oracle: oracle.get("attainment_upper_bound"),
    "clairvoyant_goodput_per_s": figure_in("clairvoyant", "goodput_per_s"),
    "clairvoyant_attainment": figure_in("clairvoyant", "attainment"),
}


#: The two ends of what was possible.
_BEST = {"clairvoyant": "clairvoyant_goodput_per_s", "upper_bound": "goodput_upper_bound_per_s"}


def oracle_cells(oracles: Sequence[Oracle]) -> list[dict[str, Any]]:
    """By rate: the oracles' figures as Intervals over the draws that have oracles (`seeds`). An oracle has `rate_per_s` and
    `seed`, and any of `goodput_upper_bound_per_s`, `attainment_upper_bound`, `clairvoyant` ({attainment, goodput_per_s}) and
    `quality_cost` ([{cost_usd_per_request, quality}])."""
    return [
        {
            "rate_per_s": rate,
            "seeds": unique(own, "seed"),
            **{name: interval(map(of, own), resampled=resampled(own)) for name, of in _FIGURES.items()},
            "quality_cost": sorted(
                next((one["quality_cost"] for one in own if one.get("quality_cost")), []),
                key=lambda point: float(point["cost_usd_per_request"]),
            ),
        }
        for rate in sorted(unique(oracles, "rate_per_s"))
        for own in [[one for one in oracles if one["rate_per_s"] == rate]]
    ]


def regrets(runs: Sequence[Run], oracles: Sequence[Oracle], baseline: str) -> list[dict[str, Any]]:
    """For each rate and policy that an oracle knows, as Intervals over the draws (`seeds`) that both have:
    `regret_per_s` and `gap_closed` (none where the baseline leaves no gap to speak of), each against the
    `clairvoyant` schedule and against the `upper_bound`."""
    goodput = {(run["policy"], run["rate_per_s"], run["seed"]): run["goodput_per_s"] for run in runs}
    entries = []
    one_trace = resampled(oracles)
    for rate, policy, _ in by_rate_and_policy(runs):
        own = [
            (one, goodput[policy, rate, one["seed"]], goodput.get((baseline, rate, one["seed"])))
            for one in oracles
            if one["rate_per_s"] == rate and goodput.get((policy, rate, one["seed"])) is not None
        ]
        if own:
            against = {
                best: _against([(_FIGURES[figure](one), *rest) for one, *rest in own], rate, one_trace)
                for best, figure in _BEST.items()
            }
            seeds = [one["seed"] for one, *_ in own]
            entries.append({"policy": policy, "rate_per_s": rate, "seeds": seeds, **against})
    return entries


def _against(draws: Sequence[tuple[Any, ...]], rate_per_s: float, one_trace: bool) -> dict[str, Any] | None:
    """`draws` are (best, reached, baseline's) goodputs; None if the best is not known in any."""
    known = [draw for draw in draws if draw[0] is not None]
    if not known:
        return None
    return {
        "regret_per_s": interval((best - reached for best, reached, _ in known), resampled=one_trace),
        "gap_closed": interval(
            (
                (reached - least) / (best - least)
                for best, reached, least in known
                if least is not None and best - least >= _LEAST_GAP * rate_per_s
            ),
            resampled=one_trace,
        ),
    }
