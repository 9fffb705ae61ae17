"""Helix's real-system runs: LLaMA-30B and 70B, pipeline parallel over clusters of one kind of GPU.

github.com/Thesys-lab/Helix-ASPLOS25 148b733, artifact_evaluation (Apache-2.0). A cluster of one GPU kind is
seen as one engine, whichever of the two planners (helix, separate) laid it out; a level is a planner and a
mode (online, offline). Clusters of several kinds are left out: no one step time describes them. A query id
that is missing inside a run was served too: it loads the simulated engine, with the median lengths of
the run, and is not compared. Requests cut off by the end of a run count with the tokens that they had.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.calibrate.measured import Level, Measured, Splitter, Study, by_load
from benchmarks.calibrate.profile import CHUNKED
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import Count, Number, Record, grouped, table

FOLDER = "helix_llama_gpu"
#: Limits are not published: the fit chooses. Each stage of a pipeline takes prompts whole (llm_sys/engine/
#: scheduler.py), but those in one stage do not hold up what decodes in the others, as they would in one engine.
LIMITS = {CHUNKED: (True,), "max_seqs": (32, 256), "kv_capacity_tokens": (16_000, 64_000, 1_000_000)}
#: A level with fewer requests is left out.
LEAST_REQUESTS = 20


class Request(Record):
    """A row of the published requests."""

    setup: str
    model: str
    policy: str
    gpu: str
    mode: str
    query_id: Count
    dispatch_s: Number
    in_tokens: Count
    out_tokens: Count
    ttft_s: Number
    e2e_s: Number


def read(data: Path, split: Splitter) -> list[Study]:
    """A study for each model and GPU kind that was measured at two levels or more."""
    path = data / FOLDER / "requests.csv.gz"
    rows = (row for row in table(path, Request) if row.gpu != "mixed")
    studies = []
    for engine, found in sorted(grouped(rows, lambda row: f"{row.model}@{row.gpu}").items()):
        runs = grouped(found, lambda row: f"{row.policy}-{row.mode}").items()
        levels = by_load([_level(name, run) for name, run in runs if len(run) >= LEAST_REQUESTS])
        if len(levels) >= 2:
            names = [level.name for level in levels]
            missing = sum(each.e2e_s is None for level in levels for each in level.requests)
            note = f"{missing} requests are missing in the published runs and stand in with median lengths"
            studies.append(
                Study(engine, {level.name: level for level in levels}, split(names), LIMITS, notes=(note,))
            )
    if not studies:
        raise WorkloadError(f"{path}: no engine with two levels of {LEAST_REQUESTS} requests or more")
    return studies


def _level(name: str, run: Sequence[Request]) -> Level:
    run = sorted(run, key=lambda row: row.query_id)
    prompt_tokens, output_tokens = (
        round(median(lengths))
        for lengths in ([row.in_tokens for row in run], [row.out_tokens for row in run])
    )
    requests = [
        Measured(row.dispatch_s, row.in_tokens, max(1, row.out_tokens), row.ttft_s, row.e2e_s) for row in run
    ]
    for before, after in pairwise(run):
        missing = range(before.query_id + 1, after.query_id)
        start_s, end_s = before.dispatch_s, after.dispatch_s
        for place in range(1, len(missing) + 1):
            at_s = start_s + (end_s - start_s) * place / (len(missing) + 1)
            requests.append(Measured(at_s, prompt_tokens, output_tokens))
    return Level(name, tuple(sorted(requests, key=lambda each: each.arrival_s)))
