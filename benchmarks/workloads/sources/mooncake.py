"""Mooncake's published traces: arrivals, lengths and ids of the prompt's 512-token blocks, no text.

Qin et al., "Mooncake", FAST 2025; kvcache-ai/Mooncake. Lines:
{"timestamp" (ms), "input_length", "output_length", "hash_ids"}; equal ids mean an equal prefix block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.sources.source import Choices, Reader, Source, json_lines, whole_number

_COMMIT = "3b5a594133958449a1feaf1c9e0fc1b553e34a28"
_URL = (
    f"https://raw.githubusercontent.com/kvcache-ai/Mooncake/{_COMMIT}/FAST25-release/traces/{{}}_trace.jsonl"
)


def _reader(name: str) -> Reader:
    def read(paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
        path = paths[0]
        requests: list[WorkloadRequest] = []
        for line, data in json_lines(path):
            hashes = data.get("hash_ids")
            if not isinstance(hashes, list) or not all(isinstance(item, int) for item in hashes):
                raise WorkloadError(f"{path}, line {line}: hash_ids must be a list of whole numbers")
            requests.append(
                WorkloadRequest(
                    id=f"{name}-{len(requests)}",
                    arrival_s=whole_number(data.get("timestamp"), path, line, "timestamp") / 1000,
                    prompt_tokens=max(1, whole_number(data.get("input_length"), path, line, "input_length")),
                    output_tokens=max(
                        1, whole_number(data.get("output_length"), path, line, "output_length")
                    ),
                    prefix_hashes=tuple(hashes),
                    source=name,
                )
            )
        requests.sort(key=lambda request: request.arrival_s)
        return requests

    return read


def _urls(kind: str) -> Callable[[Choices], Sequence[str]]:
    return lambda _choices: (_URL.format(kind),)


def _source(kind: str, what: str) -> Source:
    name = f"mooncake_{kind}"
    return Source(
        name=name,
        title=f"Mooncake FAST 25 trace, {what}",
        licence="Apache-2.0",
        timed=True,
        texts=False,
        folder_files=(f"mooncake/{kind}.jsonl.gz",),
        read_folder=_reader(name),
        read_original=_reader(name),
        urls=_urls(kind),
    )


CONVERSATION = _source("conversation", "conversation")
SYNTHETIC = _source("synthetic", "synthetic mix (arrivals are Poisson draws)")
