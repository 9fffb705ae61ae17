"""JSON in bounded steps: the value is that of a plain parse, however it was read."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends import bounded_json
from backends.bounded_json import Bounds, TooComplex
from router.core.raw_json import LongList, LongText, Signs, dumps, json_bytes, measured

TEXT = st.text(
    st.characters(exclude_categories=("Cs",)) | st.sampled_from('"\\/\n\x7f{[,:]}é漢😀'), max_size=60
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large: each way of reading is taken by short documents too."""
    monkeypatch.setattr(bounded_json, "SMALL_BYTES", 8)
    monkeypatch.setattr(bounded_json, "_IN_PLACE_BYTES", 16)
    monkeypatch.setattr(bounded_json, "_LONG_BYTES", 12)
    monkeypatch.setattr(bounded_json, "_WINDOW", 40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, ascii_only=st.booleans(), spaces=st.booleans())
async def test_the_value_is_that_of_a_plain_parse(value: object, ascii_only: bool, spaces: bool) -> None:
    separators = (" ,\n", " : ") if spaces else (",", ":")
    data = json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode()
    try:
        read = await bounded_json.read(data)
    except TooComplex as error:
        assert "name is too long" in str(error)  # noqa: PT017 (a long name is the one thing that is not read)
        return
    assert read == orjson.loads(data) == bounded_json.loads(data)
    assert orjson.loads(dumps(read)) == read
    short, long, size = measured(read)
    assert size == json_bytes(read) == len(dumps(read))
    assert len(short) <= size
    assert all(text.signs == Signs.of(text.json) for text in long)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=80)
    | st.text('"\\u0dDcC8{}[],:1 ', max_size=120).map(str.encode)
    | st.tuples(VALUES, st.integers(0, 60), st.binary(max_size=3)).map(
        lambda parts: (d := json.dumps(parts[0]).encode())[: parts[1]] + parts[2] + d[parts[1] :]
    )
)
async def test_what_is_no_json_is_no_json_in_steps_either(data: bytes) -> None:
    try:
        expected = orjson.loads(data)
    except orjson.JSONDecodeError:
        with pytest.raises(ValueError):
            await bounded_json.read(data)
        return
    try:
        assert await bounded_json.read(data) == expected
    except TooComplex as error:
        assert "name" in str(error) or "levels" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("data", "bounds", "reason"),
    [
        (b"[1,2,3,4]", Bounds(values=2, members=5, depth=9), "more than 2 values"),
        (b'{"a":{"b":{"c":1}}}', Bounds(values=99, members=4, depth=9), "more than 4 members"),
        (b"[[[[],[]]]]", Bounds(values=99, members=99, depth=2), "more than 2 levels"),
    ],
)
async def test_what_holds_too_much_is_refused(data: bytes, bounds: Bounds, reason: str) -> None:
    with pytest.raises(TooComplex, match=reason):
        bounded_json.loads(data, bounds)
    with pytest.raises(TooComplex, match=reason):
        await bounded_json.read(data, bounds)


async def test_marks_inside_strings_do_not_count() -> None:
    text = "[{,:" * 100
    data = orjson.dumps([text])
    assert await bounded_json.read(data, Bounds(values=10, members=10, depth=5)) == [text]


async def test_long_strings_and_vectors_are_written_as_they_came() -> None:
    data = b'{"a":"caf\\u00e9 \\/ ' + b"x" * 100 + b'","b":[1]}'
    value = await bounded_json.read(data)
    assert isinstance(value["a"], LongText)
    assert value["a"] == "café / " + "x" * 100
    assert dumps(value) == data
    assert json_bytes(value) == len(data)

    numbers = b"[" + b"0.125," * 400 + b"1e-3]"
    data = b'{"data":[{"embedding":' + numbers + b'},{"embedding":[1,2]}]}'
    value = await bounded_json.read_vectors(data)
    assert isinstance(value["data"][0]["embedding"], LongList)
    assert value == orjson.loads(data)
    assert dumps(value) == data
    assert json_bytes(value) == len(data)


async def test_a_vector_that_is_no_json_is_refused() -> None:
    with pytest.raises(orjson.JSONDecodeError):
        await bounded_json.read_vectors(b'{"data":[{"embedding":[' + b"1-2e," * 400 + b"1]}]}")


_ESCAPES = ["\\\\", '\\"', "\\n", "\\ud83d", "\\uDE42", "\\uDBFF", "\\udc00", "\\u0041", "ud83d", "a"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(_ESCAPES), max_size=9).map("".join))
def test_half_a_surrogate_pair_of_an_engine_is_replaced(escaped: str) -> None:
    exact: str = json.loads(f'"{escaped}"')
    wanted = "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in exact)
    assert bounded_json.loads_event(f'"{escaped}"'.encode()) == wanted
    assert bounded_json.loads_with_halves(f'"{escaped}"'.encode()) == wanted


@given(st.binary(max_size=9), st.sampled_from([b"", b"\\ud83d"]))
def test_bytes_of_an_engine_that_are_not_utf_8_are_replaced(odd: bytes, half: bytes) -> None:
    odd = bytes(byte for byte in odd if byte >= 32 and byte not in b'"\\')
    wanted = odd.decode("utf-8", "replace") + ("\ufffd" if half else "")
    assert bounded_json.loads_event(b'"%b"' % (odd + half)) == wanted


@pytest.mark.parametrize("data", [b'"\\ud83d\0"', b'"\\ud83d', b"\\ud83d", b'"\\ud83"', b'"\\ud83d\xff'])
def test_half_a_surrogate_pair_makes_nothing_else_json(data: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        bounded_json.loads_event(data)
