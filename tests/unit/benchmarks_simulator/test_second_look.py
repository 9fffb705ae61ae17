"""The simulator carries out checks, whose scores it draws from the truth."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from benchmarks.simulator import Fleet, Result, arrivals, open_fleet, simulate
from benchmarks.simulator.checks import CHECK_S, drawn_score
from benchmarks.workloads.format import WorkloadRequest
from policies.second_look import dprime
from router.config import FleetConfig

LOOK = {"model": "judge", "key": "judge", "auc": 0.95, "timeout_s": 10.0}


def fleet(**sections: object) -> Fleet:
    """A cheap and a dear model, and one that checks."""
    models = [
        {"name": name, "price": {"input_usd_per_mtok": usd, "output_usd_per_mtok": usd}, "quality": quality}
        for name, usd, quality in (("cheap", 1.0, 0.55), ("dear", 40.0, 0.9), ("judge", 0.01, 0.5))
    ]
    profile = "llama-3.1-8b@a100-80g"
    instances = [
        {
            "name": each["name"],
            "kind": "emulated",
            "profile": profile,
            "serves": {each["name"]: {"name": "m", "profile": profile}},
        }
        for each in models
    ]
    auth = {"keys": [{"name": "judge", "sha256": "0" * 64}]}
    file = {"models": models, "instances": instances, "auth": auth, "scheduling": {"explore": 0.0}} | sections
    return open_fleet(FleetConfig.model_validate(file))


def workload(count: int = 400) -> list[WorkloadRequest]:
    rng, found = Random(1), []
    for at in range(count):
        quality = {"cheap": float(rng.random() < 0.55), "dear": float(rng.random() < 0.9)}
        routing = {"models": ["cheap", "dear"]}
        found.append(
            WorkloadRequest(
                f"r{at}", at + 1.0, 100, output_tokens=50, max_tokens=60, quality=quality, routing=routing
            )
        )
    return found


def played(**sections: object) -> Result:
    ours = fleet(**sections)
    return simulate(ours, arrivals(workload(), ours, policy="cost"))


def test_scores_of_good_and_poor_answers_are_told_apart_as_often_as_the_auc_says() -> None:
    d = dprime(0.9)
    good = [drawn_score(f"good {at}", 1.0, d) for at in range(3000)]
    poor = [drawn_score(f"poor {at}", 0.0, d) for at in range(3000)]
    assert fmean(a > b for a, b in zip(good, poor, strict=True)) == pytest.approx(0.9, abs=0.02)
    assert drawn_score("a", 0.5, d) == drawn_score("a", 0.5, d) != drawn_score("b", 0.5, d)


def test_checked_answers_are_better_value() -> None:
    without, looked = played(), played(second_look=LOOK)
    assert without.columns["attempts"].max() == 1
    replaced = looked.columns["attempts"] == 2
    assert 0.2 < replaced.mean() < 0.7
    assert looked.columns["cost_usd"].mean() < 0.8 * without.columns["cost_usd"].mean()
    assert looked.columns["quality"].mean() > without.columns["quality"].mean() - 0.03
    # The check takes its time, and a second answer takes its own.
    alone = ~replaced & (looked.columns["e2e_s"] > CHECK_S)
    assert alone.any()
    assert looked.columns["e2e_s"][replaced].min() > CHECK_S
    assert looked.columns["tpot_s"][alone].max() < 0.1


def test_the_same_seed_gives_the_same_checks() -> None:
    one, again = played(second_look=LOOK), played(second_look=LOOK)
    assert (one.columns["attempts"] == again.columns["attempts"]).all()
    assert (one.columns["cost_usd"] == again.columns["cost_usd"]).all()


def test_a_check_that_takes_too_long_changes_no_answer() -> None:
    late = played(second_look=LOOK | {"timeout_s": CHECK_S / 2})
    assert late.columns["attempts"].max() == 1
    assert late.columns["e2e_s"].max() > CHECK_S / 2
