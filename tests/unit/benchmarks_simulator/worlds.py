"""Small fleets and workloads for tests of the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.simulator import Arrival, Fleet, arrivals
from benchmarks.workloads.format import WorkloadRequest
from router.config import FleetConfig
from router.core.profile import EngineProfile
from tests.engine_profiles import profile

MODEL = "llama-3.1-8b"
PRICE = {"input_usd_per_mtok": 0.03, "output_usd_per_mtok": 0.05}


def emulated(name: str, hardware: str = "a30", speed: float = 1.0, **more: Any) -> dict[str, Any]:
    """One emulated vLLM of the fleet file."""
    profile = f"{MODEL}@{hardware}"
    return {
        "name": name,
        "kind": "emulated",
        "profile": profile,
        "speed": speed,
        "serves": {MODEL: MODEL},
        **more,
    }


def config(*instances: dict[str, Any], **sections: Any) -> FleetConfig:
    """A fleet file with one model."""
    model = {"name": MODEL, "context_tokens": 16384, "price": PRICE, "quality": 0.5}
    return FleetConfig.model_validate({"models": (model,), "instances": instances, **sections})


def one_by_one(step_s: float) -> EngineProfile:
    """An engine that serves one sequence at a time, `step_s` for each of its tokens, whatever the prompt."""
    return profile(f"{MODEL}@queue", floor_s=step_s, kv_capacity_tokens=1_000_000, max_seqs=1)


def steady(count: int, every_s: float, **fields: Any) -> list[WorkloadRequest]:
    """Equal requests at equal distances, the first one after one distance."""
    values = {"prompt_tokens": 200, "output_tokens": 50, **fields}
    return [WorkloadRequest(f"r{at}", (at + 1) * every_s, **values) for at in range(count)]


def understood(requests: Iterable[WorkloadRequest], fleet: Fleet, **options: Any) -> list[Arrival]:
    """The requests as the scheduler gets them."""
    return list(arrivals(requests, fleet, **options))
