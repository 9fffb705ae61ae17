"""What is measured for the documentation, and which tables and figures show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks import cost_order
from benchmarks.claims import experiments
from benchmarks.claims.figure import attainment, attainment_by_scenario
from benchmarks.claims.tables import (
    BLOCK,
    FULL,
    LATENCIES,
    PRICED,
    Figures,
    all_policies,
    block,
    by_rate,
    end_to_end,
    provenance,
    shipped,
)
from benchmarks.pickers import page as pickers
from benchmarks.scaling.report import of_case

#: The results of `CLAIMS`.
RESULTS = "docs/claims.json"
#: Draws of each comparison; a clairvoyant schedule is searched for the first one.
SEEDS = 10


#: Policies that choose the instance too, and those that choose a model alone: with one model these are all alike.
_BASELINES = (
    "random", "round_robin", "power_of_two", "least_load", "lmetric", "predicted_latency", "most_headroom",
)  # fmt: skip
_PICKERS = (
    "best_single", "eccos_rr", "eccos_r_rr", "llm_router_rr", "knn_rr", "clusters_rr", "logistic_rr", "budget_online",
)  # fmt: skip
_OWN = ("length_groups", "price", "latency", "slo", "relevance", "cost")
#: Those of which more is told than how much they attain and how long their answers take.
_PLACING = ("round_robin", "least_load", "lmetric", "latency", "slo")
_PRICING = (*_PLACING, "best_single", "eccos_rr", "llm_router_rr", "knn_rr", "price", "relevance", "cost")


@dataclass(frozen=True, slots=True)
class Claim:
    """A comparison of policies on a reference scenario, in its small form or its `full` one, which needs the public traces.
    `detailed` are the policies of which every measure is told, and `measures` are those that are kept."""

    rates: tuple[int, ...]
    detailed: tuple[str, ...] = (*_PLACING, "length_groups")
    measures: tuple[str, ...] = LATENCIES
    policies: tuple[str, ...] = (*_BASELINES, *_OWN)
    full: bool = False

    def command(self, name: str, policies: tuple[str, ...], *, seeds: int | None = None) -> list[str]:
        """The command that measures these policies, in so many draws (None: all), without its `--out`. Oracles are asked
        with all draws only."""
        return [
            *("compare", "--scenario", name.removesuffix(FULL), *([] if self.full else ["--small"])),
            *("--seeds", str(seeds or SEEDS), "--rates", ",".join(map(str, self.rates))),
            *("--policies", ",".join(policies), "--oracle-effort", "quick"),
            *("--oracle-seeds", str(int(seeds is None))),
        ]


_UNEQUAL = (
    "round_robin", "power_of_two", "least_load", "lmetric", "predicted_latency", "most_headroom", "length_groups", "latency",
    "slo",
)  # fmt: skip
_priced = partial(Claim, detailed=_PRICING, measures=PRICED, policies=(*_BASELINES, *_PICKERS, *_OWN))
_SMALL = {
    "mixed-fleet": _priced((40,)),
    "split-prices": _priced((25,)),
    "one-model-unequal-gpus": Claim((30, 40, 50, 60), _UNEQUAL),
    "equal-gpus": Claim((45, 55, 68), measures=BLOCK),
    "unlike-widths": Claim((8, 16)),
    "long-context": Claim((2,)),
    "bursty-code": Claim((6,)),
    "overload": Claim((100,)),
    "instance-loss": Claim((30,)),
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
        name: replace(small, rates=rates, full=True)
        for name, rates in _SHOWN_FULL.items()
        for small in [_SMALL[name.removesuffix(FULL)]]
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


_DETAILED = {name: claim.detailed for name, claim in CLAIMS.items()}


def _detailed(found: Mapping[str, Figures], name: str) -> Figures:
    """A claim's figures, of its `detailed` policies alone."""
    policies = found[name]["policies"]
    return {**found[name], "policies": {each: policies[each] for each in policies if each in _DETAILED[name]}}


TABLES = (
    Table(
        "unequal-gpus",
        "README.md",
        lambda found: by_rate(_detailed(found, "one-model-unequal-gpus"), times_at="40"),
    ),
    Table("all-policies", "docs/results.md", partial(all_policies, shown=_SHOWN)),
    Table("end-to-end", "docs/results.md", partial(end_to_end, shown=_SHOWN, detailed=_DETAILED)),
    Table("all-policies-full", "docs/results.md", partial(all_policies, shown=_SHOWN_FULL)),
    Table("full-forms", "docs/results.md", partial(end_to_end, shown=_SHOWN_FULL, detailed=_DETAILED)),
    Table("block", "docs/results.md", lambda found: block(_detailed(found, "equal-gpus"))),
    Table("cost-order", "docs/results.md", cost_order.table, "docs/cost_order.json"),
    Table("predictors", "docs/results.md", shipped, "predictors/defaults"),
    Table("provenance", "docs/results.md", provenance),
    Table("pickers", "docs/pickers.md", pickers.text_of, "docs/pickers.json"),
    Table("second-look", "docs/pickers.md", pickers.looks_of, "docs/second_look.json"),
    *(
        Table(f"scaling-{case}", "docs/scaling.md", partial(of_case, case=case), "docs/scaling.json")
        for case in ("servegen_m_large", "azure_conv")
    ),
    Table("experiments", "docs/experiments.md", experiments.provenance, experiments.KEPT),
    *(
        Table(name, page, partial(experiments.excerpt, experiment, name), experiments.KEPT)
        for experiment, names in experiments.EXCERPTS.items()
        for page in [experiments.PAGES.get(experiment, "docs/experiments.md")]
        for name in names
    ),
)
#: By file.
DRAWINGS: Mapping[str, Callable[[Mapping[str, Figures]], str]] = {
    "docs/images/attainment-unequal-gpus.svg": lambda found: attainment(
        _detailed(found, "one-model-unequal-gpus")
    ),
    "docs/images/attainment-scenarios.svg": partial(attainment_by_scenario, shown=_SHOWN, policies=_PLACING),
}
