"""Lengths without texts and times: pairs of prompt and answer tokens.

ShareGPT V3 is published with a fork of Vidur (AKafakA/vidur_opt_scheduler), the summaries of arXiv papers with
Vidur itself (microsoft/vidur): num_prefill_tokens,num_decode_tokens,... A request is known by its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.published import AtLeastOne, Count, Record, table
from benchmarks.workloads.sources.source import Choices, Source

_HOST = "https://raw.githubusercontent.com"
_SHAREGPT = "AKafakA/vidur_opt_scheduler/20bdc49d6c1d23de84c9d4e7a8626ea33fe498f4"
_ARXIV = "microsoft/vidur/6d98aa8f71696520acc603d87439e77cc78160a7"


class _Row(Record):
    row: Count
    in_tokens: AtLeastOne
    out_tokens: AtLeastOne


class _Original(Record):
    in_tokens: AtLeastOne = Field(alias="num_prefill_tokens")
    out_tokens: AtLeastOne = Field(alias="num_decode_tokens")


def _request(name: str, number: int, row: _Row | _Original) -> WorkloadRequest:
    return WorkloadRequest(f"{name}-{number}", 0.0, row.in_tokens, output_tokens=row.out_tokens, source=name)


def _read_folder(name: str, paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
    return [_request(name, row.row, row) for row in table(paths[0], _Row)]


def _read_original(name: str, paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
    return [_request(name, number, row) for number, row in enumerate(table(paths[0], _Original))]


def _source(name: str, title: str, folder_file: str, published: str) -> Source:
    return Source(
        name=name,
        title=title,
        licence="MIT (the repository; counts only, no text)",
        folder_files=(f"sharegpt_lengths/{folder_file}.csv.gz",),
        read_folder=_read_folder,
        read_original=_read_original,
        urls=lambda _choices: (f"{_HOST}/{published}",),
    )


SHAREGPT = _source(
    "sharegpt",
    "ShareGPT V3 prompt and answer lengths",
    "sharegpt_v3",
    f"{_SHAREGPT}/data/processed_traces/sharegpt_V3_format_lens.csv",
)
ARXIV = _source(
    "arxiv",
    "lengths of arXiv papers and their summaries, up to 4,096 tokens together",
    "arxiv_summarization",
    f"{_ARXIV}/data/processed_traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
)
