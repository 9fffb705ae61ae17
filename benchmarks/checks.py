"""Checks of what comes from outside: files, their rows, options. pydantic checks; an error is one line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from router.config.errors import dotted
from router.config.fields import LARGEST_NUMBER
from router.config.load import in_words

Number = TypeVar("Number", int, float)

#: Plainer words than pydantic's.
_WORDS = (
    ("Value should", "must"),
    (", unable to parse string as an integer", ""),
    (", unable to parse string as a number", ""),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
    ("greater than", "above"),
    ("less than", "below"),
)


def first_problem(
    error: ValidationError, root: type[BaseModel] | None = None
) -> tuple[tuple[str | int, ...], str]:
    """Path and reason of the first problem. `root` is the model that was checked, to name its keys."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return (), f"not valid JSON ({first['ctx']['error']})"
    (path, reason), *_ = in_words([first], root)
    for theirs, ours in _WORDS:
        reason = reason.replace(theirs, ours)
    # A tag says which alternative was checked, and is no part of the data.
    return tuple(part for part in path if not str(part).startswith("[")), reason


def problem(error: ValidationError) -> str:
    """The first problem as `PATH: REASON (given: VALUE)`."""
    path, reason = first_problem(error)
    return f"{dotted(path)}: {reason}" if path else reason


def json_object(data: bytes | str) -> dict[str, Any] | None:
    """The JSON object that `data` is; None for anything else."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def check_options(args: argparse.Namespace, refuse: Callable[[str], Exception], **types: Any) -> None:
    """Raise `refuse("--NAME: REASON")` for the first option whose value is not of its type. An option that is None
    was not given."""
    for name, kind in types.items():
        if getattr(args, name) is None:
            continue
        try:
            TypeAdapter[Any](kind).validate_python(getattr(args, name))
        except ValidationError as error:
            raise refuse(f"{option(name)}: {problem(error)}") from None


def check_out(folder: Path | None, refuse: Callable[[str], Exception]) -> None:
    """Raise `refuse` for an `--out` that is no folder; None was not given."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise refuse(f"--out {folder}: must be a folder, and this is a file")


def option(name: str) -> str:
    """An argument's name as it is typed."""
    return f"--{name.replace('_', '-')}"


def whole_number(text: str) -> int:
    """An argument that counts something. Raises ArgumentTypeError."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    if int(text) > LARGEST_NUMBER:
        raise argparse.ArgumentTypeError(f"must be at most {LARGEST_NUMBER}, not {text!r}")
    return int(text)


def seed(text: str) -> int:
    """An argument that seeds random draws: NumPy takes none below 0, scikit-learn none above 2^32 - 1, and some draws add to
    it. Raises ArgumentTypeError."""
    if not text.strip().isdecimal() or int(text) >= 1 << 31:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {(1 << 31) - 1}, not {text!r}")
    return int(text)


def positive_number(text: str) -> float:
    """An argument that measures something. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text!r}")
    return value


def names(text: str) -> tuple[str, ...]:
    """An argument that names things, with commas between them."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def whole_numbers(text: str) -> tuple[int, ...]:
    """An argument of several `whole_number`, with commas between them. Raises ArgumentTypeError."""
    return _different(whole_number, text)


def positive_numbers(text: str) -> tuple[float, ...]:
    """An argument of several `positive_number`, with commas between them. Raises ArgumentTypeError."""
    return _different(positive_number, text)


def _different(one: Callable[[str], Number], text: str) -> tuple[Number, ...]:
    values = tuple(one(each) for each in text.split(","))
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"{text}: the same level twice")
    return values


def add_number(
    parser: argparse._ActionsContainer, name: str, default: float, metavar: str, meaning: str
) -> None:
    """Add an option for a number above 0, a whole one if its default is an int."""
    parser.add_argument(
        name,
        type=whole_number if isinstance(default, int) else positive_number,
        default=default,
        metavar=metavar,
        help=f"{meaning} (default {default:g})",
    )
