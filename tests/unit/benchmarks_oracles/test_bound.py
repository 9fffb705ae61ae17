"""Whatever a scheduler does, it does not pass the bound."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.oracles import Job, Truth, goodput_upper_bound, serve
from benchmarks.oracles.work import LeastWork
from benchmarks.simulator import Arrival, Fleet, simulate
from benchmarks.workloads.format import WorkloadError
from policies import POLICIES
from router.core.outcome import tpot_s
from router.core.types import Slo
from tests.unit.benchmarks_oracles.cases import (
    CRAMPED,
    INSTANCES,
    arrival,
    fleet,
    some,
    with_policy,
    with_slo,
)
from tests.unit.benchmarks_simulator.worlds import emulated, one_by_one


def bound(of: Fleet, arrivals: Sequence[Arrival], **options: int) -> int:
    return goodput_upper_bound(Truth(of, arrivals), **options).met


def one_server(step_s: float = 0.1) -> Fleet:
    return fleet(emulated("one"), profile=one_by_one(step_s))


@pytest.mark.parametrize(("e2e_s", "most"), [(0.9, 0), (1.0, 1), (3.0, 3), (3.9, 3), (100.0, 5)])
def test_one_server_ends_one_answer_a_second(e2e_s: float, most: int) -> None:
    arrivals = [arrival(f"r{at}", 1.0, output_tokens=10, slo=Slo(e2e_s=e2e_s)) for at in range(5)]
    assert bound(one_server(), arrivals) == most


def test_first_tokens_that_are_due_at_once_share_the_server() -> None:
    arrivals = [arrival(f"r{at}", 1.0, output_tokens=10, slo=Slo(ttft_s=0.35)) for at in range(5)]
    assert bound(one_server(), arrivals) == 3


def test_a_crowd_in_a_quiet_hour_is_seen() -> None:
    crowd = [arrival(f"c{at}", 500.0, output_tokens=10, slo=Slo(e2e_s=20.0)) for at in range(40)]
    quiet = [arrival(f"q{at}", 25.0 * at, output_tokens=10, slo=Slo(e2e_s=20.0)) for at in range(40)]
    arrivals = sorted(crowd + quiet, key=lambda each: each.request.arrived_at)
    assert bound(one_server(), arrivals, levels=0) == 80
    assert bound(one_server(), arrivals, levels=6) < 75


def test_two_alike_do_twice_as_much() -> None:
    of = fleet(emulated("a"), emulated("b"), profile=one_by_one(0.1))
    arrivals = [arrival(f"r{at}", 1.0, output_tokens=10, slo=Slo(e2e_s=2.0)) for at in range(9)]
    assert bound(of, arrivals) == 4


def test_kv_memory_bounds_how_far_steps_are_shared() -> None:
    """Seven contexts of some 900 tokens fit into 6400 tokens, and twelve have a seat."""
    small = replace(CRAMPED, per_kv_token_s=0.0)
    arrivals = [arrival(f"r{at}", 0.0, 800, 200, Slo(e2e_s=14.0)) for at in range(60)]
    few = bound(fleet(emulated("one"), profile=small), arrivals)
    more = bound(fleet(emulated("one"), profile=replace(small, kv_capacity_tokens=64_000)), arrivals)
    assert 15 < few < more < 60


def test_what_others_may_have_cached_costs_nothing() -> None:
    of = fleet(emulated("one"), profile=CRAMPED)
    alone = [arrival(f"r{at}", 0.0, 2600, 1, Slo(ttft_s=2.0), (at,) * 5) for at in range(30)]
    shared = [arrival(f"r{at}", 0.0, 2600, 1, Slo(ttft_s=2.0), (1, 2, 3, 4, 5)) for at in range(30)]
    assert bound(of, alone) < 10
    assert bound(of, shared) == 30


def test_requests_without_an_slo_take_no_room() -> None:
    arrivals = [arrival(f"r{at}", 1.0, output_tokens=10, slo=Slo(e2e_s=1.0)) for at in range(2)]
    found = goodput_upper_bound(Truth(one_server(), [*arrivals, arrival("free", 1.0)]))
    assert (found.met, found.offered, found.attainment) == (1, 2, 0.5)
    nothing = goodput_upper_bound(Truth(one_server(), [arrival("free", 1.0)]))
    assert (nothing.met, nothing.offered, nothing.attainment) == (0, 0, None)


def test_a_prompt_that_fits_nowhere_is_not_offered_and_one_too_dear_is() -> None:
    slo = Slo(e2e_s=100.0)
    arrivals = [arrival("long", 1.0, 20_000, slo=slo), arrival("dear", 1.0, slo=slo, max_cost_usd=1e-9)]
    found = goodput_upper_bound(Truth(fleet(emulated("one")), arrivals))
    assert (found.met, found.offered) == (0, 1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    instances=st.lists(
        st.sampled_from(INSTANCES), min_size=1, max_size=4, unique_by=lambda each: each["name"]
    ),
    rate=st.sampled_from([1.0, 5.0, 30.0]),
    sessions=st.sampled_from([0, 3]),
    cramped=st.booleans(),
)
def test_what_has_happened_is_possible(
    seed: int, instances: list[dict[str, object]], rate: float, sessions: int, cramped: bool
) -> None:
    """Let each request ask for exactly what it got in some schedule: then all can be met, says the bound."""
    of = fleet(*instances, profile=CRAMPED if cramped else None)
    arrivals = some(40, rate, seed, sessions)
    before = Truth(of, arrivals)
    rng = np.random.default_rng(seed)
    jobs = []
    for at, (each, attempts) in enumerate(zip(arrivals, before.attempts, strict=True)):
        if attempts:
            jobs.append(Job(each.request.arrived_at, at, attempts[rng.integers(len(attempts))]))
    served = serve(before, jobs)
    got = []
    for at, each in enumerate(arrivals):
        slo = None
        if at in served:
            ttft_s = served[at].first_s - each.request.arrived_at
            e2e_s = served[at].end_s - each.request.arrived_at
            each_s = tpot_s(ttft_s, e2e_s, served[at].output_tokens)
            slo = (Slo(ttft_s, each_s), Slo(ttft_s, each_s, e2e_s), Slo(e2e_s=e2e_s))[rng.integers(3)]
        got.append(with_slo(each, slo))
    found = goodput_upper_bound(Truth(of, got), levels=5)
    assert found.met == found.offered == len(served)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    instances=st.lists(
        st.sampled_from(INSTANCES), min_size=1, max_size=4, unique_by=lambda each: each["name"]
    ),
    rate=st.sampled_from([2.0, 8.0, 30.0]),
    sessions=st.sampled_from([0, 3]),
    cramped=st.booleans(),
    hard=st.sampled_from([0.0, 0.5]),
)
def test_no_policy_passes_the_bound(
    seed: int, instances: list[dict[str, object]], rate: float, sessions: int, cramped: bool, hard: float
) -> None:
    of = fleet(*instances, profile=CRAMPED if cramped else None)
    arrivals = some(40, rate, seed, sessions, hard)
    most = bound(of, arrivals)
    for policy in POLICIES:
        columns = simulate(of, with_policy(arrivals, policy)).columns
        assert int((columns["met"] == 1).sum()) <= most, policy


def test_a_higher_rate_leaves_less() -> None:
    of = fleet(INSTANCES[0], profile=CRAMPED)
    found = [bound(of, steady(120, rate)) for rate in (1.0, 4.0, 10.0, 40.0, 160.0)]
    assert found[0] == 120
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[2] < 120


def test_parts_and_fewer_windows_only_loosen() -> None:
    of = fleet(*INSTANCES[:2], profile=CRAMPED)
    arrivals = steady(150, 20.0)
    tight, loose = bound(of, arrivals, levels=6), bound(of, arrivals, levels=0)
    assert tight <= loose < bound(of, arrivals, levels=0, part_requests=40)


def steady(count: int, rate_per_s: float) -> list[Arrival]:
    """Equal requests at equal distances."""
    return [arrival(f"r{at}", at / rate_per_s, 400, 100, Slo(e2e_s=6.0)) for at in range(count)]


def test_the_least_work_of_a_lone_answer_is_its_own() -> None:
    """An instance of one seat without batching: the bound's steps are the engine's."""
    slo = Slo(ttft_s=0.5, tpot_s=0.2)
    (attempt, (prefill, decode)), *rest = LeastWork(
        Truth(one_server(), [arrival("r", 2.0, 300, 11, slo)])
    ).of(0)
    assert not rest
    assert attempt.output_tokens == 11
    assert (prefill.seats, decode.seats) == (1.0, 10.0)
    assert (prefill.release_s, prefill.due_s) == (2.0, 2.5)
    assert decode.release_s == pytest.approx(2.1)
    assert decode.due_s == pytest.approx(4.5)


def test_without_scipy_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(WorkloadError, match=r"oracles need scipy: pip install 'headway\[bench\]'"):
        bound(one_server(), [arrival("r", 0.0, slo=Slo(e2e_s=9.0))])
