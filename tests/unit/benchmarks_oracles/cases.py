"""Small fleets and workloads for tests of the oracles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from benchmarks.simulator import Arrival, Fleet, open_fleet
from router.core.profile import EngineProfile
from router.core.types import Request, Slo
from tests.engine_profiles import profile
from tests.unit.benchmarks_simulator.worlds import MODEL, config, emulated

#: Kinds of instances that differ in all that the bound looks at.
INSTANCES: tuple[dict[str, Any], ...] = (
    emulated("fast"),
    emulated("fast-too"),
    emulated("slow", "l4"),
    emulated("hurried", "l4", speed=2.0),
    emulated("few", max_concurrency=3),
    emulated("desk", "l4", emulates="ollama"),
)
#: One to four instances of unlike kinds.
FLEETS = st.lists(st.sampled_from(INSTANCES), min_size=1, max_size=4, unique_by=lambda each: each["name"])
#: Little KV memory, small batches: preemptions, chunked prefills, full seats.
CRAMPED = profile(
    "cramped",
    overhead_s=0.004,
    floor_s=0.012,
    per_token_s=1e-4,
    per_kv_token_s=5e-6,
    per_pair_s=2e-8,
    per_token_extra_s=8e-6,
    kv_capacity_tokens=6400,
    max_batched_tokens=512,
    max_seqs=12,
    load_s=1.0,
)


def fleet(*instances: dict[str, Any], profile: EngineProfile | None = None) -> Fleet:
    """A fleet of `instances`; `profile` stands in for all their profiles."""
    given = {} if profile is None else {each["profile"]: profile for each in instances}
    return open_fleet(config(*instances), given, time_factor=1.0)


def arrival(
    name: str,
    at_s: float,
    prompt_tokens: int = 200,
    output_tokens: int = 50,
    slo: Slo | None = None,
    hashes: tuple[int, ...] = (),
    **fields: Any,
) -> Arrival:
    """One request for MODEL with its truth."""
    request = Request(
        name,
        at_s,
        "round_robin",
        (MODEL,),
        prompt_tokens=prompt_tokens,
        prompt_tokens_bound=prompt_tokens,
        slo=slo,
        prefix=hashes,
        **fields,
    )
    return Arrival(request, {MODEL: output_tokens}, {MODEL: 0.5}, hashes)


def some(count: int, rate_per_s: float, seed: int, sessions: int = 0, hard: float = 0.0) -> list[Arrival]:
    """Random requests with SLOs of all kinds. Those of a session share the beginning of their prompts."""
    rng = Random(seed)
    at_s, found = 0.0, []
    for number in range(count):
        at_s += rng.expovariate(rate_per_s)
        slo = rng.choice(
            (
                Slo(ttft_s=rng.choice((0.3, 1.0, 4.0)), tpot_s=rng.choice((0.04, 0.08, 0.2))),
                Slo(ttft_s=rng.choice((0.3, 1.0, 4.0))),
                Slo(e2e_s=rng.choice((2.0, 6.0, 20.0))),
                Slo(tpot_s=0.07),
                None,
            )
        )
        prompt = rng.choice((50, 400, 1500, 3000))
        hashes: tuple[int, ...] = ()
        if sessions:
            session = rng.randrange(sessions)
            units = prompt // 512
            common = rng.randint(0, units)
            own = [(number + 2) * 10_000 + unit for unit in range(common, units)]
            hashes = (*(session * 100 + unit for unit in range(common)), *own)
        found.append(
            arrival(
                f"r{number}",
                at_s,
                prompt,
                rng.choice((1, 5, 60, 200, 400)),
                slo,
                hashes,
                hard=slo is not None and rng.random() < hard,
            )
        )
    return found


def with_policy(arrivals: Sequence[Arrival], policy: str) -> list[Arrival]:
    """The same requests, for another policy."""
    return [each._replace(request=replace(each.request, policy=policy)) for each in arrivals]


def with_slo(each: Arrival, slo: Slo | None) -> Arrival:
    """The same request with another SLO."""
    return each._replace(request=replace(each.request, slo=slo))
