"""Replays, and what becomes of traffic at emulated instances."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments import hardware
from benchmarks.experiments.replays import changed, followed
from benchmarks.experiments.traffic import (
    alone,
    answered,
    background,
    kinds_of,
    play,
    together,
    unequal_fleet,
)
from benchmarks.workloads.format import WorkloadRequest

REQUESTS = background(2.0, 40, seed=3)


def test_a_shuffled_replay_has_the_same_requests_at_the_same_times() -> None:
    shuffled = changed(REQUESTS, True, False, None, "a")
    assert [each.arrival_s for each in shuffled] == [each.arrival_s for each in REQUESTS]
    assert sorted(each.id for each in shuffled) == sorted(each.id for each in REQUESTS)
    assert [each.id for each in shuffled] != [each.id for each in REQUESTS]
    assert shuffled == changed(REQUESTS, True, False, None, "a") != changed(REQUESTS, True, False, None, "b")
    tokens = {each.id: each.output_tokens for each in REQUESTS}
    assert {each.id: each.output_tokens for each in shuffled} == tokens


def test_drawn_lengths_have_the_noise_that_is_given() -> None:
    long = [WorkloadRequest(f"r{at}", float(at), 10, output_tokens=1000) for at in range(400)]
    doubled = changed(long, False, True, np.log([2.0]), "a")
    assert {each.output_tokens for each in doubled} == {2000}
    usual = changed(long, False, True, None, "a")
    logs = np.log([(each.output_tokens or 0) / 1000 for each in usual])
    assert logs.std() == pytest.approx(0.30, abs=0.04)
    assert [each.id for each in usual] == [each.id for each in long]
    assert changed(long, False, False, None, "a") == long


def test_followed_requests_are_spread_over_the_lengths() -> None:
    ids = followed(REQUESTS)
    lengths = [next(each.prompt_tokens for each in REQUESTS if each.id == name) for name in ids]
    assert len(set(ids)) == 24
    assert lengths == sorted(lengths)
    assert lengths[0] == min(each.prompt_tokens for each in REQUESTS)
    assert lengths[-1] == max(each.prompt_tokens for each in REQUESTS)


def test_one_instance_answers_and_its_memory_is_seen() -> None:
    fleet = alone(unequal_fleet(), "a100-0")
    probe = [WorkloadRequest("probe", 3.0, 500, output_tokens=50)]
    stream = together(REQUESTS, probe)
    assert [each.arrival_s for each in stream] == sorted(each.arrival_s for each in stream)
    seen, again = (play(fleet, stream, seed=1) for _ in range(2))
    assert answered(seen.columns).all()
    row = seen.of(["probe"])[0]
    assert seen.columns["output_tokens"][row] == 50
    assert np.nanmax(seen.memory) < 0.5
    assert np.nanmin(seen.memory[np.isfinite(seen.memory)]) >= 0
    assert np.isfinite(seen.memory).sum() > 20
    # The engine model has no noise of its own.
    assert seen.columns["e2e_s"].tolist() == again.columns["e2e_s"].tolist()


def test_each_kind_of_instance_is_there_once() -> None:
    assert kinds_of(unequal_fleet()) == ["h100-0", "a100-0", "a40-0", "v100-0", "l4-0", "desk-0"]


def test_speeds_follow_the_hardware() -> None:
    h100, a100, l4 = (f"llama-3.1-8b@{kind}" for kind in ("h100-80g", "a100-80g", "l4"))
    assert hardware.prefill_per_s(h100) > hardware.prefill_per_s(a100) > hardware.prefill_per_s(l4)
    assert hardware.decode_per_s(a100, 32) > 20 * hardware.decode_per_s(a100, 1)
