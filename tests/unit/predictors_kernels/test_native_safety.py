"""Compiled code refuses what it cannot take: no argument and no object that is not initialised ends the process or stays in
what is learned."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictors import kernels
from predictors.kernels.length_bins import PRIOR_SHARES
from predictors.kernels.reference.estimates import AnalyticEstimate, Estimate
from predictors.learned.artifact import SHIPPED, load, path_of
from predictors.learned.models import KINDS
from router.core.state import Instance
from router.core.types import LoadReport, Slo

if kernels.WHY_NOT_NATIVE is not None:
    pytest.skip(kernels.description(), allow_module_level=True)

from backends.native import assemble, scanner
from predictors.kernels.native import distributions, estimates, histories, networks, residuals, words

SHARES = np.array(PRIOR_SHARES)
LATENCY = dict(load(path_of(SHIPPED, "latency"), "latency", KINDS["latency"].model.features).arrays)
MODULES = (assemble, scanner, distributions, estimates, histories, networks, residuals, words)
CLASSES: dict[str, Any] = {
    each.__name__: each
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, type) and each.__module__ == module.__name__
}
ESTIMATE = Estimate(1.0, 1.0, 0, 0, 0.0, 0.0, 2, 2, 1.0, 0.0, 1.0, 0.0, 1.0)


def estimates_with(window: Any) -> estimates.Estimates:
    return estimates.Estimates([AnalyticEstimate(ESTIMATE, 1.0, 0.5, 1.0, window, window)])


def without_a_window(step: Callable[[residuals.StratifiedResiduals], None]) -> None:
    errors = residuals.StratifiedResiduals(1, 0.35, 0.5)
    errors.strata[0] = None
    step(errors)


ODD: list[Any] = [None, 0, -1, 2**62, 2**100, 0.5, nan, inf, b"", b"data: {}\n\n", "x", (), (1, 2, 3), [], [None], {}, np.zeros(0), SHARES[::2],
       np.ones((3, 47), order="F"), np.zeros(3, object), ESTIMATE, Instance("i", "vllm", {})]  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_an_object_that_is_not_initialised_ends_no_process(name: str) -> None:
    kind, rng = CLASSES[name], Random(name)
    try:
        one = kind.__new__(kind)
    except TypeError:
        return  # it cannot be had
    for member in dir(one):
        if member.startswith("__") and member not in {"__len__", "__getitem__"}:
            continue
        for size in (0, 1, 2, 3, 4, 5, 6, 7, 8) * 3:
            try:
                called = getattr(one, member)
                called(*rng.choices(ODD, k=size))
            except Exception:  # noqa: BLE001, S112 (any error will do)
                continue


@pytest.mark.parametrize("name", CLASSES)
def test_the_memory_of_an_object_cannot_be_set_from_outside(name: str) -> None:
    assert not hasattr(CLASSES[name], "__setstate_cython__")


@pytest.mark.parametrize(
    "step",
    [
        lambda: estimates_with(None),
        lambda: without_a_window(lambda errors: errors.observe(0, 1.0)),
        lambda: without_a_window(lambda errors: errors.correct(0, 1.0, 2.0)),
        lambda: distributions.LearnedLengths().table(SHARES, None),
        lambda: distributions.LearnedLengths().observe(SHARES, None, 5, False),
        lambda: distributions.served_tables([None], SHARES[None], [distributions.LengthTable(SHARES)]),
        lambda: distributions.p_miss(
            Slo(1.0, 1.0, 1.0), 0.0, estimates_with(residuals.ResidualWindow(0.35, 0.5)), [(None, None, 1)], [False], [False],
            b"", [-1],
        ),
    ],
)  # fmt: skip
def test_none_in_place_of_an_object_is_an_error(step: Callable[[], object]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        step()


def test_a_window_of_any_memory() -> None:
    for memory in (1, 2, 2**40, 2**62):
        window = residuals.ResidualWindow(0.35, 0.5, memory)
        for at in range(300):
            window.observe(0.01 * at)
        assert window.count == 300
    for memory in (0, -1):
        with pytest.raises(ValueError, match="memory"):
            residuals.ResidualWindow(0.35, 0.5, memory)


def told(**values: float) -> Any:
    return SimpleNamespace(
        **{
            "ttft_s": 1.0, "ttft_bias": 0.0, "tpot_s": 1.0, "tpot_bias": 0.0, "prompt_tokens": 9.0, "cached_tokens": 0.0,
            **values,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    "step",
    [
        lambda history, at: history.first_token(at, told(), nan, 1.0),
        lambda history, at: history.first_token(at, told(), -1.0, 1.0),
        lambda history, at: history.first_token(at, told(ttft_s=0.0), 1.0, 1.0),
        lambda history, at: history.dispatched(at, told(ttft_bias=nan), 0.02, 1.0),
        lambda history, at: history.dispatched(at, told(prompt_tokens=-5.0), 0.02, 1.0),
        lambda history, at: history.ended(at, told(tpot_s=-1.0), 5, 0.1, 1.0),
        lambda history, at: history.ended(at, told(cached_tokens=nan), 5, 0.1, 1.0),
        lambda history, at: history.lost(at, nan, False, 1.0),
        lambda history, at: history.reported(at, nan),
        lambda history, at: (at.takes_report(LoadReport(kv_usage=nan), 1.0), history.reported(at, 1.0)),
    ],
)
def test_what_is_no_number_does_not_get_into_a_history(step: Callable[[Any, Instance], object]) -> None:
    history, instance = histories.InstanceHistory(networks.LatencyNetwork(LATENCY)), Instance("i", "vllm", {})
    history.reported(instance, 0.5)
    before = history.state.copy()
    with pytest.raises(ValueError, match=r"."):
        step(history, instance)
    assert (history.state == before).all()
    instance.takes_report(LoadReport(), 2.0)
    history.reported(instance, 2.0)
    assert np.isfinite(history.state).all()
    assert np.isfinite(history.summary(instance)).all()
