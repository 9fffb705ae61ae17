"""Files as they were published, plain or gzipped: CSV tables, JSON lines and JSON lists, read into typed records. A WorkloadError
names file, line and field of what is not as it should be."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from benchmarks.checks import json_object
from benchmarks.workloads.format import WorkloadError, checked, reading

# A CSV file has texts only, so numbers are read from texts too.
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
#: `Annotated[Share | None, EMPTY]`: an empty cell is unknown.
EMPTY = BeforeValidator(lambda cell: None if cell == "" else cell)


class Record(BaseModel):
    """What is read of one row; further columns or members are left alone."""

    model_config = ConfigDict(frozen=True)


Read = TypeVar("Read", bound=Record)
Row = TypeVar("Row")
Key = TypeVar("Key")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file, plain or gzipped (by its first bytes)."""
    with reading(path):
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        file = io.BufferedReader(gzip.GzipFile(path)) if packed else path.open("rb")
    with file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise WorkloadError(f"{path}: not a whole gzip file ({error})") from None


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """A text file, plain or gzipped."""
    with _opened(path) as file:
        try:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise WorkloadError(f"{path}: not UTF-8 text ({error})") from None


def table(path: Path, kind: type[Read]) -> Iterator[Read]:
    """The rows of a CSV file with a header."""
    needed = [field.alias or name for name, field in kind.model_fields.items() if field.is_required()]
    with open_text(path) as text:
        try:
            rows = csv.DictReader(text)
            missing = [name for name in needed if name not in (rows.fieldnames or ())]
            if missing:
                raise WorkloadError(
                    f"{path}, line 1: column {missing[0]} is missing (expected {','.join(needed)})"
                )
            row = None
            for row in rows:
                yield checked(kind.model_validate, row, f"{path}, line {rows.line_num}")
            if row is None:
                raise WorkloadError(f"{path}: holds no row")
        except csv.Error as error:
            raise WorkloadError(f"{path}: cannot be read as CSV ({error})") from error


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file with their line numbers."""
    with _opened(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                data = orjson.loads(line.removeprefix(BOM_UTF8).decode())
            except UnicodeDecodeError:
                raise WorkloadError(f"{path}, line {number}: not UTF-8 text") from None
            except orjson.JSONDecodeError as error:
                raise WorkloadError(f"{path}, line {number}: not valid JSON ({error.msg})") from None
            if not isinstance(data, dict):
                raise WorkloadError(f"{path}, line {number}: must be a JSON object")
            yield number, data


def json_records(path: Path, kind: type[Read]) -> Iterator[Read]:
    """The objects of a JSON-lines file."""
    return (checked(kind.model_validate, data, f"{path}, line {at}") for at, data in json_lines(path))


def json_value(path: Path) -> Any:
    """What a JSON file holds; of one that holds JSON lines, the list of its objects."""
    with open_text(path) as text:
        content = text.read()
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        if json_object(content.lstrip().partition("\n")[0]) is None:
            raise WorkloadError(f"{path}: not valid JSON ({error})") from None
    return [data for _, data in json_lines(path)]


def json_list(path: Path, kind: type[Read]) -> Iterable[Read]:
    """The objects of a JSON file that holds a list of them."""
    data = json_value(path)
    if not isinstance(data, list):
        raise WorkloadError(f"{path}: must be a list of JSON objects")
    return (checked(kind.model_validate, item, f"{path}, item {at}") for at, item in enumerate(data, start=1))


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> defaultdict[Key, list[Row]]:
    """The rows by what `key` gives of each, in their order."""
    parts: defaultdict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        parts[key(row)].append(row)
    return parts
