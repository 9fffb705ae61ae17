"""What an emulated model answers, text or JSON, and where it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import orjson

from backends.emulator.text import BYTES_PER_TOKEN, Answer, count_tokens
from backends.engine.sequence import Finish

#: The nesting of an example, whose schema may refer to itself.
_DEPTH = 12
#: Stands for the string that is made as long as needed.
_MARK = "\0"


def ended_answer(answer: Answer, limit: int, stops: Sequence[str]) -> tuple[Answer, Finish, str | None]:
    """The answer up to `limit` tokens or the first stop string, why it ends, and the stop string if that is why."""
    finish: Finish = "stop" if answer.tokens <= limit else "length"
    answer.tokens = min(answer.tokens, limit)
    if not stops:
        return answer, finish, None
    answer, stop = stopped_answer(answer, stops)
    return answer, finish if stop is None else "stop", stop


def stopped_answer(answer: Answer, stops: Sequence[str]) -> tuple[Answer, str | None]:
    """The answer cut before the first stop string, and that string. The count includes the token that completed the
    stop string, as an engine counts it."""
    text = answer.raw(0, answer.tokens)
    found = min(((at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0), default=None)
    if found is None:
        return answer, None
    at, stop = found
    pieces: list[str] = []
    length = 0
    end = at + len(stop)
    while length < end:
        piece = answer.piece(len(pieces))
        pieces.append(piece[: max(0, at - length)])
        length += len(piece)
    return Answer(0, len(pieces), pieces), stop


def shaped_answer(seed: int, tokens: int, schema: Mapping[str, Any] | None) -> Answer:
    """JSON of about so many tokens: one that fits the schema, or without one any object."""
    if schema is not None:
        return schema_answer(seed, tokens, schema)
    tokens = max(tokens, 2)  # of the shortest object
    inner = Answer(seed, tokens)
    middle = [inner.piece(index) for index in range(tokens - 2)]
    return Answer(seed, tokens, ['{"emulated": "', *middle, '"}'])


def given_answer(text: str) -> Answer:
    """This text, four characters a token."""
    return Answer(0, count_tokens(text), _pieces(text))


def _pieces(text: str) -> list[str]:
    return [text[at : at + BYTES_PER_TOKEN] for at in range(0, len(text), BYTES_PER_TOKEN)]


# --- JSON that fits a schema, like the answer of an engine with constrained sampling ----------------------
def example_json(schema: Any) -> str:
    """JSON that fits these parts of a schema: types, properties, enums, references."""
    return orjson.dumps(_example(schema, schema, _DEPTH, repeat("emulated"))).decode()


def schema_answer(seed: int, tokens: int, schema: Any) -> Answer:
    """An answer that fits the schema. Its first free string is made long enough for this number of tokens. Without such
    a string, or if the other members take more tokens, the schema determines the length."""
    example = _example(schema, schema, _DEPTH, chain([_MARK], repeat("emulated")))
    head, mark, tail = orjson.dumps(example).decode().partition("\\u0000")
    before, after = _pieces(head), _pieces(tail)
    inner = Answer(seed, tokens)
    middle = [inner.piece(index) for index in range(tokens - len(before) - len(after))] if mark else []
    pieces = [*before, *middle, *after]
    return Answer(seed, len(pieces), pieces)


def _example(schema: Any, root: Any, depth: int, strings: Iterator[str]) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return None if depth == 0 else next(strings)
    target = _target(schema, root)
    if target is not None:
        return _example(target, root, depth - 1, strings)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        wanted = schema.get("required")
        names = wanted if isinstance(wanted, list) else list(properties)
        return {
            name: _example(properties[name], root, depth - 1, strings)
            for name in names
            if isinstance(name, str) and isinstance(properties.get(name), Mapping)
        }
    if kind == "array":
        least = schema.get("minItems")
        count = min(least, 100) if isinstance(least, int) else 0
        return [_example(schema.get("items"), root, depth - 1, strings) for _ in range(count)]
    if kind in ("integer", "number"):
        least = schema.get("minimum")
        usual = 1 if kind == "integer" else 1.5
        return max(usual, least) if isinstance(least, int | float) else usual
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    if any(name in schema for name in ("maxLength", "pattern", "format")):  # no room for many words
        most = schema.get("maxLength")
        return "emulated"[: most if isinstance(most, int) and most >= 0 else None]
    return next(strings)


def _target(schema: Mapping[str, Any], root: Any) -> Any:
    """The target of a schema's reference, or the first of its alternatives that is not null; None if it has neither."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        found = root
        for step in reference.split("/")[1:]:
            found = found.get(step) if isinstance(found, Mapping) else None
        return found
    for name in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(name)
        if isinstance(choices, list) and choices:
            some = [one for one in choices if not (isinstance(one, Mapping) and one.get("type") == "null")]
            return (some or choices)[0]
    return None
