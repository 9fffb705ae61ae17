"""Measurements from the row files of `headway replay --out`: one file a load level, named by its file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.calibrate.measured import Level, Measured, read_file, request_of
from benchmarks.replay.command import RESULTS_KEY
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import json_lines

_FIELDS = ("prompt_tokens", "output_tokens", "ttft_s", "e2e_s")


def read_any(path: Path) -> list[Level]:
    """The levels of a file in the measurement form, or the one level of a replay's row file."""
    for _, head in json_lines(path):
        return [_replay(path)] if RESULTS_KEY in head else read_file(path)
    raise WorkloadError(f"{path}: is empty")


def _replay(path: Path) -> Level:
    """Arrivals are the scheduled instants, from which a row's TTFT and E2E count too. A request that failed is
    left out: what it cost the engine is not known. Rows of several instances are no measurement of one."""
    requests: list[Measured] = []
    instances = set()
    for number, row in json_lines(path):
        if number == 1 or not row.get("complete"):
            continue
        data = {"arrival_s": row.get("scheduled_s"), **{name: row.get(name) for name in _FIELDS}}
        requests.append(request_of(data, f"{path}, line {number}"))
        instances.add((row.get("headers") or {}).get("x-headway-instance"))
    if not requests:
        raise WorkloadError(f"{path}: no request was answered in full")
    if len(instances) > 1:
        raise WorkloadError(f"{path}: answered by {len(instances)} instances; replay to one of them alone")
    return Level(path.stem, tuple(requests)).complete()
