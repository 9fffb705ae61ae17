"""Lengths without texts and times: pairs of prompt and answer tokens.

ShareGPT V3 is published with a fork of Vidur (AKafakA/vidur_opt_scheduler), the summaries of arXiv papers with
Vidur itself (microsoft/vidur): num_prefill_tokens,num_decode_tokens,... A request is known by its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.sources.source import Choices, Reader, Source, csv_rows, whole_number

_HOST = "https://raw.githubusercontent.com"
_SHAREGPT = "AKafakA/vidur_opt_scheduler/20bdc49d6c1d23de84c9d4e7a8626ea33fe498f4"
_ARXIV = "microsoft/vidur/6d98aa8f71696520acc603d87439e77cc78160a7"


def _request(name: str, row: int, in_tokens: int, out_tokens: int) -> WorkloadRequest:
    return WorkloadRequest(
        id=f"{name}-{row}", arrival_s=0.0, prompt_tokens=in_tokens, output_tokens=out_tokens, source=name
    )


def _folder_reader(name: str) -> Reader:
    def read(paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
        path = paths[0]
        return [
            _request(
                name,
                whole_number(row["row"], path, line, "row"),
                whole_number(row["in_tokens"], path, line, "in_tokens", 1),
                whole_number(row["out_tokens"], path, line, "out_tokens", 1),
            )
            for line, row in csv_rows(path, ("row", "in_tokens", "out_tokens"))
        ]

    return read


def _original_reader(name: str) -> Reader:
    def read(paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
        path = paths[0]
        rows = csv_rows(path, ("num_prefill_tokens", "num_decode_tokens"))
        return [
            _request(
                name,
                index,
                whole_number(row["num_prefill_tokens"], path, line, "num_prefill_tokens", 1),
                whole_number(row["num_decode_tokens"], path, line, "num_decode_tokens", 1),
            )
            for index, (line, row) in enumerate(rows)
        ]

    return read


def _source(name: str, title: str, folder_file: str, published: str) -> Source:
    return Source(
        name=name,
        title=title,
        licence="MIT (the repository; counts only, no text)",
        timed=False,
        texts=False,
        folder_files=(f"sharegpt_lengths/{folder_file}.csv.gz",),
        read_folder=_folder_reader(name),
        read_original=_original_reader(name),
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
