"""Policies and predictors that raise at any call, whatever happens in whatever order: `ledger` says what must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.events import Event
from router.core.scheduler import Scheduler
from router.core.types import Prediction
from router.decision_log import compared
from tests.unit.core.script import Script

OBSERVING = ("observe_dispatch", "observe_ttft", "observe_end", "observe_loss", "observe_report", "forget")
PREDICTING = ("predict", "predict_all", "qualities", "ttft_floor_s")


class Faults:
    """Makes methods fail now and then while an event is handled. `on` is False where a test itself calls them."""

    def __init__(self, rng: Random, share: float) -> None:
        self.rng = rng
        self.share = share
        self.on = False
        self.made: Counter[str] = Counter()

    def into(self, scheduler: Scheduler, names: Iterable[str]) -> None:
        """Faults in these methods of the predictor, and in these of the policies."""
        scheduler.on_fault = lambda error: None
        for name in names:
            for each in (scheduler.predictor, *scheduler.policies.values()):
                if hasattr(each, name):
                    setattr(each, name, self._failing(name, getattr(each, name)))
        handle = scheduler.handle

        def handled(event: Event, now: float) -> Any:
            self.on = True
            try:
                return handle(event, now)
            finally:
                self.on = False

        scheduler.handle = handled  # type: ignore[method-assign]

    def _failing(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            if self.on and self.rng.random() < self.share:
                self.made[name] += 1
                if self.rng.random() < 0.5:  # it fails after its work is done
                    method(*arguments, **more)
                raise ZeroDivisionError(name)
            return method(*arguments, **more)

        return called


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.02, 0.2, 1.0]))
def test_whoever_fails_nothing_is_lost(seed: int, share: float) -> None:
    script = Script(Random(seed))
    Faults(Random(seed), share).into(script.s, (*OBSERVING, *PREDICTING, "choose", "placed", "ended"))
    script.run(100)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_fails_to_observe_changes_no_instruction(seed: int) -> None:
    script = Script(Random(seed))
    script.run(80)
    again, told = script.again()
    Faults(Random(seed), 0.3).into(again, OBSERVING)
    for event, now, text in told:
        assert compared(again.handle(event, now)) == text


def test_each_method_fails_in_these_tests() -> None:
    made: Counter[str] = Counter()
    for seed in range(50):
        script = Script(Random(seed))
        faults = Faults(Random(seed), 0.3)
        faults.into(script.s, (*OBSERVING, *PREDICTING, "choose", "placed", "ended"))
        script.run(100)
        made += faults.made
    assert set(made) == {*OBSERVING, *PREDICTING, "choose", "placed", "ended"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("field", [each.name for each in fields(Prediction)])
def test_a_prediction_that_is_no_number_costs_no_slot(field: str, value: float) -> None:
    for seed in range(4):
        script = Script(Random(seed))
        script.s.on_fault = lambda error: None
        predict = script.s.predictor.predict

        def odd(*arguments: Any, predict: Callable[..., Any] = predict) -> Any:
            return replace(predict(*arguments), **{field: value})

        script.s.predictor.predict = odd  # type: ignore[method-assign]
        script.run(60)
