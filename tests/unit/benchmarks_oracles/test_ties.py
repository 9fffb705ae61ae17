"""A request that comes at the very moment at which a step ends, and what is told of that step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from backends.engine import Engine, Progress, SlotEngine
from backends.engine import Sequence as EngineSequence
from benchmarks.oracles.schedule import Job, Lane, Served, met, serve
from benchmarks.oracles.truth import Truth
from benchmarks.simulator import simulate
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS
from router.core.types import Slo
from tests.engine_profiles import profile
from tests.unit.benchmarks_oracles.cases import arrival, fleet
from tests.unit.benchmarks_simulator.worlds import MODEL, emulated

#: Sums of such times have no rounding, so single steps and stretches of them end at the very same moments.
EXACT = profile(
    "exact",
    overhead_s=2**-8,
    floor_s=2**-6,
    per_token_s=2**-13,
    per_kv_token_s=2**-18,
    per_pair_s=2**-26,
    per_token_extra_s=2**-17,
    kv_capacity_tokens=4096,
    max_batched_tokens=512,
    max_seqs=6,
    slots=2,
    load_s=1.0,
)
KINDS: tuple[dict[str, Any], ...] = (
    emulated("one"),
    emulated("hurried", speed=2.0),
    emulated("few", max_concurrency=2),
    emulated("desk", emulates="ollama"),
)


def case(kind: dict[str, Any], seed: int) -> tuple[Truth, list[Job]]:
    """Random requests for one instance, many of which come just when something is told there."""
    rng = Random(seed)
    arrivals = []
    for number in range(24):
        hashes = (rng.randrange(2),) * rng.randrange(2)
        slo = Slo(ttft_s=rng.choice((0.25, 1.0)), tpot_s=rng.choice((0.03125, 0.0625)))
        prompt, output = rng.choice((100, 600, 1100)), rng.choice((1, 2, 30, 120))
        arrivals.append(arrival(f"r{number}", 0.0, prompt, output, slo, hashes))
    truth = Truth(fleet(kind, profile=EXACT), arrivals)
    jobs: list[Job] = []
    at_s = 0.0
    for index, (attempt,) in enumerate(truth.attempts):
        told_s = {moment for each in serve(truth, jobs).values() for moment in (each.first_s, each.end_s)}
        later_s = sorted(moment for moment in told_s if moment >= at_s)[:4]
        at_s = rng.choice(later_s) if later_s and rng.random() < 0.7 else at_s + rng.randrange(256) / 1024
        jobs.append(Job(at_s, index, attempt))
    return truth, jobs


def replayed(truth: Truth, jobs: Sequence[Job]) -> dict[int, Served]:
    """The times of `jobs` by an engine that tells every token with its time, asked before each that comes."""
    (instance,) = truth.instances
    most = instance.max_concurrency or len(jobs)
    engine: Engine | SlotEngine
    if instance.kind == "ollama":
        engine = SlotEngine(instance.profiles, context_tokens=16384)
    else:
        engine = Engine(instance.profiles[MODEL], context_tokens=16384)
    coming = deque(sorted(jobs))
    outside: deque[Job] = deque()
    inside: dict[int, list[float]] = {}
    found: dict[int, Served] = {}

    def take(job: Job, at_s: float) -> None:
        if len(inside) >= most:
            outside.append(job)
            return
        inside[job.request] = []
        hashes = truth.arrivals[job.request].prefix_hashes
        attempt = job.attempt
        sequence = EngineSequence(
            str(job.request),
            attempt.prompt_tokens,
            attempt.output_tokens,
            hashes,
            MODEL,
            prefix_tokens=PREFIX_BLOCK_TOKENS,
        )
        engine.submit(sequence, at_s)

    def hear(told: Sequence[Progress]) -> None:
        for each in told:
            index = int(each.seq_id)
            inside[index] += [each.at_s / instance.speed] * each.new_tokens
            if each.finished is not None:
                tokens_s = inside.pop(index)
                found[index] = Served(tokens_s[0], tokens_s[-1], len(tokens_s))
                if outside:
                    take(outside.popleft(), each.at_s)

    while coming or inside:
        due = engine.next_at()
        if coming and (due is None or coming[0].submit_s * instance.speed <= due):
            job = coming.popleft()
            hear(engine.advance(job.submit_s * instance.speed))
            take(job, job.submit_s * instance.speed)
        else:
            assert due is not None
            hear(engine.advance(due))
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each["name"])
def test_the_times_are_those_of_single_steps(kind: dict[str, Any]) -> None:
    ties = 0
    for seed in range(8):
        truth, jobs = case(kind, seed)
        expected = replayed(truth, jobs)
        assert len(expected) == len(jobs)
        assert serve(truth, jobs) == expected
        lane = Lane(truth, 0, jobs)
        lane.run()
        assert lane.met == {at: met(truth.arrivals[at], times) for at, times in expected.items()}
        told_s = {moment for each in expected.values() for moment in (each.first_s, each.end_s)}
        ties += sum(job.submit_s in told_s for job in jobs)
    assert ties > 60


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each["name"])
def test_a_change_is_judged_by_these_times(kind: dict[str, Any]) -> None:
    for seed in range(4):
        truth, jobs = case(kind, seed)

        def kept(some: Sequence[Job], truth: Truth = truth) -> int:
            return sum(met(truth.arrivals[at], times) for at, times in replayed(truth, some).items())

        for job in jobs[::4]:
            others = [each for each in jobs if each is not job]
            lane = Lane(truth, 0, others)
            lane.run()
            lane.rewind()
            assert lane.gain(add=job, least=-len(jobs)) == kept(jobs) - kept(others)


def test_one_that_comes_as_another_ends_makes_it_no_later() -> None:
    """The first ends within its target; a second that comes at that moment changes nothing about it."""
    of = fleet(emulated("one"), profile=EXACT)
    first = arrival("first", 0.0, 100, 20, Slo(e2e_s=60.0))
    end_s = float(simulate(of, [first]).columns["e2e_s"][0])
    truth = Truth(
        of, [arrival("first", 0.0, 100, 20, Slo(e2e_s=end_s)), arrival("second", end_s, 1100, 20, None)]
    )
    jobs = [Job(at_s, at, truth.attempts[at][0]) for at, at_s in enumerate((0.0, end_s))]
    assert serve(truth, jobs)[0].end_s == end_s
    lane = Lane(truth, 0, jobs[:1])
    lane.run()
    assert lane.gain(add=jobs[1], least=0) == 1
    lane.change(add=jobs[1])
    lane.run()
    assert lane.met == {0: True, 1: True}
