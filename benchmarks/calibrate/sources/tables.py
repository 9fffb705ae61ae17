"""Rows of a gzipped CSV file with a header."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibrate.measured import CalibrationError


class Row:
    """One line. Wrong values raise a CalibrationError that names file and line."""

    def __init__(self, where: str, values: dict[str, str]) -> None:
        self._where = where
        self._values = values

    def text(self, name: str) -> str:
        return self._values[name]

    def number(self, name: str) -> float:
        """A finite number."""
        try:
            return float(self._values[name])
        except ValueError:
            raise CalibrationError(f"{self._where}: {name} is no number") from None

    def count(self, name: str) -> int:
        """A whole number."""
        return round(self.number(name))


def rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """All rows of a file. A CalibrationError if it is not there, is no such table or lacks a column."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            table = csv.DictReader(lines)
            missing = sorted(set(columns) - set(table.fieldnames or ()))
            if missing:
                raise CalibrationError(f"{path}, line 1: no column {missing[0]!r}")
            found = []
            for values in table:
                where = f"{path}, line {table.line_num}"
                if any(values[name] is None for name in columns):
                    raise CalibrationError(f"{where}: too few columns")
                found.append(Row(where, values))
    except OSError as error:
        raise CalibrationError(f"cannot read {path}: {error.strerror or error}") from error
    if not found:
        raise CalibrationError(f"{path}: holds no row")
    return found
