"""Runs of one draw share requests and engines; differences are taken draw by draw."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.experiments import goodput
from benchmarks.experiments.goodput import Case, Trial, run, section
from benchmarks.experiments.latency_fits import LatencyFit
from benchmarks.experiments.predictor_parts import Parts
from benchmarks.simulator import Simulation

CASE = Case("unequal", "one-model-unequal-gpus", 45.0)


def trial(**of_case: Any) -> Trial:
    return Trial(replace(CASE, **of_case), "p", Parts(), "latency", 3, 40)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Simulation, list[Any]]]:
    """Each simulation, and its arrivals."""
    found: list[tuple[Simulation, list[Any]]] = []
    play = Simulation.run

    def watched(self: Simulation, arrivals: Any, *args: Any) -> Any:
        asked = list(arrivals)
        found.append((self, asked))
        return play(self, asked, *args)

    monkeypatch.setattr(Simulation, "run", watched)
    return found


def profiles(simulation: Simulation) -> dict[str, Any]:
    return {name: dict(each.profiles) for name, each in simulation.scheduler.instances.items()}


def test_what_the_router_knows_of_engines(seen: list[tuple[Simulation, list[Any]]]) -> None:
    for known in ("fit", "unlike", "none"):
        assert 0 <= run(trial(profiles=known))["attainment"] <= 1
    (fit, asked), (unlike, same), (none, _) = seen
    assert [each.request.id for each in asked] == [each.request.id for each in same]
    assert profiles(fit) == profiles(unlike)
    assert set(map(len, profiles(none).values())) == {0}
    ends = [[at for at, *_ in simulation.timeline.moments[-1]] for simulation in (fit, unlike)]
    assert ends[0] != ends[1]  # the engines are others


def test_targets_of_e2e_take_the_place_of_the_others(seen: list[tuple[Simulation, list[Any]]]) -> None:
    run(trial())
    run(trial(e2e=True))
    (_, both), (_, e2e) = seen
    for before, after in zip(both, e2e, strict=True):
        old, new = before.request.slo, after.request.slo
        assert (new.ttft_s, new.tpot_s) == (None, None)
        assert new.e2e_s == pytest.approx(old.ttft_s + 100 * old.tpot_s)


def test_runs_can_be_sent_to_other_processes() -> None:
    for latency in (None, "shipped", LatencyFit({}), LatencyFit(forests=[{}])):
        sent = replace(trial(), parts=Parts(latency))
        assert pickle.loads(pickle.dumps(sent)) == sent  # noqa: S301 (ours)


def test_differences_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    """One predictor is always 0.1 better, though draws differ by far more."""
    monkeypatch.setattr(goodput, "run", _made)
    monkeypatch.setattr(goodput.pool, "cores", lambda: 1)
    found = goodput.play([CASE], {"base": Parts(), "better": Parts(None)}, draws=3, requests=10, seed=1)
    written = section("t", "n", [], found, "base")
    assert [each.name for each in written.charts] == ["n_latency", "n_slo"]
    (table,) = written.tables
    rows = {(row[1], row[2]): row for row in table.rows}
    assert rows["slo", "base"][-2:] == [None, None]
    assert rows["slo", "better"][-2] == pytest.approx(1.0)
    assert rows["slo", "better"][-1] == "1.00 to 1.00"


def _made(of: Trial) -> dict[str, float]:
    attainment = 0.2 * (of.seed % 4) + 0.1 * (of.predictor == "better")
    return {"attainment": attainment, "goodput_per_s": 10 * attainment, "error": 0.1, "within_p95": 0.9}
