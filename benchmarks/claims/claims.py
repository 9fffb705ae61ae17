"""Which tables there are: where each is shown, and what measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.claims.tables import Figures, by_rate, by_rate_and_policy


@dataclass(frozen=True, slots=True)
class Claim:
    """A table of a page. `scenario` are arguments of `headway compare`; `seeds` the number of draws, `oracle_seeds` that
    of the draws for which a clairvoyant schedule is searched; `write` makes the table; `figure` is the file of a figure of
    attainment by rate, if there is one."""

    page: str
    scenario: tuple[str, ...]
    policies: tuple[str, ...]
    rates: tuple[int, ...]
    seeds: int
    write: Callable[[Figures], str]
    oracle_seeds: int = 0
    figure: str | None = None

    def command(self, policies: tuple[str, ...], out: str, *, seeds: int | None = None) -> list[str]:
        """The command that measures these policies, in so many draws (None: all). A clairvoyant schedule is only searched
        with all policies and all draws, since the search begins with the best policy's schedule."""
        arguments = ["compare", "--scenario", *self.scenario, "--seeds", str(seeds or self.seeds)]
        arguments += ["--rates", ",".join(map(str, self.rates)), "--policies", ",".join(policies)]
        oracle_seeds = self.oracle_seeds if seeds is None and policies == self.policies else 0
        return [*arguments, "--oracle-seeds", str(oracle_seeds), "--out", out]


CLAIMS = {
    "unequal-gpus": Claim(
        "README.md",
        ("one-model-unequal-gpus", "--small"),
        (
            "round_robin", "power_of_two", "least_load", "lmetric", "predicted_latency", "most_headroom", "latency", "slo",
        ),
        (30, 40, 50, 60),
        10,
        partial(by_rate, times_at="40"),
        oracle_seeds=1,
        figure="docs/images/attainment-unequal-gpus.svg",
    ),
    "equal-gpus": Claim(
        "docs/results.md",
        ("equal-gpus", "--small"),
        ("predicted_latency", "least_load", "lmetric", "latency", "slo"),
        (45,),
        6,
        by_rate_and_policy,
    ),
    "unlike-widths-small": Claim(
        "docs/results.md",
        ("unlike-widths", "--small"),
        ("lmetric", "slo", "latency", "length_groups"),
        (8, 16),
        10,
        by_rate_and_policy,
    ),
}  # fmt: skip
