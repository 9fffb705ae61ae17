"""What a source is: one public set (or generator), where its files are, and how they are read."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from benchmarks.workloads.format import WorkloadError, WorkloadRequest

#: Own model name -> names it has in a set, the first one found is taken.
ModelNames = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Choices:
    """What a reader may be told. `models`: whose answers give the lengths ({our name: names in the set}; None:
    the set's default). `native_lengths`: token counts of the models' own tokenizers where the data folder
    has them, in place of characters / a constant. `quality`: keep judged quality where the folder has it."""

    models: ModelNames | None = None
    native_lengths: bool = False
    quality: bool = False


Reader = Callable[[Sequence[Path], Choices], list[WorkloadRequest]]


@dataclass(frozen=True, slots=True)
class Source:
    """A public set. `timed` says whether it has arrival times, `texts` whether it has prompts.

    `folder_files` are its files under HEADWAY_DATA (all are needed), `urls` gives the published originals
    (commits are pinned, so the content is too), `sha256` their checksums where known.
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
