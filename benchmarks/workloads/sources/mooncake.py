"""Mooncake's published traces: arrivals, lengths and ids of the prompt's 512-token blocks, no text.

Qin et al., "Mooncake", FAST 2025; kvcache-ai/Mooncake. Lines:
{"timestamp" (ms), "input_length", "output_length", "hash_ids"}; equal ids mean an equal prefix block.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.published import Count, Record, json_records
from benchmarks.workloads.sources.source import Choices, Source

_COMMIT = "3b5a594133958449a1feaf1c9e0fc1b553e34a28"
_URL = (
    f"https://raw.githubusercontent.com/kvcache-ai/Mooncake/{_COMMIT}/FAST25-release/traces/{{}}_trace.jsonl"
)


class _Line(Record):
    timestamp: Count
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...]


def _read(name: str, paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
    requests = [
        WorkloadRequest(
            id=f"{name}-{index}",
            arrival_s=line.timestamp / 1000,
            prompt_tokens=max(1, line.input_length),
            output_tokens=max(1, line.output_length),
            prefix_hashes=line.hash_ids,
            source=name,
        )
        for index, line in enumerate(json_records(paths[0], _Line))
    ]
    return sorted(requests, key=lambda request: request.arrival_s)


def _source(kind: str, what: str) -> Source:
    return Source(
        name=f"mooncake_{kind}",
        title=f"Mooncake FAST 25 trace, {what}",
        licence="Apache-2.0",
        timed=True,
        folder_files=(f"mooncake/{kind}.jsonl.gz",),
        read_folder=_read,
        read_original=_read,
        urls=lambda _choices: (_URL.format(kind),),
    )


CONVERSATION = _source("conversation", "conversation")
SYNTHETIC = _source("synthetic", "synthetic mix (arrivals are Poisson draws)")
