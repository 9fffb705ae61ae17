"""Emulated answers that must fit a schema."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from backends.emulator.answers import example_json, schema_answer


class Inner(BaseModel):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=3)
    weight: float | None


class Outer(BaseModel):
    code: str = Field(max_length=3)
    name: str
    inner: Inner
    more: list[Inner] = Field(min_length=2)
    ready: bool


@pytest.mark.parametrize("tokens", [1, 60, 300])
def test_an_answer_fits_its_schema_and_its_length(tokens: int) -> None:
    answer = schema_answer(7, tokens, Outer.model_json_schema())
    found = Outer.model_validate_json(answer.raw(0, answer.tokens))
    assert (found.code, found.inner.kind, found.inner.age, len(found.more)) == ("emu", "cat", 3, 2)
    least = schema_answer(7, 0, Outer.model_json_schema()).tokens
    assert answer.tokens == max(least, tokens)
    assert bool(found.name) == (tokens > least)


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"const": 4}, 4),
        ({"type": ["null", "integer"]}, 1),
        ({"oneOf": [{"type": "null"}]}, None),
        ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"enum": ["x"]}}}, "x"),
        ({"type": "object"}, {}),
        ({"type": "array", "items": True, "minItems": 1}, ["emulated"]),
        ({"type": "string", "format": "date"}, "emulated"),
        (True, "emulated"),
    ],
)
def test_examples(schema: Any, found: Any) -> None:
    assert json.loads(example_json(schema)) == found


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert example_json(schema).startswith('{"next":{"next":')
