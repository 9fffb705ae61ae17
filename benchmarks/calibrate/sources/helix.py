"""Helix's real-system runs: LLaMA-30B and 70B, pipeline parallel over clusters of one kind of GPU.

github.com/Thesys-lab/Helix-ASPLOS25 148b733, artifact_evaluation (Apache-2.0). A cluster of one GPU kind is
seen as one engine, whichever of the two planners (helix, separate) laid it out; a level is a planner and a
mode (online, offline). Clusters of several kinds are left out: no one step time describes them. A query id
that is missing inside a run was served too: it loads the simulated engine, with the median lengths of
the run, and is not compared. Requests cut off by the end of a run count with the tokens that they had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.calibrate.measured import CalibrationError, Level, Measured
from benchmarks.calibrate.profile import CHUNKED
from benchmarks.calibrate.sources.tables import Row, rows
from benchmarks.calibrate.study import Splitter, Study, by_load
from benchmarks.measures import quantile

FOLDER = "helix_llama_gpu"
#: Limits are not published: the fit chooses. Each stage of a pipeline takes prompts whole (llm_sys/engine/
#: scheduler.py), but those in one stage do not hold up what decodes in the others, as they would in one engine.
LIMITS = {CHUNKED: (True,), "max_seqs": (32, 256), "kv_capacity_tokens": (16_000, 64_000, 1_000_000)}
#: A level with fewer requests tells nothing.
LEAST_REQUESTS = 20
_COLUMNS = (
    "model", "policy", "gpu", "mode", "query_id", "dispatch_s", "in_tokens", "out_tokens", "ttft_s", "e2e_s",
)  # fmt: skip


def read(data: Path, split: Splitter) -> list[Study]:
    """A study for each model and GPU kind that was measured at two levels or more."""
    path = data / FOLDER / "requests.csv.gz"
    runs: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows(path, _COLUMNS):
        if row.text("gpu") != "mixed":
            runs[f"{row.text('model')}@{row.text('gpu')}"][f"{row.text('policy')}-{row.text('mode')}"].append(
                row
            )
    studies = []
    for engine, found in sorted(runs.items()):
        levels = by_load([_level(name, run) for name, run in found.items() if len(run) >= LEAST_REQUESTS])
        if len(levels) >= 2:
            names = [level.name for level in levels]
            missing = sum(each.e2e_s is None for level in levels for each in level.requests)
            note = f"{missing} requests are missing in the published runs and stand in with median lengths"
            studies.append(
                Study(engine, {level.name: level for level in levels}, split(names), LIMITS, notes=(note,))
            )
    if not studies:
        raise CalibrationError(f"{path}: no engine with two levels of {LEAST_REQUESTS} requests or more")
    return studies


def _level(name: str, run: Sequence[Row]) -> Level:
    run = sorted(run, key=lambda row: row.count("query_id"))
    middle = {column: round(_median(run, column)) for column in ("in_tokens", "out_tokens")}
    requests = [_request(row) for row in run]
    for before, after in pairwise(run):
        missing = range(before.count("query_id") + 1, after.count("query_id"))
        start_s, end_s = before.number("dispatch_s"), after.number("dispatch_s")
        for place in range(1, len(missing) + 1):
            at_s = start_s + (end_s - start_s) * place / (len(missing) + 1)
            requests.append(Measured(at_s, middle["in_tokens"], middle["out_tokens"], None, None))
    return Level(name, tuple(sorted(requests, key=lambda each: each.arrival_s)))


def _median(run: Sequence[Row], column: str) -> float:
    return quantile(sorted(row.number(column) for row in run), 0.5) or 1.0


def _request(row: Row) -> Measured:
    return Measured(
        row.number("dispatch_s"),
        row.count("in_tokens"),
        max(1, row.count("out_tokens")),
        row.number("ttft_s"),
        row.number("e2e_s"),
    )
