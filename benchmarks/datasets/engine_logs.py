"""Published logs of real engines under load: runs, attempts and engine states (docs/datasets.md). A run is one speed of the trace
of vllm_burst, one rate of a configuration of aibrix, or one planner and mode on a cluster of helix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from backends.engine import profile
from benchmarks.calibrate.sources import aibrix, helix, vllm_burst
from benchmarks.datasets.contents import with_source
from benchmarks.datasets.terms import TERMS
from benchmarks.workloads.published import grouped, table
from predictors.training.dataset import Attempt, Dataset, Run, State
from router.core.profile import EngineProfile

_REQUESTS = "requests.csv.gz"

#: Constants of the engine of vllm_burst: `headway calibrate --source vllm_burst`, fitted on speeds 100, 400, 500,
#: 700, 800, 1500 and 2000; median errors on 200, 600 and 1000 were 15 % (TTFT) and 8 % (E2E). See
#: docs/calibration.md.
BURST_PROFILE = EngineProfile(
    name="llama-3.2-1b@gpu-24g",
    overhead_s=0.002947,
    floor_s=0.001225,
    per_token_s=2.42e-05,
    per_kv_token_s=1.174e-07,
    per_pair_s=3.288e-09,
    kv_capacity_tokens=571_405,
    per_token_extra_s=1.218e-06,
    per_seq_s=0.000215,
    max_batched_tokens=512,
    source="fitted by headway calibrate",
)
#: Prompt tokens that the engine computed for each published one, by its own log of those speeds.
BURST_PROMPT_SHARE = 0.7985


def read_vllm_burst(folder: Path) -> Dataset:
    """Llama-3.2-1B on one GPU of 24 GB under BurstGPT's arrivals. Prompt tokens are scaled to the engine's;
    output tokens are not published. Times are the client's."""
    requests = grouped(table(folder / _REQUESTS, vllm_burst.Request), attrgetter("scale"))
    states = grouped(table(folder / "engine_state.csv.gz", vllm_burst.EngineState), attrgetter("scale"))
    runs, attempts, seen = [], [], []
    for scale in sorted(requests, key=float):
        run = Run(
            f"vllm_burst/{scale}",
            "vllm_burst",
            "vllm_burst",
            "llama-3.2-1b",
            family="llama",
            level=scale,
            profile_values=asdict(BURST_PROFILE),
        )
        runs.append(run)
        for row in sorted(requests[scale], key=attrgetter("arrival_s")):
            tokens = max(1, round(BURST_PROMPT_SHARE * row.in_tokens))
            most = row.max_tokens
            attempts.append(
                _attempt(run, row.arrival_s, tokens, row.ttft_s, row.e2e_s, None, max_tokens=most)
            )
        seen += [  # the usage is published in per cent
            State(run.id, row.t_s, row.num_running, row.num_pending, min(1.0, row.kv_usage / 100))
            for row in sorted(states[scale], key=attrgetter("t_s"))
        ]
    return _dataset("vllm_burst", runs, attempts, seen)


#: AIBrix configurations whose router looks for the replica that has a user's prompt in its KV memory, and those
#: that keep prompts outside of it for all replicas (LMCache, AIBrix's KV cache). The others draw a replica.
_FINDS_CACHE = {"ps_naive", "aibrix_naive_prefix_routing"}
_POOLS_CACHE = {
    "ps_stack", "ps_stack_high_low", "ps_stack_low_high", "aibrix_kvcache_dram", "aibrix_kvcache_external",
}  # fmt: skip
_AIBRIX_HARDWARE = {"v0.2.1": "a100-80g", "v0.3.0": "h20-96g"}
#: Rates of a configuration ran one after another, this much apart.
_AIBRIX_STEP = 0.4
#: Prefixes are cached in blocks.
_BLOCK_TOKENS = 16


def read_aibrix(folder: Path) -> Dataset:
    """Llama-3.1-8B on eight vLLM replicas, prompts of 21,000 tokens of users that come back."""
    runs: list[Run] = []
    attempts: list[Attempt] = []
    configurations = grouped(table(folder / _REQUESTS, aibrix.Request), attrgetter("release", "config"))
    for (release, config), found in sorted(configurations.items()):
        engine = replace(
            profile(aibrix.NEAREST),
            kv_capacity_tokens=aibrix.KV_TOKENS[release],
            chunked_prefill=release != "v0.2.1",
            max_batched_tokens=32_000 if release == "v0.2.1" else 8192,
        )
        cache = _cache(config, engine.kv_capacity_tokens * aibrix.REPLICAS)
        levels = grouped(found, attrgetter("qps"))
        for qps in sorted(levels):
            run = Run(
                f"aibrix/{release}/{config}/{qps:g}",
                "aibrix",
                f"{release}/{config}",
                "llama-3.1-8b",
                family="llama",
                hardware=_AIBRIX_HARDWARE[release],
                level=f"{qps:g}",
                replicas=aibrix.REPLICAS,
                profile=aibrix.NEAREST,
                profile_values=asdict(engine),
            )
            runs.append(run)
            level = sorted(levels[qps], key=attrgetter("launch_s"))
            if round(qps - _AIBRIX_STEP, 1) not in levels:
                # A rate that is not in the folder came before this one, for as long, with the same users in the same order.
                for row in level[: max(0, round(len(level) * (1 - _AIBRIX_STEP / qps)))]:
                    cache.add(row.user_id, row.prompt_tokens)
            attempts += _aibrix_level(run, level, cache)
    return _dataset("aibrix", runs, attempts, [])


