"""The capacity of a policy: the highest rate at which attainment keeps to its target.

It lies between two rates that were run. Only where these are near to each other is a straight line between
them a measurement; else only the two rates are reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, Literal

from benchmarks.compare.cells import excludes_zero, resampled, unique
from benchmarks.measures import Interval, interval

TARGET = 0.95
#: Attainment falls too sharply for a straight line between rates that are further apart than this factor.
NEAR_FACTOR = 1.25
#: More rates than this into one gap are for a second look.
_MOST_ADDED = 4

Bound = Literal["within", "between", "at_least", "below"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """One seed's. `low_per_s` is the last rate that keeps the target (None: none does), `high_per_s` the next,
    which does not (None: there is none). `bound`: "within" two rates near to each other, with the estimate
    `rate_per_s`; "between" two that are not; "at_least" the highest; "below" the lowest. `missed_per_s` are
    lower rates that do not keep the target although a higher one does."""

    bound: Bound
    low_per_s: float | None
    high_per_s: float | None
    rate_per_s: float | None = None
    missed_per_s: tuple[float, ...] = ()


def capacity_of(points: Sequence[tuple[float, float]], target: float = TARGET) -> Capacity | None:
    """From (rate, attainment), rising in rate. None of no points."""
    if not points:
        return None
    keeping = [index for index, (_, attained) in enumerate(points) if attained >= target]
    if not keeping:
        return Capacity("below", None, points[0][0])
    last = keeping[-1]
    rate, attained = points[last]
    missed = tuple(lower for lower, share in points[:last] if share < target)
    if last == len(points) - 1:
        return Capacity("at_least", rate, None, missed_per_s=missed)
    next_rate, next_attained = points[last + 1]
    if next_rate > NEAR_FACTOR * rate * (1 + 1e-9):
        return Capacity("between", rate, next_rate, missed_per_s=missed)
    share = (attained - target) / (attained - next_attained)
    return Capacity("within", rate, next_rate, rate + share * (next_rate - rate), missed)


def capacities(
    runs: Sequence[Mapping[str, Any]],
    baseline: str,
    target: float = TARGET,
    of: Callable[[Mapping[str, Any]], float | None] = itemgetter("attainment"),
) -> list[dict[str, Any]]:
    """For each policy: `by_seed`, and over its seeds a `bound`: as in `Capacity` where it is that of all of them
    ("between" where some are "within"), "mixed" where some are bounds and others are not, None without seeds.
    `low_per_s` and `high_per_s` hold all seeds (None: no such end), `missed_per_s` is of any seed. Where all
    are "within": the mean `rate_per_s` with its interval and, where the baseline's are too, the `ratio` to it,
    seed by seed. What must be at least `target` is attainment, or what `of` takes from a run."""
    found: dict[str, dict[Any, Capacity]] = {}
    for policy in unique(runs, "policy"):
        own = [run for run in runs if run["policy"] == policy and of(run) is not None]
        found[policy] = {
            seed: capacity
            for seed in unique(own, "seed")
            if (
                capacity := capacity_of(
                    sorted((run["rate_per_s"], of(run) or 0.0) for run in own if run["seed"] == seed), target
                )
            )
        }
    one_trace = resampled(runs)
    return [_entry(policy, by_seed, found.get(baseline, {}), one_trace) for policy, by_seed in found.items()]


def _entry(
    policy: str, by_seed: Mapping[Any, Capacity], baseline: Mapping[Any, Capacity], one_trace: bool
) -> dict[str, Any]:
    seeds = list(by_seed.values())
    bound = _bound_of(seeds)
    lows = [one.low_per_s for one in seeds if one.low_per_s is not None]
    highs = [one.high_per_s for one in seeds if one.high_per_s is not None]
    both_known = bound == _bound_of(list(baseline.values())) == "within"
    return {
        "policy": policy,
        "bound": bound,
        "low_per_s": min(lows, default=None) if len(lows) == len(seeds) else None,
        "high_per_s": max(highs, default=None) if len(highs) == len(seeds) else None,
        "missed_per_s": sorted({rate for one in seeds for rate in one.missed_per_s}),
        "resampled": one_trace,
        "rate_per_s": interval((one.rate_per_s for one in seeds if bound == "within"), resampled=one_trace),
        "ratio": interval(
            (
                capacity.rate_per_s / other.rate_per_s
                for seed, capacity in by_seed.items()
                if both_known and (other := baseline.get(seed)) and capacity.rate_per_s and other.rate_per_s
            ),
            resampled=one_trace,
        ),
        "by_seed": [{"seed": seed, **asdict(capacity)} for seed, capacity in by_seed.items()],
    }


def _bound_of(seeds: Sequence[Capacity]) -> Bound | Literal["mixed"] | None:
    bounds = {one.bound for one in seeds}
    if bounds == {"within", "between"}:
        return "between"
    return "mixed" if len(bounds) > 1 else bounds.pop() if bounds else None


def leaders(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The policy with the largest capacity of those that keep the target in some seed, and those that are not clearly
    behind it: whose difference, seed by seed, has an interval that holds zero, or whose seeds do not all lie
    at or below the leader's rates."""
    ordered = sorted((entry for entry in entries if entry["by_seed"]), key=_middle, reverse=True)
    if not ordered or all(one["low_per_s"] is None for one in ordered[0]["by_seed"]):
        return []
    return [entry["policy"] for entry in ordered if not _clearly_behind(entry, ordered[0])]


def _middle(entry: Mapping[str, Any]) -> float:
    """What entries are ordered by: mean of the seeds' estimates, or of the rates that they kept."""
    return math.fsum(
        (one["low_per_s"] or 0.0) if one["rate_per_s"] is None else one["rate_per_s"]
        for one in entry["by_seed"]
    ) / len(entry["by_seed"])


def _clearly_behind(entry: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    leading = {one["seed"]: one for one in best["by_seed"]}
    pairs = [(one, leading[one["seed"]]) for one in entry["by_seed"] if one["seed"] in leading]
    if entry["bound"] == best["bound"] == "within":
        return excludes_zero(
            Interval.of(
                (other["rate_per_s"] - one["rate_per_s"] for one, other in pairs),
                resampled=entry["resampled"],
            )
        )
    return bool(pairs) and all(
        one["high_per_s"] is not None
        and other["low_per_s"] is not None
        and one["high_per_s"] <= other["low_per_s"]
        for one, other in pairs
    )


def rates_to_add(report: Mapping[str, Any]) -> list[float]:
    """Rates that bring those around some seed's capacity within `NEAR_FACTOR` of each other, or nearer."""
    gaps = {
        (one["low_per_s"], one["high_per_s"])
        for entry in report["capacity"]
        for one in entry["by_seed"]
        if one["bound"] == "between"
    }
    added = set()
    for low, high in gaps:
        # One per cent is left for the rounding to three digits.
        needed = math.ceil(math.log(high / low) / math.log(0.99 * NEAR_FACTOR))
        pieces = min(needed, _MOST_ADDED + 1)
        added |= {float(f"{low * (high / low) ** (step / pieces):.3g}") for step in range(1, pieces)}
    return sorted(added)


def out_of_reach(report: Mapping[str, Any]) -> float | None:
    """The oracles' upper bound of attainment at the lowest rate, where it is below the target: then the requests
    themselves, as by their budgets, keep every policy from it, and lower rates would not help."""
    for one in report["oracle"]:
        bound: float | None = one["attainment_upper_bound"]["mean"]
        if one["rate_per_s"] == report["rates_per_s"][0] and bound is not None:
            return bound if bound < report["attainment_target"] else None
    return None
