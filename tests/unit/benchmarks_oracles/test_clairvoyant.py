"""The schedule that a search finds: it can be had, it is never worse than its start, and often the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.oracles.bound import goodput_upper_bound
from benchmarks.oracles.clairvoyant import Effort, search
from benchmarks.oracles.report import schedule_of
from benchmarks.oracles.schedule import Job, Lane, met, serve
from benchmarks.oracles.truth import Truth
from benchmarks.simulator import Arrival, Fleet, InstanceLoss, simulate
from router.core.types import Slo
from tests.examples import few_examples
from tests.unit.benchmarks_oracles.cases import CRAMPED, FLEETS, INSTANCES, arrival, fleet, some, with_policy
from tests.unit.benchmarks_simulator.worlds import emulated, one_by_one

SMALL = Effort(evaluations=600)


def kept(truth: Truth, jobs: Sequence[Job]) -> int:
    served = serve(truth, jobs)
    return sum(truth.offered(at) and met(truth.arrivals[at], times) for at, times in served.items())


@pytest.mark.parametrize("policy", ["random", "least_load", "slo", "relevance"])
@pytest.mark.parametrize("cramped", [False, True])
def test_a_served_schedule_is_what_the_simulator_makes_of_it(policy: str, cramped: bool) -> None:
    of = fleet(*INSTANCES, profile=CRAMPED if cramped else None)
    arrivals = some(80, 6.0, seed=3, sessions=4)
    result = simulate(of, with_policy(arrivals, policy))
    truth = Truth(of, arrivals)
    jobs = schedule_of(truth, result)
    served = serve(truth, jobs.values())
    assert set(served) == set(jobs)
    columns = result.columns
    for at, times in served.items():
        arrived_s = arrivals[at].request.arrived_at
        assert columns["e2e_s"][at] == pytest.approx(times.end_s - arrived_s, abs=1e-6)
        assert columns["ttft_s"][at] == pytest.approx(times.first_s - arrived_s, abs=1e-6)
        assert columns["output_tokens"][at] == times.output_tokens


def test_a_lost_instance_ends_what_it_has_and_takes_nothing() -> None:
    """Answers of a second, one after another. Lost from 3.5 to 6: the third is cut, the fourth and the fifth find nobody,
    the sixth finds an empty engine."""
    of = fleet(emulated("one"), profile=one_by_one(0.1))
    truth = Truth(
        of, [arrival(f"r{at}", 1.0, output_tokens=10) for at in range(6)], [InstanceLoss("one", 3.5, 2.5)]
    )
    sent_at = [1.0, 1.0, 1.0, 3.5, 5.9, 6.0]
    served = serve(truth, [Job(sent_at[at], at, truth.attempts[at][0]) for at in range(6)])
    assert {at: times.end_s for at, times in served.items()} == pytest.approx({0: 2.0, 1: 3.0, 5: 7.0})


def test_at_most_max_concurrency_are_inside() -> None:
    of = fleet(emulated("few", max_concurrency=1), profile=replace(one_by_one(0.1), max_seqs=8))
    truth = Truth(of, [arrival(f"r{at}", 1.0, output_tokens=10) for at in range(3)])
    served = serve(truth, [Job(1.0, at, truth.attempts[at][0]) for at in range(3)])
    assert [times.end_s for times in served.values()] == pytest.approx([2.0, 3.0, 4.0])


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_best_of_all_assignments(seed: int) -> None:
    """Two instances, five requests, every way to send or refuse them (at their arrival) tried."""
    of = fleet(emulated("a"), emulated("b", speed=2.0), profile=one_by_one(0.1))
    rng = np.random.default_rng(seed)
    arrivals = [
        arrival(f"r{at}", 0.5 * at, 100, int(rng.integers(5, 25)), Slo(e2e_s=float(rng.uniform(1.0, 3.0))))
        for at in range(5)
    ]
    truth = Truth(of, arrivals)
    best = 0
    for choice in product((None, 0, 1), repeat=len(arrivals)):
        jobs = [
            Job(arrivals[at].request.arrived_at, at, truth.attempts[at][to])
            for at, to in enumerate(choice)
            if to is not None
        ]
        best = max(best, kept(truth, jobs))
    bound = goodput_upper_bound(truth)
    found = search(truth, {}, bound.wanted, SMALL)
    assert best <= found.met <= bound.met


def test_a_hopeless_request_waits_for_the_others() -> None:
    """Served in order of arrival the long one, which cannot be in time, makes both others late."""
    of = fleet(emulated("one"), profile=one_by_one(0.1))
    arrivals = [
        arrival("long", 1.0, output_tokens=100, slo=Slo(e2e_s=5.0)),
        arrival("a", 1.1, output_tokens=10, slo=Slo(e2e_s=2.0)),
        arrival("b", 2.2, output_tokens=10, slo=Slo(e2e_s=2.0)),
    ]
    result = simulate(of, arrivals)
    assert int((result.columns["met"] == 1).sum()) == 0
    truth = Truth(of, arrivals)
    found = search(truth, schedule_of(truth, result), {}, SMALL)
    assert found.met == 2
    assert {job.request for job in found.jobs} == {0, 1, 2}  # a soft SLO ends nobody
    assert found.refused == ()
    hard = [arrivals[0]._replace(request=replace(arrivals[0].request, hard=True)), *arrivals[1:]]
    found = search(Truth(of, hard), {}, {}, SMALL)
    assert (found.met, found.refused) == (2, (0,))


def test_an_exchange_makes_room() -> None:
    """The start holds one long answer where two short ones would fit."""
    of = fleet(emulated("one"), profile=one_by_one(0.1))
    arrivals = [
        arrival("long", 1.0, output_tokens=30, slo=Slo(e2e_s=3.5)),
        arrival("a", 1.0, output_tokens=10, slo=Slo(e2e_s=2.5)),
        arrival("b", 1.0, output_tokens=10, slo=Slo(e2e_s=2.5)),
    ]
    truth = Truth(of, arrivals)
    start = {0: Job(1.0, 0, truth.attempts[0][0])}
    assert kept(truth, list(start.values())) == 1
    assert search(truth, start, {}, SMALL).met == 2


def test_a_change_is_judged_as_the_whole_lane_is() -> None:
    of = fleet(emulated("one"), profile=CRAMPED)
    arrivals = [
        arrival(f"r{at}", 0.06 * at, 300, 40, Slo(ttft_s=1.0, tpot_s=0.04 if at % 3 else 0.2))
        for at in range(60)
    ]
    truth = Truth(of, arrivals)
    jobs = [Job(each.request.arrived_at, at, truth.attempts[at][0]) for at, each in enumerate(arrivals)]
    lane = Lane(truth, 0, jobs[::2])
    lane.run()
    lane.rewind()
    seen = set()
    for job in jobs[1::2]:
        before, after = kept(truth, lane.jobs), kept(truth, [*lane.jobs, job])
        assert lane.gain(add=job, least=-60) == after - before
        assert (lane.gain(add=job) is None) == (after - before < 1)
        seen.add(after - before)
    for job in jobs[::6]:
        assert lane.gain(remove=job, least=-60) == kept(truth, [j for j in lane.jobs if j is not job]) - kept(
            truth, lane.jobs
        )
    assert min(seen) < 0 <= max(seen)


def test_a_changed_lane_is_served_as_a_new_one() -> None:
    of = fleet(emulated("one"), profile=CRAMPED)
    arrivals = some(60, 4.0, seed=8, sessions=2)
    truth = Truth(of, arrivals)
    jobs = [Job(each.request.arrived_at, at, truth.attempts[at][0]) for at, each in enumerate(arrivals)]
    lane = Lane(truth, 0, jobs[:40])
    lane.reach(3.0)
    lane.change(remove=jobs[2], add=jobs[45])
    lane.reach(6.0)
    lane.change(add=jobs[50])
    lane.reach(float("inf"))
    expected = sorted([*jobs[:2], *jobs[3:40], jobs[45], jobs[50]])
    assert lane.jobs == expected
    served = serve(truth, expected)
    assert lane.met == {at: met(arrivals[at], times) for at, times in served.items()}


@few_examples
@given(
    seed=st.integers(0, 2**32),
    instances=FLEETS,
    rate=st.sampled_from([2.0, 8.0, 30.0]),
    sessions=st.sampled_from([0, 3]),
    cramped=st.booleans(),
    hard=st.sampled_from([0.0, 0.5]),
)
def test_it_lies_between_the_best_policy_and_the_bound(
    seed: int, instances: list[dict[str, object]], rate: float, sessions: int, cramped: bool, hard: float
) -> None:
    of: Fleet = fleet(*instances, profile=CRAMPED if cramped else None)
    arrivals: list[Arrival] = some(30, rate, seed, sessions, hard)
    truth = Truth(of, arrivals)
    bound = goodput_upper_bound(truth)
    for policy in ("round_robin", "slo"):
        result = simulate(of, with_policy(arrivals, policy))
        found = search(truth, schedule_of(truth, result), bound.wanted, Effort(100), seed)
        if not any(each.request.hard for each in arrivals):
            assert found.met >= int((result.columns["met"] == 1).sum())
        assert found.met <= bound.met
        assert found.met == kept(truth, found.jobs)
        assert len(found.jobs) + len(found.refused) == len(arrivals)


def test_the_same_seed_and_effort_find_the_same() -> None:
    of = fleet(*INSTANCES[:3])
    arrivals = some(80, 30.0, seed=2)
    truth = Truth(of, arrivals)
    found = [search(truth, {}, {}, Effort(300), seed=5) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].iterations <= 300
