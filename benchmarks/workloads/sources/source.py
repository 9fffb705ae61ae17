"""What a source is: one public set (or generator), where its files are, and how they are read."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from benchmarks.workloads.format import WorkloadError, WorkloadRequest

#: Own model name -> names it has in a set, the first one found is taken.
ModelNames = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Choices:
    """What a reader may be told. `models`: whose answers give the lengths ({our name: names in the set}; None:
    the set's default). `native_lengths`: token counts of the models' own tokenizers where the data folder
    has them, in place of characters / a constant. `quality`: keep true quality by model where it is known.
    `complete`: leave out prompts that lack one of the models, or its quality where that is kept."""

    models: ModelNames | None = None
    native_lengths: bool = False
    quality: bool = False
    complete: bool = False


class Traffic(Protocol):
    """What a trace published as aggregates knows: requests are drawn from it, lazily and in order of time."""

    @property
    def end_s(self) -> float:
        """Where the trace ends, in seconds from its start."""
        ...

    def mean_rate_per_s(self, start_s: float, end_s: float) -> float:
        """The published rate, averaged over a span."""
        ...

    def draw(self, seed: int, start_s: float, end_s: float, factor: float) -> Iterator[WorkloadRequest]:
        """The requests of a span, times counted from `start_s`, all rates multiplied by `factor`."""
        ...


Contents = list[WorkloadRequest] | Traffic
Reader = Callable[[Sequence[Path], Choices], Contents]


@dataclass(frozen=True, slots=True)
class Source:
    """A public set. `timed` says whether it has arrival times, `texts` whether it has prompts.

    `folder_files` are its files under HEADWAY_DATA (all are needed), `urls` gives the published originals
    (commits are pinned, so the content is too), `sha256` their checksums where known. A folder that is given
    stands for the files in it that match `patterns`. `original_quality`: the originals tell quality too.
    `lengths_unknown`: there are prompts, but no lengths of answers.
    """

    name: str
    title: str
    licence: str
    timed: bool
    texts: bool
    folder_files: tuple[str, ...]
    read_folder: Reader
    read_original: Reader
    urls: Callable[[Choices], Sequence[str]]
    sha256: Mapping[str, str] = field(default_factory=dict)
    models: ModelNames = field(default_factory=dict)
    patterns: tuple[str, ...] = ("*.json",)
    original_quality: bool = False
    lengths_unknown: bool = False


def open_text(path: Path) -> io.TextIOWrapper:
    """A text file, plain or gzipped (told by its first bytes)."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        if packed:
            return io.TextIOWrapper(gzip.GzipFile(path), encoding="utf-8", newline="")
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from error


def csv_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with their line numbers. A WorkloadError if a needed column is missing."""
    with open_text(path) as text:
        try:
            rows = csv.DictReader(text)
            missing = [name for name in needed if name not in (rows.fieldnames or ())]
            if missing:
                raise WorkloadError(
                    f"{path}, line 1: column {missing[0]} is missing (expected {','.join(needed)})"
                )
            for row in rows:
                yield rows.line_num, row
        except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, csv.Error) as error:
            raise WorkloadError(f"{path}: cannot be read as CSV ({error})") from error


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file with their line numbers."""
    with open_text(path) as text:
        try:
            for number, line in enumerate(text, start=1):
                if not line.strip():
                    continue
                try:
                    data = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    raise WorkloadError(f"{path}, line {number}: not valid JSON ({error.msg})") from None
                if not isinstance(data, dict):
                    raise WorkloadError(f"{path}, line {number}: must be a JSON object")
                yield number, data
        except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
            raise WorkloadError(f"{path}: cannot be read as JSON lines ({error})") from error


def json_list(path: Path) -> list[dict[str, Any]]:
    """A JSON file that holds a list of objects."""
    with open_text(path) as text:
        try:
            data = orjson.loads(text.read())
        except (orjson.JSONDecodeError, UnicodeDecodeError) as error:
            raise WorkloadError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise WorkloadError(f"{path}: must be a list of JSON objects")
    return data


def whole_number(value: Any, path: Path, line: int, name: str, least: int = 0) -> int:
    """A field as a whole number of at least `least`; a WorkloadError names file, line and field."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if number < least:
        raise WorkloadError(
            f"{path}, line {line}: {name} must be a whole number of at least {least}, not {value!r}"
        )
    return number


def number(value: Any, path: Path, line: int, name: str, low: float = 0.0, high: float = math.inf) -> float:
    """A field as a finite number in [low, high]; a WorkloadError names file, line and field."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and low <= found <= high):
        bounds = f"of at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
        raise WorkloadError(f"{path}, line {line}: {name} must be a number {bounds}, not {value!r}")
    return found
