"""Azure LLM inference traces 2023: one hour of two services, conversation and code completion.

Patel et al., "Splitwise", ISCA 2024; Azure/AzurePublicDataset. Arrival times and token counts, no text.
Original columns: TIMESTAMP,ContextTokens,GeneratedTokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.sources.source import Choices, Reader, Source, csv_rows, whole_number

_COMMIT = "b469a113cedca53ddc3bdea71a143dc4b7d8700c"
_URL = f"https://raw.githubusercontent.com/Azure/AzurePublicDataset/{_COMMIT}/data/AzureLLMInferenceTrace_{{}}.csv"


def _requests(name: str, rows: Iterable[tuple[float, int, int]]) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(
            id=f"{name}-{index}",
            arrival_s=arrival_s,
            prompt_tokens=max(1, context),
            output_tokens=max(1, generated),
            source=name,
        )
        for index, (arrival_s, context, generated) in enumerate(rows)
    ]


def _folder_reader(name: str) -> Reader:
    def read(paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
        path = paths[0]
        rows = csv_rows(path, ("arrival_s", "context_tokens", "generated_tokens"))
        return _requests(
            name,
            (
                (
                    _seconds(row["arrival_s"], path, line),
                    whole_number(row["context_tokens"], path, line, "context_tokens"),
                    whole_number(row["generated_tokens"], path, line, "generated_tokens"),
                )
                for line, row in rows
            ),
        )

    return read


def _seconds(text: str, path: Path, line: int) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        raise WorkloadError(f"{path}, line {line}: arrival_s must be a number, not {text!r}") from None


def _original_reader(name: str) -> Reader:
    def read(paths: Sequence[Path], _choices: Choices) -> list[WorkloadRequest]:
        path = paths[0]
        first: datetime | None = None
        rows = []
        for line, row in csv_rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
            at = _moment(row["TIMESTAMP"], path, line)
            first = first or at
            rows.append(
                (
                    (at - first).total_seconds(),
                    whole_number(row["ContextTokens"], path, line, "ContextTokens"),
                    whole_number(row["GeneratedTokens"], path, line, "GeneratedTokens"),
                )
            )
        return _requests(name, rows)

    return read


def _moment(text: str, path: Path, line: int) -> datetime:
    """A time stamp with up to seven decimals; the seventh is below what the data resolves."""
    try:
        moment = datetime.fromisoformat(text.strip()[:26])
    except (AttributeError, ValueError):
        raise WorkloadError(f"{path}, line {line}: TIMESTAMP {text!r} is no time") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _urls(kind: str) -> Callable[[Choices], Sequence[str]]:
    return lambda _choices: (_URL.format(kind),)


def _source(kind: str, what: str) -> Source:
    name = f"azure_{kind}"
    return Source(
        name=name,
        title=f"Azure LLM inference trace 2023, {what}",
        licence="CC-BY-4.0 (Splitwise, ISCA 2024)",
        timed=True,
        texts=False,
        folder_files=(f"azure_llm_2023/{kind}.csv.gz",),
        read_folder=_folder_reader(name),
        read_original=_original_reader(name),
        urls=_urls(kind),
    )


CONVERSATION = _source("conv", "conversation")
CODE = _source("code", "code completion")
