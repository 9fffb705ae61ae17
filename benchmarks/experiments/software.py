"""Unlike software on one GPU: vLLM with and without chunked prefill, and Ollama. From data: two releases of a real cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from backends.engine import profile
from benchmarks.calibrate.sources import aibrix
from benchmarks.experiments import charts
from benchmarks.experiments.report import Results, Section, Value
from benchmarks.experiments.traffic import LATENCIES, answered, background, play
from benchmarks.measures import Summary
from benchmarks.simulator import Fleet, open_fleet
from benchmarks.workloads.published import table
from router.config import FleetConfig

MODEL, GPU = "llama-3.1-8b", "a100-80g"
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 6.0)
#: As older releases had it by default: the longest prompt of the traffic fits into a step.
_WHOLE_PROMPTS = 16_384


def sections(requests: int, seed: int, data: Path | None) -> Iterator[Section]:
    """`requests` at each rate and engine."""
    yield _simulated(requests, seed)
    if data is not None and (data / aibrix.FOLDER).is_dir():
        yield _releases(data)


def _engines() -> dict[str, Fleet]:
    vllm, ollama = profile(f"{MODEL}@{GPU}"), profile(f"{MODEL}-q4@{GPU}")
    older = replace(vllm, chunked_prefill=False, max_batched_tokens=_WHOLE_PROMPTS)
    return {
        "vLLM, chunked prefill (v1)": _fleet("vllm", vllm.name, {}),
        "vLLM, whole prompts (older v0)": _fleet("vllm", vllm.name, {vllm.name: older}),
        "Ollama, 4 slots, Q4_K_M": _fleet("ollama", ollama.name, {}),
    }


def _fleet(kind: str, name: str, given: dict[str, Any]) -> Fleet:
    instance = {
        "name": "one",
        "kind": "emulated",
        "emulates": kind,
        "profile": name,
        "serves": {MODEL: MODEL},
    }
    config = {"models": [{"name": MODEL, "context_tokens": 16_384}], "instances": [instance]}
    return open_fleet(FleetConfig.model_validate(config), given)


def _simulated(requests: int, seed: int) -> Section:
    rows: list[dict[str, Value]] = []
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {f"{name} p95": {} for name in LATENCIES}
    for engine, fleet in _engines().items():
        for rate_per_s in RATES:
            columns = play(fleet, background(rate_per_s, requests, seed), seed).columns
            known = answered(columns)
            row: dict[str, Value] = {"engine": engine, "requests/s": rate_per_s, "answers": int(known.sum())}
            for name, column in LATENCIES.items():
                found = Summary.of(columns[column][known])
                row |= {f"{name} p50 (s)": found.p50, f"{name} p95 (s)": found.p95}
                if found.p95 is not None:
                    panels[f"{name} p95"].setdefault(engine, []).append((rate_per_s, found.p95))
            rows.append(row)
    return Section(
        "Software: engines and their versions on one GPU",
        [
            f"{requests} requests like the Azure conversations of 2023 at each rate to {MODEL} on one {GPU}, simulated. The"
            " older scheduler of vLLM prefills whole prompts in steps of their own, while decoding waits. Ollama decodes four"
            " sequences at once, of weights with 4 bits.",
        ],
        [Results.of(f"{MODEL} on one {GPU}", rows)],
        [
            charts.lines(
                "software_engines",
                f"Engines on one {GPU}: 95 % quantiles of latency by rate",
                "requests/s",
                "seconds",
                panels,
                log_x=True,
                log_y=True,
            )
        ],
    )


def _releases(data: Path) -> Section:
    """TTFT of AIBrix's runs by release, configuration and rate."""
    ttft: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for row in table(data / aibrix.FOLDER / "requests.csv.gz", aibrix.Request):
        ttft[row.release, row.config, row.qps].append(row.ttft_s)
    rows: list[list[Value]] = []
    by_release: dict[str, dict[str, list[tuple[float, float]]]] = {}
    rates = sorted({qps for _, _, qps in ttft})
    shown = rates[0], rates[len(rates) // 2], rates[-1]  # the figures have all
    for (release, config, qps), seconds in sorted(ttft.items()):
        p50, p95 = np.quantile(seconds, (0.5, 0.95)).tolist()
        if qps in shown:
            rows.append([release, config, qps, len(seconds), p50, p95])
        by_release.setdefault(release, {}).setdefault(config, []).append((qps, p50))
    return Section(
        "Software, measured: releases and routers of one cluster",
        [
            "AIBrix's regression runs: Llama-3.1-8B on eight vLLM replicas, prompts of about 21,000 tokens with a long shared"
            " history. Release v0.2.1 ran on A100, v0.3.0 on H20: the releases differ in hardware too, the configurations of one"
            " release only in software.",
        ],
        [
            Results(
                "TTFT by release, configuration and rate",
                ("release", "configuration", "requests/s", "requests", "TTFT p50 (s)", "TTFT p95 (s)"),
                rows,
            )
        ],
        [
            charts.lines(
                f"software_{release.replace('.', '_')}",
                f"Median TTFT of a real cluster under release {release}, by configuration",
                "requests/s",
                "TTFT p50 (s)",
                {"": curves},
                log_y=True,
            )
            for release, curves in by_release.items()
        ],
    )
