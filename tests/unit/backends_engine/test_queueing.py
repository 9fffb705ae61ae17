"""The engines against the recursion of a queue, start by start.

A profile whose steps all take STEP_S makes an engine of one seat a single-server queue, first come first
served, and one of c slots a queue of c servers: the service time is the output length in steps. What the engine
gives out is compared, to rounding, with Lindley's recursion (1952), for c servers that of Kiefer and Wolfowitz
(1955).
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.engine import Engine, Progress, Sequence, SlotEngine
from tests.engine_profiles import profile

#: Of a mean service time, which is the unit of time here.
STEP_S = 1e-3
REQUESTS = 3_000
PROFILE = profile(
    "constant steps",
    overhead_s=STEP_S,
    kv_capacity_tokens=10_000_000,
    max_batched_tokens=64,
    max_seqs=1,
    load_s=0.0,
)
Floats = NDArray[np.float64]


@dataclasses.dataclass
class Traffic:
    arrivals_s: Floats
    outputs: list[int]


def poisson(rate: float, services_s: Floats, seed: int) -> Traffic:
    """Services rounded to whole steps, at least one."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, len(services_s))
    return Traffic(np.cumsum(gaps), [max(1, round(one / STEP_S)) for one in services_s.tolist()])


def exponential(seed: int) -> Floats:
    return np.random.default_rng(seed).exponential(1.0, REQUESTS)


def bimodal(seed: int) -> Floats:
    """Nine of ten take 0.5, one takes 5.5: mean 1, mean square 3.25."""
    return np.where(np.random.default_rng(seed).random(REQUESTS) < 0.1, 5.5, 0.5)


def ends_of(engine: Engine | SlotEngine, traffic: Traffic) -> Floats:
    out: list[Progress] = []
    for number, (at_s, output) in enumerate(zip(traffic.arrivals_s.tolist(), traffic.outputs, strict=True)):
        out += engine.advance(at_s)
        engine.submit(Sequence(str(number), 1, output), at_s)
    while (next_s := engine.next_at()) is not None:
        out += engine.advance(next_s)
    ends = {one.seq_id: one.at_s for one in out if one.finished}
    return np.array([ends[str(number)] for number in range(len(traffic.outputs))])


def one_server() -> Engine:
    return Engine(PROFILE, every_token=False)


def servers(count: int) -> SlotEngine:
    engine = SlotEngine(
        {"": PROFILE}, slots=count, context_tokens=1_000_000, keep_alive_s=math.inf, every_token=False
    )
    engine.submit(Sequence("load", 0, 0), 0.0)
    return engine


def recursion(traffic: Traffic, count: int) -> Floats:
    """Ends of service of a queue of `count` servers. Servers share their steps: who finds one of several at
    work starts with its next step."""
    free_s = [0.0] * count
    busy_until_s = anchor_s = 0.0
    ends = []
    for at_s, output in zip(traffic.arrivals_s.tolist(), traffic.outputs, strict=True):
        start_s = max(at_s, heapq.heappop(free_s))
        if at_s >= busy_until_s:
            anchor_s = at_s
        else:
            start_s = anchor_s + math.ceil((start_s - anchor_s) / STEP_S - 1e-6) * STEP_S
        ends.append(start_s + output * STEP_S)
        heapq.heappush(free_s, ends[-1])
        busy_until_s = max(busy_until_s, ends[-1])
    return np.array(ends)


def difference(values: Floats, expected: Floats) -> float:
    """The largest relative one."""
    return float(np.abs(values / expected - 1).max())


@pytest.mark.parametrize("load", [0.5, 0.8])
@pytest.mark.parametrize(
    "services", [exponential(1), np.ones(REQUESTS), bimodal(3)], ids=["exponential", "equal", "bimodal"]
)
def test_one_server(load: float, services: Floats) -> None:
    traffic = poisson(load, services, 2)
    assert difference(ends_of(one_server(), traffic), recursion(traffic, 1)) < 1e-9


def test_several_servers() -> None:
    count = 4
    traffic = poisson(0.8 * count, exponential(5), 6)
    assert difference(ends_of(servers(count), traffic), recursion(traffic, count)) < 1e-9


def busy_engines() -> list[Engine | SlotEngine]:
    """Engines whose steps depend on the batch, short of KV memory, seats and model memory."""
    small = profile(
        "small",
        overhead_s=0.002,
        floor_s=0.010,
        per_token_s=0.0001,
        per_kv_token_s=1e-6,
        per_pair_s=1e-8,
        kv_capacity_tokens=1024,
        max_batched_tokens=128,
        max_seqs=8,
        load_s=1.0,
    )
    return [
        Engine(small, every_token=False),
        Engine(small),
        SlotEngine(dict.fromkeys("ab", small), slots=2, max_loaded_models=1, every_token=False),
        SlotEngine(dict.fromkeys("ab", small), slots=2, max_loaded_models=1),
    ]


@pytest.mark.parametrize("engine", busy_engines())
def test_littles_law_and_conservation(engine: Engine | SlotEngine) -> None:
    """On a run that starts and ends empty the integral of the number inside is the sum of the times inside:
    L = lambda W without any assumption, so to rounding."""
    rng = np.random.default_rng(7)
    count = 300
    arrivals = np.cumsum(rng.exponential(0.1, count)).tolist()
    outputs = rng.integers(0, 200, count).tolist()
    prompts = rng.integers(1, 300, count).tolist()
    models = rng.integers(0, 2, count).tolist()
    leaves = [at_s + rng.exponential(5.0) if rng.random() < 0.2 else math.inf for at_s in arrivals]
    calls = sorted(
        [(at_s, True, number) for number, at_s in enumerate(arrivals)]
        + [(at_s, False, number) for number, at_s in enumerate(leaves) if at_s < math.inf]
    )
    inside: list[tuple[float, int]] = []  # from when on how many
    ended: dict[str, float] = {}
    tokens = [0] * count
    aborted: dict[str, float] = {}

    def take(now: float) -> None:
        for one in engine.advance(now):
            tokens[int(one.seq_id)] += one.new_tokens
            if one.finished:
                assert one.seq_id not in ended
                assert one.seq_id not in aborted
                ended[one.seq_id] = one.at_s
        inside.append((now, engine.running + engine.waiting))

    for now, arrives, number in calls:
        while (next_s := engine.next_at()) is not None and next_s <= now:
            take(next_s)
        take(now)
        if arrives:
            prefix = tuple(range(1000 * (number % 3), 1000 * (number % 3) + prompts[number] // 16))
            engine.submit(
                Sequence(str(number), prompts[number], outputs[number], prefix, "ab"[models[number]]), now
            )
        elif str(number) not in ended:
            aborted[str(number)] = now
            assert 0 <= engine.abort(str(number), now) < max(1, outputs[number])
        inside.append((now, engine.running + engine.waiting))
    while (next_s := engine.next_at()) is not None:
        take(next_s)

    assert ended.keys() | aborted.keys() == {str(number) for number in range(count)}
    assert all(tokens[int(name)] == outputs[int(name)] for name in ended)
    assert (engine.running, engine.waiting) == (0, 0)
    if isinstance(engine, Engine):
        assert engine.kv.free == engine.kv.total
        assert engine.preemptions_total > 0
    else:
        assert engine.loads_total > 1
    assert max(number for _, number in inside) > 20
    integral = math.fsum(number * (after - at_s) for (at_s, number), (after, _) in pairwise(inside))
    times_s = [({**ended, **aborted})[str(number)] - arrivals[number] for number in range(count)]
    assert integral == pytest.approx(math.fsum(times_s), rel=1e-9)
