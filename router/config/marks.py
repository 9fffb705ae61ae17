"""Marks: metadata in a field's annotation, which says how the gateway uses the field's value.

Code that checks what exists, or compares two files, looks for marks. So a field with a mark needs no further code.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import BaseModel

from router.config.crosscheck import Path


class Mark(StrEnum):
    """VARIABLE: the value names an environment variable. FILE: it names a file on the gateway's machine. AT_START: the
    gateway reads the value at its start only."""

    VARIABLE = "environment variable"
    FILE = "file"
    AT_START = "at start"


class Named(NamedTuple):
    """A value that names a variable or a file, and its path."""

    path: Path
    mark: Mark
    name: str


def named(section: BaseModel, path: Path = ()) -> Iterator[Named]:
    """All variables and files that a section and those below it name, in the order of their fields."""
    for key, field in type(section).model_fields.items():
        yield from _named(field.annotation, field.metadata, getattr(section, key), (*path, key))


def at_start(section: BaseModel) -> list[str]:
    """The fields of a section whose values are read at the start only."""
    return [key for key, field in type(section).model_fields.items() if Mark.AT_START in field.metadata]


def _named(annotation: Any, metadata: typing.Sequence[Any], value: Any, path: Path) -> Iterator[Named]:
    if value is None:
        return
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, metadata = annotation.__origin__, (*metadata, *annotation.__metadata__)
    arguments = [each for each in typing.get_args(annotation) if each not in (type(None), Ellipsis)]
    mark = next((each for each in (Mark.VARIABLE, Mark.FILE) if each in metadata), None)
    if annotation is Any:
        return
    if mark is not None:
        yield Named(path, mark, value)
    elif isinstance(value, BaseModel):
        yield from named(value, path)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(arguments[1], (), each, (*path, key))
    elif isinstance(value, tuple):
        for position, each in enumerate(value):
            yield from _named(arguments[0], (), each, (*path, position))
    elif len(arguments) == 1:  # `| None`
        yield from _named(arguments[0], (), value, path)
