"""Whatever a scheduler does, it does not pass the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from benchmarks.oracles import oracles
from benchmarks.oracles.bound import Program, _Cell, _Window, goodput_upper_bound
from benchmarks.oracles.schedule import Job, serve
from benchmarks.oracles.truth import Truth
from benchmarks.oracles.work import LeastWork
from benchmarks.simulator import Arrival, Fleet, simulate
from policies import POLICIES
from router.core.settlement import tpot_s
from router.core.types import Slo
from tests.examples import few_examples
from tests.unit.benchmarks_oracles.cases import (
    CRAMPED,
    FLEETS,
    INSTANCES,
    arrival,
    fleet,
    some,
    with_policy,
    with_slo,
)
from tests.unit.benchmarks_simulator.worlds import MODEL, emulated, one_by_one


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


def test_a_prefix_that_is_held_once_takes_its_memory_once() -> None:
    """Twelve contexts of 1600 tokens, 1536 of which they share, fit into the KV memory of two."""
    of = fleet(emulated("one"), profile=replace(CRAMPED, kv_capacity_tokens=3200, max_seqs=16))
    prefix = (1, 2, 3)
    first = arrival("first", 0.0, 1537, 2, None, prefix)
    others = [arrival(f"r{at}", 5.0 + at * 1e-3, 1537, 100, None, prefix) for at in range(12)]
    longest_s = float(simulate(of, [first, *others]).columns["e2e_s"][1:].max())
    arrivals = [first, *(with_slo(each, Slo(e2e_s=longest_s)) for each in others)]
    assert int((simulate(of, arrivals).columns["met"] == 1).sum()) == 12
    assert bound(of, arrivals) == 12


@pytest.mark.parametrize("chunked_prefill", [True, False])
def test_what_an_engine_holds_is_what_it_says(chunked_prefill: bool) -> None:
    """An answer that the end of the engine's context cuts short ends in time, and a prompt beyond it nowhere."""
    of = fleet(
        emulated("one"),
        profile=replace(
            CRAMPED, chunked_prefill=chunked_prefill, kv_capacity_tokens=1600, max_batched_tokens=1590
        ),
    )
    (limit,) = (engine.limit_tokens(MODEL) for engine in of.engines().values())
    assert limit == (1600 if chunked_prefill else 1584)
    arrivals = [
        arrival("cut", 0.0, 1500, 1000, Slo(e2e_s=60.0)),
        arrival("long", 0.0, limit, 1, Slo(e2e_s=60.0)),
    ]
    truth = Truth(of, arrivals)
    assert [[each.output_tokens for each in some] for some in truth.attempts] == [[limit - 1500], []]
    columns = simulate(of, arrivals).columns
    assert list(columns["met"]) == [1, 2]
    assert columns["output_tokens"][0] == limit - 1500
    found = goodput_upper_bound(truth)
    assert (found.met, found.offered) == (1, 1)
    assert oracles(of, arrivals, {}, effort="brief")["clairvoyant"]["met"] == 1


@pytest.mark.parametrize("output_tokens", [4, 8, 12, 20, 56])
@pytest.mark.parametrize("speed", [1.0, 3.0])
@pytest.mark.parametrize("own_s", [0.0, 1e-17])
def test_where_sequences_cost_nothing_rounding_costs_nothing(
    output_tokens: int, speed: float, own_s: float
) -> None:
    """All share steps of 0.1 s that no sequence makes longer, and ask for just this pace."""
    only_floor = replace(one_by_one(0.1), max_seqs=12, per_token_extra_s=own_s, kv_capacity_tokens=100_000)
    of = fleet(emulated("one", speed=speed), profile=only_floor)
    first = arrival("first", 0.0, 10, output_tokens)
    others = [arrival(f"r{at}", 0.05, 10, output_tokens) for at in range(9)]
    columns = simulate(of, [first, *others]).columns
    pace_s = float(((columns["e2e_s"] - columns["ttft_s"]) / (output_tokens - 1)).max())
    arrivals = [first, *(with_slo(each, Slo(ttft_s=0.2, tpot_s=pace_s)) for each in others)]
    assert int((simulate(of, arrivals).columns["met"] == 1).sum()) == 9
    assert bound(of, arrivals) == 9


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


