"""Latency data from emulated fleets: the same for the same seed, and what a gateway would know."""

from __future__ import annotations

from collections import defaultdict

import pytest

from backends.engine import profile
from benchmarks.datasets.emulated import LEVELS, emulate
from policies.placement.engine_rate import requests_per_s
from predictors.training.dataset import Attempt, Dataset


@pytest.fixture(scope="module")
def data() -> Dataset:
    return emulate(seed=3, runs=2 * len(LEVELS), requests=60)


def by_run(data: Dataset) -> dict[str, list[Attempt]]:
    found = defaultdict(list)
    for attempt in data.attempts:
        found[attempt.run].append(attempt)
    return found


def test_the_same_seed_gives_the_same_data() -> None:
    assert emulate(seed=2, runs=2, requests=20) == emulate(seed=2, runs=2, requests=20)
    assert emulate(seed=2, runs=2, requests=20) != emulate(seed=3, runs=2, requests=20)


def test_worlds_differ(data: Dataset) -> None:
    assert {run.level for run in data.runs} == set(LEVELS)
    assert {run.kind for run in data.runs} == {"vllm", "ollama"}
    assert {run.family for run in data.runs} == {"llama", "qwen"}
    assert len({run.id for run in data.runs}) == len({run.instance for run in data.runs}) == len(data.runs)
    for run in data.runs:
        known = run.profile is not None and profile(run.profile).name == run.profile
        assert known == (run.profile_values is not None)


def test_times_are_in_order_and_losses_are_seen(data: Dataset) -> None:
    for attempts in by_run(data).values():
        assert [each.dispatched_s for each in attempts] == sorted(each.dispatched_s for each in attempts)
        for each in attempts:
            assert each.ended_s is not None
            assert each.dispatched_s <= (each.first_token_s or each.dispatched_s) <= each.ended_s
            assert (each.ended_how == "ok") == (each.output_tokens is not None)
    assert {each.ended_how for each in data.attempts} == {"ok", "cancelled"}
    assert any(each.cached_tokens for each in data.attempts)


def test_every_run_has_attempts_and_reports(data: Dataset) -> None:
    runs = {run.id: run for run in data.runs}
    assert set(by_run(data)) == set(runs) == {state.run for state in data.states}
    for state in data.states:
        assert (state.kv_usage is None) == (runs[state.run].kind == "ollama")


def test_load_is_felt(data: Dataset) -> None:
    """Batches are larger where more is offered."""
    most: dict[str, list[int]] = defaultdict(list)
    levels = {run.id: run.level for run in data.runs if run.kind == "vllm"}
    for state in data.states:
        if state.run in levels:
            most[str(levels[state.run])].append((state.running or 0) + (state.waiting or 0))
    idle = max(most[LEVELS[0]] + most[LEVELS[1]])
    assert max(max(counts) for level, counts in most.items() if level in LEVELS[4:]) > 2 * idle


def test_capacity_grows_with_hardware_and_shrinks_with_lengths() -> None:
    small, large = profile("llama-3.1-8b@l4"), profile("llama-3.1-8b@h100-80g")
    assert requests_per_s(large, 1000, 100, 256) > 3 * requests_per_s(small, 1000, 100, 256)
    assert requests_per_s(small, 100, 100, 256) > requests_per_s(small, 1000, 100, 256)
    assert requests_per_s(small, 100, 100, 4) < requests_per_s(small, 100, 100, 256)


def test_data_do_not_depend_on_models_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def shipped(_: object) -> None:
        raise AssertionError("asked for the shipped predictors")

    monkeypatch.setattr("benchmarks.simulator.fleet.create_predictor", shipped)
    assert emulate(seed=2, runs=1, requests=10).attempts
