"""A class with a compiled constructor is called as without it."""

from __future__ import annotations

import asyncio
import copy
import gc
import sys
from dataclasses import dataclass, field, fields, replace
from types import MemberDescriptorType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.compiled import compiled_init, first_step, openings, reader
from router.core.types import Request
from router.store.records import RequestRecord


@dataclass(slots=True)
class Plain:
    a: Any
    b: Any = 2
    c: list[int] = field(default_factory=list)


class Tuple(NamedTuple):
    a: Any
    b: Any = 2
    c: Any = ()


@compiled_init
@dataclass(slots=True)
class CompiledPlain:
    a: Any
    b: Any = 2
    c: list[int] = field(default_factory=list)


@compiled_init
class CompiledTuple(NamedTuple):
    a: Any
    b: Any = 2
    c: Any = ()


class Child(CompiledPlain):
    pass


KINDS = [(Plain, CompiledPlain), (Tuple, CompiledTuple)]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 3, [4]), {}),
    ((1,), {"c": [5]}),
    ((), {"c": [5], "a": 1}),
    ((), {"b": 7, "a": 1, "c": []}),
    ((), {}),
    ((1, 2, 3, 4), {}),
    ((1,), {"a": 2}),
    ((1,), {"d": 2}),
    ((), {"b": 2}),
    ((1,), {"".join(["l", "ong"]): 2}),
]


def outcome(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    try:
        made = kind(*args, **kwargs)
    except TypeError as error:
        return str(error).removeprefix("Compiled")
    return [getattr(made, name) for name in ("a", "b", "c")]


@pytest.mark.parametrize(("python", "compiled"), KINDS)
@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_a_call_gives_what_python_gives(
    python: type, compiled: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert outcome(compiled, args, kwargs) == outcome(python, args, kwargs)


def test_each_object_has_a_default_of_its_own() -> None:
    assert CompiledPlain(1).c is not CompiledPlain(1).c


def test_objects_are_copied_and_compared_as_ever() -> None:
    made, pair = CompiledPlain(1), CompiledTuple(1)
    assert copy.copy(made) == replace(made) == copy.deepcopy(made) == made
    assert pair._replace(a=1) == CompiledTuple._make(pair) == copy.deepcopy(pair) == pair
    assert hash(pair) == hash(tuple(pair))
    assert isinstance(pair, tuple)


def test_the_interpreter_can_cache_where_a_field_of_a_named_tuple_is() -> None:
    pair: Any = CompiledTuple(1, c=3)
    assert (pair.a, pair.b, pair.c, pair[2]) == (1, 2, 3, 3)
    with pytest.raises(AttributeError):
        pair.a = 2
    if compiled_init.__module__ != "router.compiled":
        assert {type(vars(CompiledTuple)[name]) for name in CompiledTuple._fields} == {MemberDescriptorType}


@given(st.binary(max_size=300), st.integers(0, 40))
def test_what_a_document_begins_is_counted(data: bytes, more: int) -> None:
    data += b'{"[' * more
    assert openings(data) == data.count(b"{") + data.count(b"[")


def test_the_first_step_of_a_coroutine() -> None:
    async def gives(found: object) -> object:
        return found

    async def waits() -> str:
        await asyncio.sleep(0)
        return "found"

    async def fails() -> None:
        raise ZeroDivisionError

    value = object()
    before = sys.getrefcount(value)
    for found in (value, None, (1, 2), StopIteration(3)):
        assert first_step(gives(found)) == (True, found)
    waiting = waits()
    assert first_step(waiting) == (False, None)
    assert first_step(waiting) == (True, "found")
    with pytest.raises(ZeroDivisionError):
        first_step(fails())
    del found
    assert sys.getrefcount(value) == before


def test_a_subclass_keeps_its_own_class() -> None:
    assert type(Child(1)) is Child


def test_no_reference_is_kept() -> None:
    value = object()
    before = sys.getrefcount(value)
    for _ in range(100):
        CompiledPlain(value, b=value)
        CompiledTuple(value, c=value)
        outcome(CompiledTuple, (value,), {"a": value})
    assert sys.getrefcount(value) == before


def test_a_cycle_is_collected() -> None:
    gc.collect()
    for _ in range(10):
        made = CompiledPlain(None)
        made.a = made
    del made
    assert gc.collect() >= 10


def test_the_classes_of_a_request_have_all_their_fields() -> None:
    for made in (Request("id", 0.0, "least_load", ("m",)), RequestRecord(id="id", received_at=0.0)):
        assert all(hasattr(made, each.name) for each in fields(made))


def test_fields_are_read_as_attributes_are() -> None:
    read = reader(CompiledPlain, "c", "a")
    made = CompiledPlain(1)
    assert read(made) == ([], 1)
    assert read(made)[0] is made.c
    assert read(Child(2, c=[3])) == ([3], 2)
    assert read(Plain(4)) == ([], 4)

    class Other(CompiledPlain):
        """Another way to one of the fields."""

        c = property(lambda self: [self.a])

    other = Other.__new__(Other)
    other.a = 5
    for _ in range(2):
        assert read(other) == ([5], 5)
    del made.a
    for without in (made, object()):
        with pytest.raises(AttributeError):
            read(without)
