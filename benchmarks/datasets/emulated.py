"""Latency data from emulated fleets: many small worlds on virtual time, with the scheduler that serves.

Each world is one instance or a few, of one model on drawn hardware, under drawn traffic at a drawn part of what
it can serve. What is written down is what a gateway would know (`recording`). An engine's true constants differ
from those of the profile that a run names, as a real machine's do, and some runs name no profile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from backends import KINDS
from backends.engine import profile, profiles
from benchmarks.datasets.contents import with_source
from benchmarks.datasets.recording import Recorder
from benchmarks.simulator import Simulation, arrivals, open_fleet
from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.sources.generators import Lengths, Process, conversations, generate
from policies.placement.engine_rate import requests_per_s
from predictors.training.dataset import Attempt, Dataset, Run, State
from router.config import FleetConfig
from router.core.profile import EngineProfile

SOURCE = "emulated"
#: Parts of its capacity that a world is loaded with: from idle to overload.
LEVELS = ("0.05", "0.2", "0.4", "0.6", "0.8", "0.95", "1.1", "1.4")
#: What requests are like: short chat, the Azure conversations of 2023, code completion, long documents.
LENGTHS: Mapping[str, Lengths] = {
    "chat": Lengths(120, 1.0, 220, 0.8),
    "conversation": Lengths(),
    "code": Lengths(1470, 0.9, 16, 1.1),
    "long": Lengths(6000, 0.6, 250, 0.7),
}
_POLICIES = ("random", "least_load", "latency", "slo")
_PROCESSES = ("poisson", "gamma", "daycycle")
#: A world's requests, as shares of `requests`.
_REQUESTS = (0.6, 1.4)
_PROBE_S = (1.0, 2.0, 5.0)
#: Reports of an engine in a world, about: on an idle one all are the same.
_MOST_REPORTS = 1000
_MODEL_CONTEXT_TOKENS = 32_768
#: Parts of the names of profiles that no world has: what is published was made without them.
_LEFT_OUT = ("-fp8@", "-int4@", "-q2@", "-q3@", "-q5@", "-q6@", "@pp", "@8x")
#: Shares of worlds, and of runs, for which something is so.
_SINGLE, _OLLAMA, _TURNS, _CAPPED, _HARD, _NO_PROFILE = 0.6, 0.25, 0.4, 0.4, 0.35, 0.15
#: Spread (sigma of the logarithm) of an engine's true constants around its profile's.
_CONSTANTS_SIGMA = 0.2
_TIMES = ("overhead_s", "floor_s", "per_token_s", "per_kv_token_s", "per_pair_s", "per_token_extra_s")


@dataclass(frozen=True, slots=True)
class World:
    """One drawn world. `engines` are the profiles by instance as a fleet file would name them, `rate_per_s` is
    `level` times what all of them can serve, `hard` the part of requests that an SLO ends."""

    id: str
    engines: Mapping[str, EngineProfile]
    kind: str
    level: str
    lengths: Lengths
    process: Process
    policy: str
    probe_s: float
    max_tokens: int | None
    turns: bool
    slo: Mapping[str, float]
    hard: float
    requests: int

    @property
    def model(self) -> str:
        """The one model that all its instances serve, with its quantisation."""
        return next(iter(self.engines.values())).name.partition("@")[0]


def emulate(*, seed: int = 1, runs: int = 96, requests: int = 300) -> Dataset:
    """Play `runs` worlds of about `requests` requests each; the same arguments give the same data set. Its levels are
    `LEVELS`, its instances are never the same."""
    found: list[Run] = []
    attempts: list[Attempt] = []
    states: list[State] = []
    for index in range(runs):
        world = _draw(
            Random(f"{seed}/{index}"), f"{SOURCE}/{seed}/{index}", LEVELS[index % len(LEVELS)], requests
        )
        recorder, played = _play(world, Random(f"{seed}/{index}/truth"))
        taken = {attempt.run for attempt in recorder.attempts}
        order = {run.id: place for place, run in enumerate(played) if run.id in taken}
        found += [run for run in played if run.id in taken]
        attempts += sorted(recorder.attempts, key=lambda each: order[each.run])
        states += sorted(
            (each for each in recorder.states if each.run in taken), key=lambda each: order[each.run]
        )
    data = Dataset(runs=tuple(found), attempts=tuple(attempts), states=tuple(states))
    return with_source(data, SOURCE, "made by Headway", ("runs", "attempts", "states"), seed=seed)


def _draw(random: Random, name: str, level: str, requests: int) -> World:
    requests = max(1, round(requests * random.uniform(*_REQUESTS)))
    kind = KINDS["ollama" if random.random() < _OLLAMA else "vllm"]
    models: dict[str, list[str]] = {}
    for known in profiles.names():
        if any(left_out in known for left_out in _LEFT_OUT):
            continue
        if (profiles.quantization_of(known) is not None) == kind.fixed_slots:
            models.setdefault(known.partition("@")[0], []).append(known)
    choices = models[random.choice(sorted(models))]
    size = 1 if random.random() < _SINGLE else min(len(choices), random.choice((2, 3)))
    engines = {f"i{place}": profile(each) for place, each in enumerate(random.sample(choices, size))}
    lengths = LENGTHS[random.choice(sorted(LENGTHS))]
    prompt_tokens = lengths.prompt_median * math.exp(lengths.prompt_sigma**2 / 2)
    output_tokens = lengths.output_median * math.exp(lengths.output_sigma**2 / 2)
    able_per_s = sum(
        requests_per_s(each, prompt_tokens, output_tokens, each.seats(kind.fixed_slots))
        for each in engines.values()
    )
    rate_per_s = float(level) * able_per_s
    slowest = max(engines.values(), key=lambda each: each.overhead_s + each.floor_s)
    ttft_s = random.uniform(2, 8) * (slowest.prefill_s(round(prompt_tokens)) + 10 * slowest.step_s(0, 1, 0))
    tpot_s = random.uniform(2, 4) * slowest.step_s(0, 8, 8 * prompt_tokens)
    return World(
        name,
        engines,
        kind.name,
        level,
        lengths,
        Process(
            random.choice(_PROCESSES),
            rate_per_s,
            cv=random.choice((2.0, 4.0)),
            period_s=requests / rate_per_s / 2,
        ),
        random.choice(_POLICIES),
        max(random.choice(_PROBE_S), requests / rate_per_s / _MOST_REPORTS),
        random.choice((128, 512, 1024)) if random.random() < _CAPPED else None,
        random.random() < _TURNS,
        {"ttft_ms": 1000 * ttft_s, "tpot_ms": 1000 * tpot_s},
        0.6 if random.random() < _HARD else 0.0,
        requests,
    )


def _play(world: World, random: Random) -> tuple[Recorder, list[Run]]:
    fleet = open_fleet(
        _config(world), {each.name: true_engine(random, each) for each in world.engines.values()}
    )
    played = [_run(random, world, instance, engine) for instance, engine in world.engines.items()]
    recorder = Recorder({instance: run.id for instance, run in zip(world.engines, played, strict=True)})
    simulation = Simulation(fleet, seed=random.randrange(2**31), predictor=recorder)
    simulation.run(arrivals(_traffic(world, random.randrange(2**31)), fleet, policy=world.policy))
    return recorder, played


def _run(random: Random, world: World, instance: str, engine: EngineProfile) -> Run:
    known = random.random() >= _NO_PROFILE
    return Run(
        f"{world.id}/{instance}",
        SOURCE,
        f"{world.id}/{instance}",
        world.model,
        world.kind,
        "llama" if world.model.startswith("llama") else "qwen",
        engine.name.partition("@")[2],
        world.level,
        profile=engine.name if known else None,
        profile_values=asdict(engine) if known else None,
        fixed_slots=KINDS[world.kind].fixed_slots,
    )


def true_engine(random: Random, engine: EngineProfile) -> EngineProfile:
    """What a machine of that profile really is: every constant somewhat off, and all of them together."""
    common = random.lognormvariate(0, _CONSTANTS_SIGMA)
    changed: dict[str, Any] = {
        name: getattr(engine, name) * common * random.lognormvariate(0, _CONSTANTS_SIGMA) for name in _TIMES
    }
    # What an engine's server does beside the model.
    changed["per_seq_s"] = random.choice((0.0, 5e-5, 2e-4))
    changed["kv_capacity_tokens"] = round(engine.kv_capacity_tokens * random.uniform(0.8, 1.0))
    return replace(engine, **changed)


def _config(world: World) -> FleetConfig:
    return FleetConfig.model_validate(
        {
            "models": [{"name": world.model, "context_tokens": _MODEL_CONTEXT_TOKENS}],
            "probes": {"interval_s": world.probe_s},
            "defaults": {"policy": world.policy},
            # Next to nothing is refused beforehand, so that SLOs end requests that are under way.
            "scheduling": {"confidence": 0.05},
            "instances": [
                {
                    "name": instance,
                    "kind": "emulated",
                    "emulates": world.kind,
                    "profile": engine.name,
                    "serves": {world.model: world.model},
                }
                for instance, engine in world.engines.items()
            ],
        }
    )


def _traffic(world: World, seed: int) -> Iterator[WorkloadRequest]:
    stream = generate("emulated", world.lengths, seed)
    if world.turns:
        stream = conversations(stream, 3.0, seed)
    least = min(each.kv_capacity_tokens for each in world.engines.values())
    longest = min(_MODEL_CONTEXT_TOKENS, least) // 4
    random = Random(seed)
    for at_s, request in zip(world.process.times(seed), islice(stream, world.requests), strict=False):
        prompt_tokens = min(request.prompt_tokens, longest)
        yield replace(
            request,
            arrival_s=at_s,
            prompt_tokens=prompt_tokens,
            output_tokens=min(request.longest_output_tokens() or 1, longest),
            max_tokens=world.max_tokens,
            prefix_hashes=(request.prefix_hashes or ())[: prompt_tokens // 512] or None,
            routing={
                "slo": dict(world.slo),
                "on_miss": "reject" if random.random() < world.hard else "best_effort",
            },
        )
