"""Every field of the fleet file, given a wrong value: the error names its line and path and shows the value, never a secret."""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from router.config import ConfigError, FleetConfig, loads, parse_instance
from router.config.errors import masked
from router.core.quoting import MAX_QUOTED_CHARS

Path = tuple[str | int, ...]

WRONG_TEXT = "wrong text of mine"
WRONG_NUMBER = 918273.5
SECRET = "tiger striped password"


def fields(model: type[BaseModel], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Path and type of every field below a model; one item of each list, one entry of each mapping."""
    for name, field in model.model_fields.items():
        yield from of_type((*path, name), field.annotation)


def of_type(path: Path, annotation: Any) -> Iterator[tuple[Path, Any]]:
    while hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    arguments = [each for each in typing.get_args(annotation) if each not in (type(None), Ellipsis)]
    if type(None) in typing.get_args(annotation):
        yield from of_type(path, arguments[0])
        return
    yield path, annotation
    origin = typing.get_origin(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from fields(annotation, path)
    elif origin is tuple:
        yield from of_type((*path, 0), arguments[0])
    elif origin is dict and arguments[1] is not Any:  # `settings` of an instance: its kind says what is in it
        yield from of_type((*path, "m"), arguments[1])


FIELDS = dict(fields(FleetConfig))
SECRETS = [
    path for path in FIELDS if any(str(part) == "sha256" or str(part).endswith("_env") for part in path)
]
GOOD: dict[str, Any] = {
    "models": [{"name": "m"}],
    "instances": [{"name": "i", "kind": "vllm", "url": "http://a:1", "serves": {"m": "m"}}],
}


def file_with(path: Path, value: object) -> str:
    """The good file with a value put in."""
    data = copy.deepcopy(GOOD)
    at: Any = data
    for part, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(part, int):
            if len(at) <= part:
                at.append(empty)
        elif not isinstance(at.get(part), dict | list):
            at[part] = empty
        at = at[part]
    if isinstance(path[-1], int) and len(at) <= path[-1]:
        at.append(value)
    else:
        at[path[-1]] = value
    return yaml.safe_dump(data)


def errors_of(read: Callable[[], object]) -> str:
    """What is told; empty for a file that is right."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return ""


def dotted(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def test_the_walk_finds_every_section() -> None:
    assert {path[0] for path in FIELDS} == set(FleetConfig.model_fields)
    assert len(FIELDS) > 120
    assert ("auth", "keys", 0, "sha256") in SECRETS
    assert ("instances", 0, "headers_env", "m") in SECRETS


@pytest.mark.parametrize("path", [path for path in FIELDS if path not in SECRETS], ids=dotted)
def test_a_value_of_the_wrong_type_is_shown_with_line_and_path(path: Path) -> None:
    # A served model may be plain text: its short form.
    text_fits = FIELDS[path] is str or path[-2:-1] == ("serves",)
    wrong: object = WRONG_NUMBER if text_fits else WRONG_TEXT
    text = file_with(path, wrong)
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    found = [problem for problem in caught.value.problems if dotted(problem.path) == dotted(path)]
    assert found, caught.value
    line = next(number for number, each in enumerate(text.splitlines(), 1) if str(wrong) in each)
    assert found[0].line == line
    # a key is easily written there
    hidden = path in {
        ("auth",),
        ("auth", "keys"),
        ("auth", "keys", 0),
        ("judge", "key"),
        ("second_look", "key"),
    }
    assert any(f"(given: {masked(wrong)})" in problem.reason for problem in found) == (not hidden)


@pytest.mark.parametrize("path", SECRETS, ids=dotted)
@pytest.mark.parametrize("wrong", [SECRET, f"sk-{SECRET}", [SECRET], {"a b": SECRET}, 8675309], ids=repr)
def test_the_value_of_a_secret_is_never_shown(path: Path, wrong: object) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(file_with(path, wrong), "f")
    assert dotted(path) in str(caught.value)
    for part in ("tiger", "striped", "8675309"):
        assert part not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["api_key", "token", "password", "authorization", "headers", "admin_key", "key", "colour"]
)
@pytest.mark.parametrize(
    "path", [("instances", 0), ("auth",), ("auth", "keys", 0), ("store",), ("state",), ()]
)
def test_the_value_of_an_unknown_key_is_never_shown(path: Path, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(file_with((*path, key), SECRET), "f")
    assert "tiger" not in str(caught.value)


@pytest.mark.parametrize(
    "path", [path for path in FIELDS if path[-1] in ("url", "endpoint", "server")], ids=dotted
)
@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h",
        "redis://me:hun/ter2@@h",
        "ftp://hunter2@h",
        "x:hunter2@h",
        "http://h/?token=hunter2",
        "//hunter2@h",
        "http://[hunter2@h",
    ],
)
def test_logins_in_urls_are_never_shown(path: Path, url: str) -> None:
    told = errors_of(lambda: loads(file_with(path, url), "f"))
    assert "hunter2" not in told
    assert "hun/ter2" not in told


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.just("x" * 100_000)
    | st.integers(10**60, 10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@given(path=st.sampled_from(list(FIELDS)), value=VALUES)
def test_whatever_is_written_an_error_is_short_lines_of_printable_text(path: Path, value: Any) -> None:
    from router.config.load import check  # what follows the parser

    data = yaml.safe_load(file_with(path, 0))
    at = data
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    lines = errors_of(lambda: check(data, "f", lambda _: 1)).split("\n")
    assert all(line.startswith("f:1: ") or not line for line in lines)
    assert all(line.isprintable() and len(line) < 700 for line in lines)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("models:\n- {name: m, context_tokens: " + "9" * 5000 + "}", 2, "not a valid value of its type"),
        ("models:\n- {name: m, quality: !!int abc}", 2, "not a valid value of its type"),
        ("models:\n- {name: m, quality: !!int ''}", 2, "not a valid value of its type"),
        ("models:\n- {name: m, quality: !!bool abc}", 2, "not a valid value of its type"),
        ("models:\n- {name: m, quality: !!timestamp abc}", 2, "not a valid value of its type"),
        ("[" * 5000, 1, "nested too deeply"),
        ("models: " + "[" * 3000 + "]" * 3000, 1, "nested too deeply"),
    ],
    ids=["digits", "tag", "empty", "bool", "time", "open", "closed"],
)
def test_what_the_parser_refuses_is_told_with_its_line(text: str, line: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        loads(text, "f")
    assert caught.value.problems[0].line == line


def test_a_list_with_a_wrong_item_is_not_called_empty() -> None:
    with pytest.raises(ConfigError) as caught:
        loads("models: [{name: 'a b'}]", "f")
    assert [dotted(problem.path) for problem in caught.value.problems] == ["models[0].name"]
    with pytest.raises(ConfigError, match=r"models: must have at least 1 item"):
        loads("models: []", "f")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", "'abc'"),
        (0.1 + 0.2, "0.3"),
        (1e-7, "1e-07"),
        (float("inf"), ".inf"),
        (10**500, "a very large number"),
        (True, "true"),
        (None, "null"),
        ("a\nb\x1b[31m", r"'a\nb\x1b[31m'"),
        ("x" * 500, f"'{'x' * MAX_QUOTED_CHARS}...'"),
        ({"a": SECRET}, "a mapping"),
        ("sk-abcdef0123456789", "'***'"),
        ("https://me:pw@host/v1?key=1", "'https://***@host/v1?***'"),
    ],
)
def test_a_value_is_shown_short_and_quoted(value: object, text: str) -> None:
    assert masked(value) == text


def test_an_instance_given_as_json_is_told_in_the_same_way() -> None:
    with pytest.raises(
        ConfigError, match=r"max_concurrency: must be greater than or equal to 1 \(given: 0\)"
    ):
        parse_instance(
            {"name": "i", "kind": "vllm", "url": "http://a", "serves": {"m": "m"}, "max_concurrency": 0}
        )
