"""YAML with line numbers: plain data, and the line of each path.

Scalars follow YAML 1.2's core schema: `on`, `off`, `no` and `12:30` are strings, `1e-3` is a number. A key that is
given twice is an error (YAML would silently take the last one).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from router.config.errors import ConfigError, Path, Problem

#: In no file's name, no header and no UTF-8.
_UNUSABLE = re.compile("[\0\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2 instead of those of 1.1."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
        # A whole number with too many digits; `!!int abc`, `!!bool abc`, `!!timestamp abc`.
        except (ValueError, LookupError, AttributeError) as error:
            raise ConstructorError(None, None, "not a valid value of its type", node.start_mark) from error
        if isinstance(value, str) and _UNUSABLE.search(value):
            raise ConstructorError(None, None, "text with a NUL or half a surrogate pair", node.start_mark)
        return value

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


#: The most values of a document, with each alias counted in full: aliases of aliases grow without bound.
_MAX_VALUES = 1_000_000


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file. `lines` maps a path to the line (from 1) of its key or list item."""

    data: Any
    lines: dict[Path, int]

    def line(self, path: Path) -> int:
        """The line of a path, or of its nearest parent that the file has."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return self.lines.get((), 1)


def parse(text: str, source: str) -> Document:
    """Read one YAML document. Raises ConfigError for invalid YAML, for keys that are given twice, and for more than a
    million values."""
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:
        raise ConfigError(source, [_syntax(error)]) from error
    try:
        root = loader.get_single_node()
        if root is None:
            return Document({}, {})
        wrong: list[Problem] = []
        values = _count(root, (), wrong, frozenset(), {})
        if wrong:
            raise ConfigError(source, wrong)
        if values > _MAX_VALUES:
            raise ConfigError(
                source, [Problem((), f"has more than {_MAX_VALUES} values, aliases included", 1)]
            )
        data = loader.construct_document(root)
        lines: dict[Path, int] = {(): root.start_mark.line + 1}
        _find_lines(root, (), lines)  # This comes after construction, which inserts merged keys.
        return Document(data, lines)
    except yaml.YAMLError as error:
        raise ConfigError(source, [_syntax(error)]) from error
    except RecursionError as error:
        raise ConfigError(source, [Problem((), "is nested too deeply", 1)]) from error
    finally:
        loader.dispose()


def _syntax(error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        return Problem((), f"not YAML: {reason}", mark.line + 1 if mark else 1)
    reason = getattr(error, "reason", None) or "cannot be read"
    return Problem((), f"not YAML: {reason}", 1)


def _count(
    node: yaml.Node, path: Path, wrong: list[Problem], above: frozenset[int], known: dict[int, int]
) -> int:
    """How many values a node holds, itself and what its aliases stand for included. Keys that are given twice and nodes that
    contain themselves are `wrong`."""
    if id(node) in above:
        wrong.append(Problem(path, "refers to itself", node.start_mark.line + 1))
        return 0
    if id(node) in known:  # an alias
        return known[id(node)]
    above = above | {id(node)}
    values = 1
    first_line: dict[tuple[str, str | int], int] = {}
    for start, step, value in _below(node):
        here = path if step is None else (*path, step)
        if isinstance(node, yaml.MappingNode) and step is not None:
            key, line = (start.tag, step), start.start_mark.line + 1
            if key in first_line:
                wrong.append(Problem(here, f"given twice (first on line {first_line[key]})", line))
            else:
                first_line[key] = line
        values += _count(value, here, wrong, above, known)
    known[id(node)] = values
    return values


def _find_lines(node: yaml.Node, path: Path, lines: dict[Path, int]) -> None:
    for start, step, value in _below(node):
        if step is not None:
            lines[*path, step] = start.start_mark.line + 1
            _find_lines(value, (*path, step), lines)


def _below(node: yaml.Node) -> Iterator[tuple[yaml.Node, str | int | None, yaml.Node]]:
    """The parts of a list or mapping: the node where each begins, its step in a path (None for a key that is no scalar),
    and its value."""
    if isinstance(node, yaml.SequenceNode):
        yield from ((item, position, item) for position, item in enumerate(node.value))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key, key.value if isinstance(key, yaml.ScalarNode) else None, value
