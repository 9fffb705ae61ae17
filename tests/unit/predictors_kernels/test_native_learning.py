"""What learns in compiled code learns what its Python form learns, whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors import kernels
from predictors.kernels.reference import calibration as calibration_in_python
from predictors.kernels.reference import histories as histories_in_python
from predictors.kernels.reference import latency_networks
from predictors.kernels.reference import residuals as residuals_in_python
from predictors.learned.artifact import SHIPPED, load, path_of
from predictors.learned.models import KINDS
from router.core.state import Instance
from router.core.types import LoadReport

if kernels.WHY_NOT_NATIVE is not None:
    pytest.skip(kernels.description(), allow_module_level=True)

from predictors.kernels.native import calibration, histories, networks, residuals

log_errors = st.floats(-5.0, 5.0)
PROBABILITIES = (0.0, 0.01, 0.05, 0.5, 0.9, 0.95, 0.999, 1.0)
SUMMARY = ("count", "bias", "tail", "median", "p95", "factors", "values", "_pseudo")
#: Of residuals: learn one, or correct the one that was learned so many before.
steps = st.lists(
    st.tuples(st.just("observe"), log_errors)
    | st.tuples(st.just("correct"), st.tuples(st.integers(1, 40), log_errors)),
    max_size=120,
)


def told(window: Any, residuals: list[float]) -> list[Any]:
    return [
        *(getattr(window, name) for name in SUMMARY),
        window.quantiles(PROBABILITIES),
        [window.exceed(each) for each in residuals],
        window.least_factor(),
    ]


def same(found: list[Any], wanted: list[Any]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@given(steps, st.integers(1, 9), st.lists(log_errors, max_size=5))
def test_windows_of_errors(taken: list[tuple[str, Any]], memory: int, at: list[float]) -> None:
    pair = [module.ResidualWindow(0.35, 0.5, memory) for module in (residuals, residuals_in_python)]
    known: list[float] = []
    for name, argument in taken:
        for window in pair:
            if name == "observe":
                window.observe(argument)
            elif known:
                window.correct(known[-min(argument[0], len(known))], argument[1])
        if name == "observe":
            known.append(argument)
        elif known:
            known[-min(argument[0], len(known))] = argument[1]
    same(*(told(window, at) for window in pair))


@given(st.integers(0, 3000), st.integers(0, 2**32))
def test_a_full_window_moves_on(count: int, seed: int) -> None:
    pair = [module.ResidualWindow(0.35, 0.5, 16) for module in (residuals, residuals_in_python)]
    drawn = np.random.default_rng(seed).normal(size=count).round(2).tolist()
    for at, residual in enumerate(drawn):
        for window in pair:
            window.observe(residual)
            if at % 7 == 3:
                window.correct(residual, residual + 0.25)
    same(*(told(window, [0.0, 1.0]) for window in pair))


def test_odd_errors_break_no_window() -> None:
    window = residuals.ResidualWindow(0.35, 0.5, 10)
    for at in range(200):
        window.observe((float("nan"), float("inf"), -float("inf"), 1.0)[at % 4])
        window.correct(1.0, float("nan"))
    assert len(window.values) == 40


@given(st.lists(st.tuples(st.integers(0, 1), log_errors, st.booleans()), max_size=80))
def test_windows_by_stratum(learned: list[tuple[int, float, bool]]) -> None:
    pair = [module.StratifiedResiduals(2, 0.35, 0.5) for module in (residuals, residuals_in_python)]
    for stratum, residual, corrected in learned:
        for each in pair:
            each.observe(stratum, residual)
            if corrected:
                each.correct(stratum, residual, residual + 0.1)
    ours, theirs = pair
    assert [each is ours.pooled for each in ours.windows] == [
        each is theirs.pooled for each in theirs.windows
    ]
    for found, wanted in zip([*ours.windows, *ours.strata], [*theirs.windows, *theirs.strata], strict=True):
        same(told(found, [0.0]), told(wanted, [0.0]))


seconds = st.floats(1e-4, 10.0)


@given(st.lists(st.tuples(seconds, seconds), max_size=60), seconds)
def test_shrinkage(learned: list[tuple[float, float]], at: float) -> None:
    pair = [module.Shrinkage() for module in (residuals, residuals_in_python)]
    for estimate_s, actual_s in learned:
        for each in pair:
            each.observe(estimate_s, actual_s)
    same(*([each.slope, each.mean, each.reach, each.shrunk(at)] for each in pair))


# --- calibration ---------------------------------------------------------------------------------------
quantiles = st.lists(log_errors, min_size=15, max_size=15).map(tuple)


@given(st.lists(st.tuples(log_errors, quantiles), max_size=250), st.lists(st.booleans()))
def test_the_calibration_of_a_kind(
    learned: list[tuple[float, tuple[float, ...]]], within: list[bool]
) -> None:
    pair = [module.GroupCalibration() for module in (calibration, calibration_in_python)]
    coverages = [module.Coverage() for module in (calibration, calibration_in_python)]
    for group, coverage in zip(pair, coverages, strict=True):
        for residual, predicted in learned:
            group.offsets[0].learn(predicted, residual)
            group.accuracy.observe(residual, *predicted[1:5])
            coverage.observe_tpot(residual)
        for each in within:
            coverage.observe_output(each)
    ours, theirs = ([each.offsets[0].values, each.accuracy.as_dict()] for each in pair)
    assert ours == theirs
    assert coverages[0].as_dict() == coverages[1].as_dict()


# --- histories -----------------------------------------------------------------------------------------
LATENCY = dict(load(path_of(SHIPPED, "latency"), "latency", KINDS["latency"].model.features).arrays)
counts = st.integers(0, 60)
estimates = st.builds(
    SimpleNamespace,
    ttft_s=seconds, ttft_bias=log_errors, tpot_s=seconds, tpot_bias=log_errors,
    prompt_tokens=st.floats(1.0, 1e5), cached_tokens=st.floats(0.0, 1e5),
)  # fmt: skip
reports = st.builds(
    LoadReport,
    running=st.none() | counts,
    waiting=st.none() | counts,
    kv_usage=st.none() | st.floats(0.0, 1.0),
)
events = st.one_of(
    st.tuples(st.just("waits")),
    st.tuples(st.just("stops_waiting"), counts),
    st.tuples(st.just("dispatched"), estimates, seconds),
    st.tuples(st.just("first_token"), estimates, seconds),
    st.tuples(st.just("ended"), estimates, counts, st.none() | st.just(0.0) | seconds),
    st.tuples(st.just("lost"), seconds, st.booleans()),
    st.tuples(st.just("reported"), reports),
)


def play(history: Any, happened: list[Any], asked: bool) -> tuple[list[Any], tuple[float, ...]]:
    instance = Instance("i", "vllm", {})
    for at, (name, *arguments) in enumerate(happened):
        now = 0.25 * at
        instance.in_flight, instance.context_tokens = at % 7, 100 * at
        instance.awaiting_first_token, instance.pending_prefill_tokens = at % 3, 17 * (at % 3)
        if name == "waits":
            history.waits(now)
        elif name == "stops_waiting":
            history.stops_waiting(0.25 * arguments[0])
        elif name == "reported":
            instance.takes_report(arguments[0], now)
            history.reported(instance, now)
        else:
            getattr(history, name)(instance, *arguments, now)
        if asked:
            history.summary(instance)
    return history.events, history.summary(instance)


@given(st.lists(events, max_size=60), st.booleans())
def test_the_history_of_an_instance(happened: list[Any], asked: bool) -> None:
    (rows, seen), (wanted_rows, wanted) = (
        play(module.InstanceHistory(None), happened, asked) for module in (histories, histories_in_python)
    )
    same([rows, seen], [wanted_rows, wanted])
    make: list[Callable[[], Any]] = [
        lambda: histories.InstanceHistory(networks.LatencyNetwork(LATENCY)),
        lambda: histories_in_python.InstanceHistory(latency_networks.LatencyNetwork(LATENCY)),
    ]
    ours, theirs = (each() for each in make)
    for each in (ours, theirs):
        assert play(each, happened, asked)[0] == []
    np.testing.assert_allclose(ours.state, theirs.state, rtol=3e-6, atol=3e-6)


def test_what_is_no_number_does_not_get_into_a_state() -> None:
    history, instance = histories.InstanceHistory(networks.LatencyNetwork(LATENCY)), Instance("i", "vllm", {})
    before = history.state.copy()
    instance.context_tokens = -5
    with pytest.raises(ValueError, match="below 0"):
        history.reported(instance, 1.0)
    assert (history.state == before).all()
