"""What an emulated model answers, text or JSON, and where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backends.emulator.schemas import schema_answer
from backends.emulator.text import BYTES_PER_TOKEN, Answer, count_tokens
from backends.engine.sequence import Finish


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
    # The shortest object has two tokens.
    return json_answer(seed, max(tokens, 2)) if schema is None else schema_answer(seed, tokens, schema)


def json_answer(seed: int, tokens: int) -> Answer:
    """An answer that is one JSON object (if it has at least three tokens)."""
    inner = Answer(seed, tokens)
    middle = [inner.piece(index) for index in range(max(0, tokens - 2))]
    return Answer(seed, tokens, ['{"emulated": "', *middle, '"}'][:tokens])


def given_answer(text: str) -> Answer:
    """This text, four characters a token."""
    pieces = [text[at : at + BYTES_PER_TOKEN] for at in range(0, len(text), BYTES_PER_TOKEN)]
    return Answer(0, count_tokens(text), pieces)
