"""Azure LLM inference traces 2023: one hour of two services, conversation and code completion.

Patel et al., "Splitwise", ISCA 2024; Azure/AzurePublicDataset. Arrival times and token counts, no text.
Original columns: TIMESTAMP,ContextTokens,GeneratedTokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from pydantic import Field

from benchmarks.workloads.format import WorkloadRequest
from benchmarks.workloads.published import Count, Number, Record, table
from benchmarks.workloads.sources.source import Choices, Source

_COMMIT = "b469a113cedca53ddc3bdea71a143dc4b7d8700c"
_URL = f"https://raw.githubusercontent.com/Azure/AzurePublicDataset/{_COMMIT}/data/AzureLLMInferenceTrace_{{}}.csv"


class _Row(Record):
    arrival_s: Number
    context_tokens: Count
    generated_tokens: Count


class _Original(Record):
    #: With up to seven decimals; the seventh is below what the data resolves.
    at: datetime = Field(alias="TIMESTAMP")
    context_tokens: Count = Field(alias="ContextTokens")
    generated_tokens: Count = Field(alias="GeneratedTokens")


def _request(name: str, index: int, arrival_s: float, row: _Row | _Original) -> WorkloadRequest:
    return WorkloadRequest(
        id=f"{name}-{index}",
        arrival_s=arrival_s,
        prompt_tokens=max(1, row.context_tokens),
        output_tokens=max(1, row.generated_tokens),
        source=name,
    )


def _read_folder(name: str, paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
    rows = sorted(table(paths[0], _Row), key=attrgetter("arrival_s"))
    return [_request(name, index, row.arrival_s, row) for index, row in enumerate(rows)]


def _read_original(name: str, paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
    rows = sorted(table(paths[0], _Original), key=attrgetter("at"))
    times_s = [(row.at - rows[0].at).total_seconds() for row in rows]
    return [_request(name, index, times_s[index], row) for index, row in enumerate(rows)]


def _source(kind: str, what: str) -> Source:
    return Source(
        name=f"azure_{kind}",
        title=f"Azure LLM inference trace 2023, {what}",
        licence="CC-BY-4.0 (Splitwise, ISCA 2024)",
        timed=True,
        folder_files=(f"azure_llm_2023/{kind}.csv.gz",),
        read_folder=_read_folder,
        read_original=_read_original,
        urls=lambda _choices: (_URL.format(kind),),
    )


CONVERSATION = _source("conv", "conversation")
CODE = _source("code", "code completion")
