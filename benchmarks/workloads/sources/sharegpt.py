"""Lengths of ShareGPT conversations: pairs of prompt and answer tokens, neither text nor times.

Published with a fork of Vidur, AKafakA/vidur_opt_scheduler,
data/processed_traces/sharegpt_V3_format_lens.csv: num_prefill_tokens,num_decode_tokens,...
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.sources.source import Choices, Source, csv_rows, whole_number

_COMMIT = "20bdc49d6c1d23de84c9d4e7a8626ea33fe498f4"
_URL = (
    f"https://raw.githubusercontent.com/AKafakA/vidur_opt_scheduler/{_COMMIT}"
    "/data/processed_traces/sharegpt_V3_format_lens.csv"
)
_NAME = "sharegpt"


def _request(row: int, in_tokens: int, out_tokens: int) -> WorkloadRequest:
    return WorkloadRequest(
        id=f"{_NAME}-{row}", arrival_s=0.0, prompt_tokens=in_tokens, output_tokens=out_tokens, source=_NAME
    )


def _read_folder(paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
    path = paths[0]
    return [
        _request(
            whole_number(row["row"], path, line, "row"),
            whole_number(row["in_tokens"], path, line, "in_tokens", 1),
            whole_number(row["out_tokens"], path, line, "out_tokens", 1),
        )
        for line, row in csv_rows(path, ("row", "in_tokens", "out_tokens"))
    ]


def _read_original(paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
    path = paths[0]
    return [
        _request(
            index,
            whole_number(row["num_prefill_tokens"], path, line, "num_prefill_tokens", 1),
            whole_number(row["num_decode_tokens"], path, line, "num_decode_tokens", 1),
        )
        for index, (line, row) in enumerate(csv_rows(path, ("num_prefill_tokens", "num_decode_tokens")))
    ]


SHAREGPT = Source(
    name=_NAME,
    title="ShareGPT V3 prompt and answer lengths",
    licence="MIT (the repository; counts only, no text)",
    timed=False,
    texts=False,
    folder_files=("sharegpt_lengths/sharegpt_v3.csv.gz",),
    read_folder=_read_folder,
    read_original=_read_original,
    urls=lambda _choices: (_URL,),
)
