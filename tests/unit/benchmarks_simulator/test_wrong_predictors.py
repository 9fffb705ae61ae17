"""Policies on predictors that are wrong: how much is lost, whether it is noticed, and whether it heals.

What is wrong before the online calibration (constants of another hardware, a latency model trained on something
else) heals; what bends predictions after it cannot, and shows as an error of predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import log
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from benchmarks.simulator import Fleet, Simulation
from benchmarks.workloads.format import WorkloadRequest
from predictors.learned.models import UNTRAINED, load_models
from predictors.online.predictor import OnlinePredictor
from tests.unit.benchmarks_simulator.scenarios import MIXED, fleet, workload
from tests.unit.benchmarks_simulator.worlds import understood
from tests.unit.benchmarks_simulator.wrong import (
    MistakenLatency,
    Wrong,
    constant,
    lengths,
    mistaken_profiles,
    overconfident,
    reversed_qualities,
    shuffled,
)

REQUESTS = 500
SLO = {"ttft_ms": 500, "tpot_ms": 40, "e2e_ms": 8000}
NAMES = [each["name"] for each in MIXED[:5]]


@cache
def world() -> tuple[Fleet, list[WorkloadRequest]]:
    """Five engines of unequal speed under a load that not all of them bear."""
    return fleet(*MIXED[:5]), workload(REQUESTS, 14.0, prompt_tokens=600, output_tokens=120)


@dataclass(frozen=True)
class Reached:
    """Attainment and coverage of the TTFT's predicted 95 % quantile, of the first and of the second half."""

    attained: tuple[float, float]
    covered: tuple[float, float]
    columns: dict[str, Any]
    predictor: OnlinePredictor

    @property
    def attainment(self) -> float:
        return fmean(self.attained)

    @property
    def tpot_log_error(self) -> float:
        """Mean |ln(actual / told)| of TPOT over instances."""
        told = [each["tpot_abs_log_error"] for each in self.predictor.coverage().values()]
        return fmean(each for each in told if each is not None)


def reach(
    policy: str,
    predictor: OnlinePredictor,
    profiles: float | dict[str, float] = 1.0,
    slo: dict[str, int] | None = SLO,
) -> Reached:
    of, requests = world()
    simulation = Simulation(of, seed=1, predictor=predictor)
    if profiles != 1.0:
        mistaken_profiles(simulation.scheduler.instances.values(), profiles)
    columns = simulation.run(understood(requests, of, policy=policy, slo=slo)).columns
    kept, ttft_s, told_s = columns["met"] == 1, columns["ttft_s"], columns["predicted_ttft_s_p95"]
    halves = (slice(None, REQUESTS // 2), slice(REQUESTS // 2, None))
    attained = tuple(float(kept[half].mean()) for half in halves)
    covered = tuple(float((ttft_s[half] <= told_s[half]).mean()) for half in halves)
    return Reached((attained[0], attained[1]), (covered[0], covered[1]), columns, predictor)


@cache
def usual(policy: str) -> Reached:
    """With the real predictor, untrained."""
    return reach(policy, OnlinePredictor())


# --- what is calibrated afterwards heals ----------------------------------------------------------------
@pytest.mark.parametrize("policy", ["slo", "latency"])
@pytest.mark.parametrize("by", [0.3, 3.0, "mixed"])
def test_constants_of_another_hardware_heal(policy: str, by: float | str) -> None:
    profiles = dict(zip(NAMES, (0.3, 3.0, 1.0, 3.0, 0.3), strict=True)) if isinstance(by, str) else by
    found = reach(policy, OnlinePredictor(UNTRAINED), profiles)
    true = usual(policy)
    assert found.attained[0] > true.attained[0] - 0.1
    assert found.attained[1] > true.attained[1] - 0.03
    assert found.covered[1] > 0.9


@pytest.mark.parametrize("bent", [{"by": log(0.3)}, {"by": log(3.0)}, {"narrow": 0.1}])
def test_a_latency_model_of_something_else_is_found_out(bent: dict[str, float]) -> None:
    shipped = load_models()
    assert shipped.latency is not None
    mistaken = MistakenLatency(shipped.latency, **bent)
    predictor = OnlinePredictor(replace(shipped, latency=mistaken))  # type: ignore[arg-type]
    found = reach("slo", predictor)
    assert any(weights["ttft"] < 0.3 for weights in predictor.latency_weights().values())
    assert found.attained[1] > usual("slo").attained[1] - 0.03
    assert found.covered[1] > 0.9


def test_the_shipped_latency_model_has_the_larger_weight_here() -> None:
    predictor = OnlinePredictor(load_models())
    assert reach("slo", predictor).covered[1] > 0.9
    assert all(weights["ttft"] > 0.5 for weights in predictor.latency_weights().values())


# --- what is bent afterwards costs ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("policy", "predictor"),
    [
        *(("latency", Wrong(times=times)) for times in (0.3, 3.0)),
        *((policy, Wrong(bend=lengths(by))) for policy in ("slo", "latency") for by in (0.2, 5.0)),
        ("slo", Wrong(times=3.0)),
        ("latency", Wrong(bend=overconfident)),
    ],
)
def test_what_keeps_the_order_of_options_costs_nothing(policy: str, predictor: Wrong) -> None:
    """Times and lengths that are wrong alike everywhere leave the right choices right."""
    found = reach(policy, predictor)
    assert found.attainment > usual("least_load").attainment
    assert found.attainment > usual(policy).attainment - 0.03


@pytest.mark.parametrize("predictor", [Wrong(times=0.3), Wrong(bend=overconfident)])
def test_best_fit_stops_packing_when_misses_are_denied(predictor: Wrong) -> None:
    """`slo` fills an instance up to its predicted limit, so whoever denies misses has it overfill; it notices by the
    misses that it hears of, and does about as well as without predictions, the time until then included."""
    found = reach("slo", predictor)
    assert found.attainment > usual("least_load").attainment - 0.05


@pytest.mark.parametrize("policy", ["slo", "latency"])
@pytest.mark.parametrize("bend", [constant, shuffled])
def test_what_tells_options_wrongly_apart_shows_in_the_errors(policy: str, bend: Any) -> None:
    """No policy that believes it can do well; the error of what was told is many times the usual one, and the policy
    believes it no more once it has heard of the misses."""
    found = reach(policy, Wrong(bend=bend))
    assert found.tpot_log_error > 3 * usual(policy).tpot_log_error
    assert found.attainment > 0.45
    assert found.attained[1] > found.attained[0] or found.attainment > usual("least_load").attainment


@pytest.mark.parametrize("times", [0.3, 3.0])
def test_times_that_are_bent_show_in_the_errors(times: float) -> None:
    found = reach("latency", Wrong(times=times))
    assert found.tpot_log_error > 0.8  # ln 3 is 1.1
    assert usual("latency").tpot_log_error < 0.3


def test_qualities_told_upside_down_move_only_who_looks_at_them() -> None:
    for policy in ("slo", "latency"):
        found = reach(policy, Wrong(bend=reversed_qualities))
        assert np.array_equal(found.columns["instance"], usual(policy).columns["instance"])
    models = [
        reach("relevance", predictor, slo=None).columns["model"]
        for predictor in (Wrong(), Wrong(bend=reversed_qualities))
    ]
    assert (models[0] != models[1]).mean() > 0.5