@few_examples
@given(
    seed=st.integers(0, 2**32),
    instances=FLEETS,
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


@few_examples
@given(
    seed=st.integers(0, 2**32),
    instances=FLEETS,
    rate=st.sampled_from([2.0, 8.0, 30.0]),
    sessions=st.sampled_from([0, 3]),
    cramped=st.booleans(),
    hard=st.sampled_from([0.0, 0.5]),
    some_policies=st.permutations(sorted(POLICIES)).map(lambda names: names[:8]),
)
def test_no_policy_passes_the_bound(
    seed: int,
    instances: list[dict[str, object]],
    rate: float,
    sessions: int,
    cramped: bool,
    hard: float,
    some_policies: list[str],
) -> None:
    of = fleet(*instances, profile=CRAMPED if cramped else None)
    arrivals = some(40, rate, seed, sessions, hard)
    most = bound(of, arrivals)
    for policy in some_policies:
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


def test_a_token_comes_from_a_decode_or_from_a_prefill_made_again() -> None:
    """The KV cache is dear to read and the prompt is in it: then what a preemption costs is less, at first."""
    profile = replace(CRAMPED, per_kv_token_s=1e-5)
    prefix = (1, 2)
    truth = Truth(
        fleet(emulated("one"), profile=profile), [arrival("r", 0.0, 1024, 200, Slo(e2e_s=60.0), prefix)]
    )
    ((_, (_, decode)),) = LeastWork(truth).of(0)
    bare = replace(profile, overhead_s=0.0, floor_s=0.0)  # whatever a step takes then is its sequence's own
    floor_s = compute_s = 0.0
    cheaper = []
    for new in range(1, 200):
        by_decode_s = bare.step_s(0, 1, 1024 + new, 0.0)
        again_s = bare.step_s(new, 0, 0, new * (1024 + (new + 1) / 2))
        compute_s += min(by_decode_s, again_s)
        floor_s += min(by_decode_s - bare.per_token_s, again_s - new * bare.per_token_s)
        cheaper.append(again_s < by_decode_s)
    assert 0 < sum(cheaper) < len(cheaper)
    assert decode.own_s == pytest.approx((floor_s, compute_s))


def test_an_answer_that_was_preempted_does_not_pass_the_bound() -> None:
    """A token from a prefill made again instead of a decode that is dear: what was had so is possible."""
    profile = replace(
        CRAMPED, overhead_s=0.0, floor_s=1e-4, per_kv_token_s=1e-3, kv_capacity_tokens=576, max_seqs=2
    )
    of = fleet(emulated("one"), profile=profile)
    arrivals = [arrival(f"r{at}", 0.0, 513, 40, None, (7,)) for at in range(2)]
    engine = of.engines()["one"]
    for each in arrivals:
        engine.submit(each.request.id, MODEL, 513, 40, each.prefix_hashes, 0.0)
    now = 0.0
    while (due := engine.next_at()) is not None:
        now = due
        engine.advance(now)
    assert engine.preemptions
    decodes_s = 2 * sum(profile.per_kv_token_s * (513 + token) for token in range(1, 40))
    assert now < decodes_s
    assert bound(of, [with_slo(each, Slo(e2e_s=now)) for each in arrivals]) == 2


def test_prices_are_made_feasible() -> None:
    """Rows: the room of the window, two rows of steps, floor and compute; the prices ask for more steps than
    the time rows cover, then for less."""
    empty = Program((), {}, 0)
    empty._windows = [_Window(0, 10.0, [_Cell([1, 2], (3, 4), (0.5, 0.25))])]
    prices = np.array([9.0, 3.0, 1.0, 2.0, 4.0])
    assert empty._repair(prices) == 60.0
    assert prices == pytest.approx([6.0, 1.5, 0.5, 2.0, 4.0])
    less = np.array([0.0, 0.5, 0.25, 2.0, 4.0])
    assert empty._repair(less) == 60.0
    assert less == pytest.approx([6.0, 0.5, 0.25, 2.0, 4.0])


@few_examples
@given(seed=st.integers(0, 2**32))
def test_whatever_prices_the_solver_tells_the_bound_holds(seed: int) -> None:
    """By weak duality: prices that are off only loosen it."""
    rng = np.random.default_rng(seed)
    truth = Truth(fleet(*INSTANCES[:2], profile=CRAMPED), steady(80, 20.0))
    work = LeastWork(truth)
    attempts = {at: work.of(at) for at in range(80)}
    tight = Program(truth.instances, attempts, 2).solve().bound

    def noisy(*args: Any, **options: Any) -> Any:
        found = linprog(*args, **options)
        found.ineqlin.marginals *= rng.uniform(0.5, 2.0, len(found.ineqlin.marginals))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scipy.optimize.linprog", noisy)
        assert Program(truth.instances, attempts, 2).solve().bound >= tight - 1e-6
