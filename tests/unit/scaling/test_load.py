"""The load that a scaler sees."""

from __future__ import annotations

import pytest

from policies.scaling.types import ModelLoad
from router.core.events import Arrived
from router.core.types import Outcome
from router.gateway.telemetry import metrics as metrics_module
from router.gateway.telemetry.metrics import Metrics
from router.request.model_names import ModelNames
from router.scaling.load import Totals, model_loads, totals
from router.store.records import RequestRecord
from tests.unit.core.worlds import instance, request, scheduler

NAMES = ModelNames(["m", "n"], {"small": "m"}, ["latency"])


def record(requested: str, model: str | None, outcome: Outcome, **settings: object) -> RequestRecord:
    made = RequestRecord(id="r", received_at=0.0)
    made.model_requested, made.model, made.outcome = requested, model, outcome
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def test_totals_of_finished_requests_and_of_those_under_way() -> None:
    metrics = Metrics()
    metrics.set_fleet(policies=[], models=["m", "n"], aliases=["small"], instances={})
    answered = {"attempts": 1, "prompt_tokens": 10, "output_tokens": 5}
    for each in (
        record("small", "m", Outcome.OK, **answered),
        record("m", "n", Outcome.LATE, **answered, slo_ttft_s=1.0, slo_met=False),  # by a fallback
        record("auto", "n", Outcome.OK, **answered),
        record("m", None, Outcome.REJECTED_OVERLOAD, slo_ttft_s=1.0),
        record("m", None, Outcome.REJECTED_INVALID),
        record("auto", None, Outcome.REJECTED_OVERLOAD),
    ):
        metrics.record(each)
    running = scheduler(instance("a"))
    running.handle(Arrived(request("r", prompt_tokens=7)), 0.0)
    assert totals(metrics, running, NAMES) == {
        "m": Totals(arrivals=4, prompt_tokens=27, answers=2, output_tokens=10, slo_misses=2),
        "n": Totals(arrivals=1, prompt_tokens=10, answers=1, output_tokens=5),
    }


def test_loads_are_summed_over_replicas_since_the_last_decision() -> None:
    before = {"a": {"m": Totals(10, 100, 8, 80, 1)}, "gone": {"m": Totals(99)}}
    now = {"a": {"m": Totals(13, 130, 9, 90, 1), "n": Totals(2)}, "new": {"m": Totals(4, 40)}}
    assert model_loads(before, now, {"m": 5, "k": 1}) == {
        "m": ModelLoad(arrivals=7, prompt_tokens=70, answers=1, output_tokens=10, queued=5),
        "n": ModelLoad(arrivals=2),
        "k": ModelLoad(arrivals=0, queued=1),
    }


def test_a_request_that_ends_for_another_model_takes_nothing_away() -> None:
    before, now = {"a": {"m": Totals(5, 50)}}, {"a": {"m": Totals(4, 40)}}
    assert model_loads(before, now, {}) == {"m": ModelLoad(arrivals=0)}


def test_requests_count_for_their_model_however_many_pods_have_come_and_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_SERIES", 20)
    monkeypatch.setattr(metrics_module, "MAX_BY_MODEL", 4)
    metrics, running = Metrics(), scheduler(instance("a"))
    for number in range(100):
        pods = [f"pod-{each}" for each in range(number, number + 30)]
        metrics.set_fleet(policies=[], models=["m"], instances=dict.fromkeys(pods, "vllm"))
        before = totals(metrics, running, NAMES).get("m", Totals())
        for pod in pods:
            metrics.record(record("m", "m", Outcome.OK, instance=pod, attempts=1, prompt_tokens=10))
        counted = totals(metrics, running, NAMES)["m"]
        assert (counted.arrivals - before.arrivals, counted.prompt_tokens - before.prompt_tokens) == (30, 300)
    assert len(list(metrics.all_series())) <= 24
    assert metrics.kind("pod-0") == ""
    assert metrics.kind("pod-120") == "vllm"
