"""How much load a policy bears: the highest rate at which attainment keeps to its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.compare.cells import unique
from benchmarks.measures import Interval

TARGET = 0.95

Bound = Literal["within", "at_least", "below"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """One seed's. `bound`: "within" the rates that were run; "at_least" the highest of them, which still kept
    the target; "below" the lowest of them, which did not."""

    rate_per_s: float
    bound: Bound


def capacity_of(points: Sequence[tuple[float, float]], target: float = TARGET) -> Capacity | None:
    """From (rate, attainment), rising in rate: the last rate that keeps the target, and from there along the
    straight line to the next. None of no points."""
    if not points:
        return None
    keeping = [index for index, (_, attained) in enumerate(points) if attained >= target]
    if not keeping:
        return Capacity(points[0][0], "below")
    last = keeping[-1]
    rate, attained = points[last]
    if last == len(points) - 1:
        return Capacity(rate, "at_least")
    next_rate, next_attained = points[last + 1]
    share = (attained - target) / (attained - next_attained)
    return Capacity(rate + share * (next_rate - rate), "within")


def capacities(
    runs: Sequence[Mapping[str, Any]], baseline: str, target: float = TARGET
) -> list[dict[str, Any]]:
    """For each policy: `by_seed`, the mean `rate_per_s` with its interval, whether that mean is a `bound`
    ("mixed": some seeds lie below the rates that were run and some above, so there is no mean), and the
    `ratio` to the baseline's capacity, seed by seed, where both lie within the rates."""
    found: dict[str, dict[Any, Capacity]] = {}
    for policy in unique(runs, "policy"):
        own = [run for run in runs if run["policy"] == policy and run["attainment"] is not None]
        found[policy] = {
            seed: capacity
            for seed in unique(own, "seed")
            if (
                capacity := capacity_of(
                    sorted((run["rate_per_s"], run["attainment"]) for run in own if run["seed"] == seed),
                    target,
                )
            )
        }
    return [_entry(policy, by_seed, found.get(baseline, {})) for policy, by_seed in found.items()]


def _entry(policy: str, by_seed: Mapping[Any, Capacity], baseline: Mapping[Any, Capacity]) -> dict[str, Any]:
    bounds = {capacity.bound for capacity in by_seed.values()} - {"within"}
    mean = Interval.of(capacity.rate_per_s for capacity in by_seed.values())
    bound = "mixed" if len(bounds) > 1 else bounds.pop() if bounds else "within"
    ratios = [
        capacity.rate_per_s / baseline[seed].rate_per_s
        for seed, capacity in by_seed.items()
        if capacity.bound == "within" and seed in baseline and baseline[seed].bound == "within"
    ]
    return {
        "policy": policy,
        "rate_per_s": asdict(mean if bound != "mixed" else Interval(0, None, None)),
        "bound": bound if by_seed else None,
        "ratio": asdict(Interval.of(ratios)),
        "by_seed": [{"seed": seed, **asdict(capacity)} for seed, capacity in by_seed.items()],
    }
