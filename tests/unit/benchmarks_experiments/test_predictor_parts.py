"""Each part that is left out is left out, and the rest predicts as it does when it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.experiments.predictor_parts import PartialPredictor, Parts
from benchmarks.simulator import Arrival, Fleet, Simulation, arrivals
from predictors.kernels.length_bins import bin_of
from predictors.learned.models import load_models
from predictors.online.predictor import OnlinePredictor
from router.core.interfaces import Option
from tests.unit.benchmarks_simulator.scenarios import MIXED, fleet, workload

REQUESTS, MEAN = 60, 120.0


def world() -> tuple[Fleet, Sequence[Arrival]]:
    found = fleet(*MIXED[:3])
    return found, list(arrivals(workload(REQUESTS, 8.0), found, policy="latency"))


def columns(parts: Parts) -> tuple[PartialPredictor, dict[str, Any]]:
    """What was predicted and what came of it."""
    found, asked = world()
    means = {each.name: MEAN for each in found.config.models}
    predictor = parts.predictor(found.config, lambda: means)
    result = Simulation(found, seed=1, predictor=predictor).run(parts.arrivals(found.config, asked))
    return predictor, result.columns


def served(predictor: OnlinePredictor) -> dict[str, Any]:
    found, asked = world()
    return Simulation(found, seed=1, predictor=predictor).run(asked).columns


def options(found: Fleet) -> list[Option]:
    """All candidates of idle instances."""
    instances = [found.instance(name) for name in found.names]
    return [Option(candidate, each) for each in instances for candidate in each.candidates.values()]


def test_nothing_left_out_predicts_as_what_serves() -> None:
    _, found = columns(Parts(lengths="shipped"))
    assert (
        found["predicted_ttft_s_p95"] == served(OnlinePredictor(load_models()))["predicted_ttft_s_p95"]
    ).all()


def test_without_a_latency_model_the_physical_estimate_predicts() -> None:
    _, found = columns(Parts(None))
    assert (found["predicted_ttft_s_p95"] == served(OnlinePredictor())["predicted_ttft_s_p95"]).all()


def test_the_model_alone_has_all_the_weight() -> None:
    predictor, _ = columns(Parts(weighed=False))
    assert all(weights["ttft"] > 0.99 for weights in predictor.latency_weights().values())


@pytest.mark.parametrize("parts", [Parts(calibrated=False), Parts(None, corrected=False)])
def test_what_is_not_learned_is_as_at_the_start(parts: Parts) -> None:
    predictor, _ = columns(parts)
    learned = [*predictor.stats.candidates.values()]
    candidates = [Option(each.instance.candidates[each.key[1]], each.instance) for each in learned]
    predictor.predict_all(world()[1][0].request, candidates, 1e6)
    offsets = [value for each in learned for value in each.group.offsets[0].values]
    observed = [each.ttft.windows[0].count for each in learned]
    assert (any(offsets), any(observed)) == (False, parts.corrected)


@pytest.mark.parametrize(("lengths", "expected"), [("prior", None), ("mean", MEAN)])
def test_lengths_that_do_not_learn(lengths: Any, expected: float | None) -> None:
    predictor, _ = columns(Parts(lengths=lengths))
    (model,) = {each.candidate.model for each in options(world()[0])}
    of = predictor.stats.lengths.of(model).output
    assert of.observed > 0
    if expected is None:
        assert of.p50 == OnlinePredictor().stats.lengths.of(model).output.p50
    else:
        assert bin_of(round(of.p50)) == bin_of(round(expected))


def test_the_true_length_is_predicted() -> None:
    predictor, _ = columns(Parts(lengths="true"))
    found, asked = world()
    (arrival,) = Parts(lengths="true").arrivals(found.config, asked[-1:])
    of = options(found)
    predictor.predict_all(arrival.request, of, 1e6)
    for each in of:
        assert each.prediction is not None
        tokens = arrival.output_tokens[each.candidate.model]
        assert bin_of(round(each.prediction.output_tokens_p50 or 0)) == bin_of(tokens)
