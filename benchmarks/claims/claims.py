"""What is measured for the documentation, and which tables and figures show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks import cost_order
from benchmarks.claims.figure import attainment, attainment_by_scenario
from benchmarks.claims.measured import BLOCK, LATENCIES, PRICED
from benchmarks.claims.tables import FULL, Figures, block, by_rate, end_to_end, goodput, provenance, shipped
from benchmarks.pickers import page as pickers

#: The results of `CLAIMS`.
RESULTS = "docs/claims.json"
#: The `results.json` of `headway experiment training`.
_TRAINING = "docs/experiment_training.json"


@dataclass(frozen=True, slots=True)
class Claim:
    """A comparison of policies on a reference scenario, in its small form or its `full` one, which needs the public traces.
    `seeds` is the number of draws, `oracle_seeds` that of the draws for which a clairvoyant schedule is searched, and
    `measures` are those that are kept."""

    policies: tuple[str, ...]
    rates: tuple[int, ...]
    measures: tuple[str, ...] = LATENCIES
    seeds: int = 10
    oracle_seeds: int = 1
    full: bool = False

    def command(self, name: str, policies: tuple[str, ...], *, seeds: int | None = None) -> list[str]:
        """The command that measures these policies, in so many draws (None: all), without its `--out`. Oracles are asked
        with all draws only."""
        return [
            *("compare", "--scenario", name.removesuffix(FULL), *([] if self.full else ["--small"])),
            *("--seeds", str(seeds or self.seeds), "--rates", ",".join(map(str, self.rates))),
            *("--policies", ",".join(policies), "--oracle-effort", "quick"),
            *("--oracle-seeds", str(self.oracle_seeds if seeds is None else 0)),
        ]


_PLACING = ("round_robin", "least_load", "lmetric", "latency", "slo")
_SMALL = {
    "mixed-fleet": Claim(
        ("round_robin", "least_load", "lmetric", "best_single", "price", "latency", "slo", "relevance", "cost"),
        (40,),
        PRICED,
    ),
    "split-prices": Claim(
        ("round_robin", "least_load", "price", "latency", "slo", "relevance", "cost"), (25,), PRICED
    ),
    "one-model-unequal-gpus": Claim(
        (
            "round_robin", "power_of_two", "least_load", "lmetric", "predicted_latency", "most_headroom", "latency", "slo",
        ),
        (30, 40, 50, 60),
    ),
    "equal-gpus": Claim(_PLACING, (45, 55, 68), BLOCK),
    "unlike-widths": Claim(("lmetric", "slo", "latency", "length_groups"), (8, 16)),
    "long-context": Claim((*_PLACING, "length_groups"), (2,)),
    "bursty-code": Claim(_PLACING, (6,)),
    "overload": Claim(_PLACING, (100,)),
    "instance-loss": Claim(_PLACING, (30,)),
}  # fmt: skip
#: The rates at which scenarios are compared with each other.
_SHOWN = {
    **{name: claim.rates for name, claim in _SMALL.items()},
    "one-model-unequal-gpus": (50,),
    "equal-gpus": (45,),
}
#: The rate of a full form: of its scenario's own rates the one nearest to that of the small form, of two the lower.
_SHOWN_FULL = {
    f"{name}{FULL}": (rate,)
    for name, rate in (
        ("mixed-fleet", 40),
        ("split-prices", 20),
        ("one-model-unequal-gpus", 50),
        ("equal-gpus", 40),
        ("unlike-widths", 8),
        ("long-context", 2),
        ("bursty-code", 6),
        ("overload", 80),
        ("instance-loss", 30),
    )
}
#: By the scenario's name, with `FULL` for its full form.
CLAIMS = {
    **_SMALL,
    **{
        name: replace(_SMALL[name.removesuffix(FULL)], rates=rates, full=True)
        for name, rates in _SHOWN_FULL.items()
    },
}


@dataclass(frozen=True, slots=True)
class Table:
    """What stands between the marks of this name on a page. `write` gets what `results` has: the figures by scenario
    (`RESULTS`), another report, or of a folder of artifacts what each says about itself, by kind."""

    name: str
    page: str
    write: Callable[[Any], str]
    results: str = RESULTS


TABLES = (
    Table("unequal-gpus", "README.md", lambda found: by_rate(found["one-model-unequal-gpus"], times_at="40")),
    Table("end-to-end", "docs/results.md", partial(end_to_end, shown=_SHOWN)),
    Table("full-forms", "docs/results.md", partial(end_to_end, shown=_SHOWN_FULL)),
    Table("block", "docs/results.md", lambda found: block(found["equal-gpus"])),
    Table("cost-order", "docs/results.md", cost_order.table, "docs/cost_order.json"),
    Table("predictors", "docs/results.md", shipped, "predictors/defaults"),
    Table("provenance", "docs/results.md", provenance),
    Table(
        "goodput-lengths",
        "docs/experiments.md",
        partial(goodput, section="Goodput: lengths of answers", fleets=["ZeroEval, E2E targets"]),
        _TRAINING,
    ),
    Table(
        "goodput-parts",
        "docs/experiments.md",
        partial(
            goodput,
            section="Goodput: parts of the latency predictor",
            fleets=["unequal GPUs, unlike their profiles", "unequal GPUs, no profiles"],
        ),
        _TRAINING,
    ),
    Table("pickers", "docs/pickers.md", pickers.text_of, "docs/pickers.json"),
    Table("second-look", "docs/pickers.md", pickers.looks_of, "docs/second_look.json"),
)
#: By file.
DRAWINGS: Mapping[str, Callable[[Mapping[str, Figures]], str]] = {
    "docs/images/attainment-unequal-gpus.svg": lambda found: attainment(found["one-model-unequal-gpus"]),
    "docs/images/attainment-scenarios.svg": partial(attainment_by_scenario, shown=_SHOWN, policies=_PLACING),
}
