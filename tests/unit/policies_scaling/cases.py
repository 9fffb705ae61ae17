"""Pools and observations that the tests of scalers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.engine import profiles
from policies.scaling import create
from policies.scaling.types import ModelLoad, Observation, PoolLoad, ScalingPool
from router.core.types import Slo

#: Targets that an L4 keeps with some twenty requests at a time.
SLO = Slo(ttft_s=3.0, tpot_s=0.15)


def pool(name: str = "p", profile: str = "llama-3.1-8b@l4", **fields: Any) -> ScalingPool:
    values: dict[str, Any] = {
        "model": "m",
        "concurrency": 10,
        "min_instances": 0,
        "max_instances": 20,
        "cooldown_s": 0.0,
        "slo": SLO,
    }
    return ScalingPool(name, profile=profiles.profile(profile), **(values | fields))


def seen(
    at_s: float,
    ready: int,
    in_flight: int = 0,
    queued: int = 0,
    *,
    starting: int = 0,
    arrivals: int = 0,
    seconds: float = 15.0,
    misses: int = 0,
    answers: int = 0,
) -> Observation:
    """The pool `p` of the model `m`, with prompts of 1000 tokens and answers of 200."""
    load = ModelLoad(arrivals, arrivals * 1000, answers, answers * 200, misses, queued)
    return Observation(at_s, seconds, {"p": PoolLoad(ready, starting, 0, in_flight)}, {"m": load})


def decisions(name: str, observations: Sequence[Observation], **settings: Any) -> list[int]:
    """What a scaler of one pool wants at each observation; it is given what it wants at once only by the test."""
    scaler = create(name, [pool()], settings)
    return [scaler.desired(each)["p"] for each in observations]