class PooledCache:
    """What a cluster's prefix caches should hold of a user's next prompt, where each prompt begins with all of that user's
    earlier one; the least recently used are dropped. `capacity_tokens` over all replicas: None has no end, 0 finds nothing
    (which replica a request meets is drawn, so most often it is one that has not seen the user). `warm`: every prompt was
    there before."""

    def __init__(self, capacity_tokens: int | None, *, warm: bool = False) -> None:
        self._capacity_tokens = capacity_tokens
        self._warm = warm
        self._tokens: dict[str, int] = {}  # by user, least recently used first
        self._total_tokens = 0

    def found(self, user: str, prompt_tokens: int) -> int:
        """Tokens of a user's next prompt that need not be computed; at least one always is."""
        held_tokens = prompt_tokens if self._warm else self._tokens.get(user, 0)
        return max(0, min(held_tokens, prompt_tokens - 1)) // _BLOCK_TOKENS * _BLOCK_TOKENS

    def add(self, user: str, prompt_tokens: int) -> None:
        """A prompt of that user was served."""
        before = self._tokens.pop(user, 0)
        self._tokens[user] = max(before, prompt_tokens)
        self._total_tokens += self._tokens[user] - before
        while self._capacity_tokens is not None and self._total_tokens > self._capacity_tokens:
            oldest = next(iter(self._tokens))
            self._total_tokens -= self._tokens.pop(oldest)


def _cache(config: str, tokens: int) -> PooledCache:
    if config in _FINDS_CACHE:
        return PooledCache(tokens)
    # The pools were warm before the first published request.
    return PooledCache(None, warm=True) if config in _POOLS_CACHE else PooledCache(0)


def _aibrix_level(run: Run, level: list[aibrix.Request], cache: PooledCache) -> Iterator[Attempt]:
    ends_s: dict[str, float] = {}
    for row in level:
        launch_s, user, prompt = row.launch_s, row.user_id, row.prompt_tokens
        e2e_s = row.ttft_s + row.generation_s
        found = cache.found(user, prompt) if ends_s.get(user, 0.0) <= launch_s else 0
        # Its blocks are taken, and others' dropped, when it starts.
        cache.add(user, prompt)
        ends_s[user] = launch_s + e2e_s
        known = {"cached_tokens": found, "session": user}
        yield _attempt(run, launch_s, prompt, row.ttft_s, e2e_s, row.generation_tokens, **known)


def read_helix(folder: Path) -> Dataset:
    """LLaMA-30B and 70B, pipeline parallel over clusters of one kind of GPU, each seen as one engine without
    a profile. A fifth of the requests is not published: they load the engine, unseen."""
    runs, attempts = [], []
    setups = grouped(
        (row for row in table(folder / _REQUESTS, helix.Request) if row.gpu != "mixed"),
        attrgetter("setup", "model", "gpu", "policy", "mode"),
    )
    for (setup, model, gpu, policy, mode), found in sorted(setups.items()):
        if len(found) < helix.LEAST_REQUESTS:
            continue
        engine = f"{model}@{gpu}"
        level = f"{engine}/{policy}-{mode}"
        run = Run(f"helix/{setup}", "helix", engine, model, family="llama", hardware=gpu, level=level)
        runs.append(run)
        for row in sorted(found, key=attrgetter("dispatch_s")):
            tokens = max(1, row.out_tokens)
            attempts.append(_attempt(run, row.dispatch_s, row.in_tokens, row.ttft_s, row.e2e_s, tokens))
    return _dataset("helix", runs, attempts, [])


#: Readers by name, with the folder that the set has.
ENGINE_LOGS: dict[str, tuple[str, Callable[[Path], Dataset]]] = {
    "vllm_burst": (vllm_burst.FOLDER, read_vllm_burst),
    "aibrix": (aibrix.FOLDER, read_aibrix),
    "helix": (helix.FOLDER, read_helix),
}


def _attempt(
    run: Run, at_s: float, prompt: int, ttft_s: float, e2e_s: float, output: int | None, **known: Any
) -> Attempt:
    """An attempt that was dispatched at `at_s`, with the tokens of its prompt and answer, and what else is `known`."""
    known = {"cached_tokens": 0, **known}
    return Attempt(run.id, run.model, at_s, prompt, at_s + ttft_s, at_s + e2e_s, output, **known)


def _dataset(name: str, runs: list[Run], attempts: list[Attempt], states: list[State]) -> Dataset:
    data = Dataset(runs=tuple(runs), attempts=tuple(attempts), states=tuple(states))
    return with_source(data, name, TERMS[name].licence, ("runs", "attempts", "states"))
