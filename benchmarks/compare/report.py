"""The report of a comparison: everything that its files and its page show, as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compare.capacity import TARGET, capacities
from benchmarks.compare.cells import cells, paired_differences, unique, with_savings
from benchmarks.compare.regret import oracle_cells, regrets
from benchmarks.compare.summary import ITL_NOTES
from benchmarks.measures import Interval
from benchmarks.replay.summary import LAG_WARNING_S

REPORT_KEY = "headway_report"
VERSION = 3

#: What policies are compared with where it was run; else the first of them is.
BASELINE = "round_robin"


def report(
    runs: Sequence[Mapping[str, Any]],
    *,
    about: Mapping[str, Any],
    complete: bool,
    oracles: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The report of `runs`: summaries with `name`, `policy`, `rate_per_s` (None: the workload's own) and `seed`, one each.
    `about` is what was measured and how; the page shows of it `url` or `fleet`, `scenario`, `model`, `slo`, `speed`,
    `command`, `warning` and `workload` (`header`, `described`). `oracles` as in `regret.oracle_cells`. A `timeline` is kept
    for the first seed only: the others look alike and are most of the bytes."""
    runs = _at_known_rates(runs)
    oracles = sorted(oracles, key=lambda one: int(one["seed"]))  # they come as they are done
    policies = unique(runs, "policy")
    baseline = BASELINE if BASELINE in policies or not policies else policies[0]
    runs = with_savings(runs, baseline)
    first_seed = runs[0]["seed"] if runs else None
    kept = [run if run["seed"] == first_seed else {**run, "timeline": None} for run in runs]
    return {
        REPORT_KEY: VERSION,
        "complete": complete,
        "warning": None,
        "speed": 1.0,
        **about,
        "policies": policies,
        "rates_per_s": sorted(unique(runs, "rate_per_s")),
        "seeds": unique(runs, "seed"),
        "baseline": baseline,
        "notes": [*(ITL_NOTES[how] for how in unique(runs, "itl_of")), *_ratings_note(runs)],
        "attainment_target": TARGET,
        "cells": cells(runs),
        "paired": paired_differences(runs, baseline),
        "capacity": capacities(runs, baseline),
        "oracle": oracle_cells(oracles),
        "regret": regrets(runs, oracles, baseline),
        "runs": kept,
    }


def _ratings_note(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of runs against a gateway that judges some of its answers."""
    rated = sum(run.get("ratings") or 0 for run in runs)
    note = f"Quality is the mean score of the gateway's judge, of {rated:,} answers in all runs."
    return [note] if rated else []


def _at_known_rates(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs at the workload's own rate under one number: the mean of what was measured, which differs a
    little between seeds."""
    own = Interval.of(run["measured_rate_per_s"] for run in runs if run["rate_per_s"] is None).mean
    return [run if run["rate_per_s"] is not None else {**run, "rate_per_s": own or 0.0} for run in runs]


def lag_warning(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """One line if the client was too slow to be believed, else None."""
    worst = max((run["client_lag_s"]["p99"] or 0.0 for run in runs), default=0.0)
    if worst <= LAG_WARNING_S:
        return None
    return f"the client sent up to {worst * 1000:,.0f} ms late (p99): its own load shows in these times"
