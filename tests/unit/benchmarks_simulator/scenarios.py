"""Fleets and workloads, small, and each made to press on something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import policies
from benchmarks.simulator import Fleet, open_fleet
from benchmarks.workloads.format import WorkloadRequest
from router.config import FleetConfig
from router.core.profile import EngineProfile

LLAMA, QWEN = "llama-3.1-8b", "qwen2.5-7b"
_MODELS: list[dict[str, Any]] = [
    {
        "name": LLAMA,
        "family": "llama",
        "context_tokens": 16384,
        "price": {"input_usd_per_mtok": 0.03, "output_usd_per_mtok": 0.05},
        "quality": 0.48,
    },
    {
        "name": QWEN,
        "family": "qwen",
        "fallbacks": [LLAMA],
        "context_tokens": 16384,
        "price": {"input_usd_per_mtok": 0.04, "output_usd_per_mtok": 0.1},
        "quality": 0.56,
    },
]


def vllm(name: str, model: str, hardware: str, **more: Any) -> dict[str, Any]:
    """A vLLM of the fleet file."""
    return {
        "name": name,
        "kind": "vllm",
        "url": f"http://{name}:8000",
        "hardware": hardware,
        "serves": {model: f"up/{model}"},
        **more,
    }


def ollama(name: str, *models: str, context_tokens: int | None = 8192, **more: Any) -> dict[str, Any]:
    """An Ollama of the fleet file."""
    return {
        "name": name,
        "kind": "ollama",
        "url": f"http://{name}:11434",
        "hardware": "rtx-4090",
        "serves": {
            model: {"name": f"{model}:q4", "context_tokens": context_tokens, "quantization": "q4"}
            for model in models
        },
        **more,
    }


def emulated(name: str, profile: str, speed: float) -> dict[str, Any]:
    """An emulated vLLM of the fleet file, `speed` times as fast as its hardware."""
    model = profile.partition("@")[0]
    return {
        "name": name,
        "kind": "emulated",
        "profile": profile,
        "speed": speed,
        "serves": {model: f"up/{model}"},
    }


MIXED = (
    vllm("a100-0", LLAMA, "a100-80g", usd_per_hour=2.0),
    vllm("a30-0", LLAMA, "a30", usd_per_hour=0.9),
    vllm("a30-1", LLAMA, "a30", usd_per_hour=0.9),
    vllm("l4-0", QWEN, "l4", usd_per_hour=0.7),
    vllm("h100-0", QWEN, "h100-80g", usd_per_hour=4.0),
    ollama("desk-0", LLAMA, QWEN, usd_per_hour=0.4),
    ollama("desk-1", QWEN, usd_per_hour=0.4),
)


def fleet(
    *instances: dict[str, Any],
    given: Mapping[str, EngineProfile] | None = None,
    models: Iterable[dict[str, Any]] = _MODELS,
    **sections: Any,
) -> Fleet:
    """The fleet of a file with these instances (MIXED without any)."""
    config = FleetConfig.model_validate(
        {"models": tuple(models), "instances": tuple(instances or MIXED), **sections}
    )
    return open_fleet(config, dict(given) if given else None)


def workload(
    count: int,
    rate: float,
    *,
    seed: int = 1,
    prompt_tokens: float = 400.0,
    output_tokens: float = 90.0,
    routing: Callable[[Random], dict[str, Any]] | None = None,
    max_tokens: Callable[[Random], int | None] | None = None,
    sessions: int = 0,
) -> list[WorkloadRequest]:
    """Poisson arrivals, `rate` a second, with lognormal lengths about the given medians, each model's its own.
    `sessions` > 0: so many conversations, whose prompts begin alike."""
    rng = Random(seed)
    at_s = 0.0
    found = []
    turns = [0] * max(1, sessions)
    for number in range(count):
        at_s += rng.expovariate(rate)
        prompt = int(rng.lognormvariate(0.0, 0.8) * prompt_tokens) + 1
        prefix: tuple[int, ...] | None = None
        if sessions:
            session = rng.randrange(sessions)
            turns[session] += rng.randrange(3)
            blocks = 1 + min(turns[session], 12)
            prefix = tuple(1000 * session + block for block in range(blocks))
            prompt = 512 * blocks + rng.randrange(512)
        output = rng.lognormvariate(0.0, 0.7) * output_tokens
        found.append(
            WorkloadRequest(
                id=f"r{number}",
                arrival_s=at_s,
                prompt_tokens=min(prompt, 7000),
                max_tokens=None if max_tokens is None else max_tokens(rng),
                output_tokens={LLAMA: int(output) + 1, QWEN: int(output * 1.4) + 1},
                prefix_hashes=prefix,
                routing=None if routing is None else routing(rng),
            )
        )
    return found


def any_wish(rng: Random) -> dict[str, Any]:
    """Anything that a request may ask for."""
    found: dict[str, Any] = {"policy": rng.choice(sorted(policies.POLICIES))}
    if rng.random() < 0.5:
        found["models"] = [rng.choice([LLAMA, QWEN])]
    if rng.random() < 0.5:
        found["slo"] = {"ttft_ms": 50 * rng.lognormvariate(2, 1), "e2e_ms": 400 * rng.lognormvariate(2, 1)}
        found["on_miss"] = rng.choice(["reject", "best_effort"])
    if rng.random() < 0.3:
        found["max_cost_usd"] = 1e-5 * rng.lognormvariate(1, 1)
    if rng.random() < 0.3:
        found["priority"] = rng.randrange(3)
    return found
