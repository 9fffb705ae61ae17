"""What the types of fields say about how the gateway uses their values.

Code that checks what exists, or compares two files, looks for these. So a field of such a type needs no further code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from router.config.errors import Path

#: In a field's annotation: the gateway reads the value at its start only.
AT_START = "at start"


class Variable(str):
    """The name of an environment variable."""

    __slots__ = ()


class LocalFile(str):
    """The name of a file on the gateway's machine."""

    __slots__ = ()


class Named(NamedTuple):
    """A value that names a variable or a file, and its path."""

    path: Path
    name: Variable | LocalFile


def named(value: object, path: Path = ()) -> Iterator[Named]:
    """All variables and files that a section and those below it name, in the order of their fields."""
    if isinstance(value, Variable | LocalFile):
        yield Named(path, value)
    elif isinstance(value, BaseModel):
        for key in type(value).model_fields:
            yield from named(getattr(value, key), (*path, key))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from named(each, (*path, key))
    elif isinstance(value, tuple):
        for position, each in enumerate(value):
            yield from named(each, (*path, position))


def at_start(section: BaseModel) -> list[str]:
    """The fields of a section whose values are read at the start only."""
    return [key for key, field in type(section).model_fields.items() if AT_START in field.metadata]
