"""Request bodies for OpenAI-compatible engines."""

from __future__ import annotations

from typing import Any

import pytest

from backends.openai import generation_body
from router.core.interfaces import Call
from router.core.types import Candidate

CANDIDATE = Candidate("i", "fleet", "engine")


def body_of(
    api: str = "chat", bound: int | None = None, chat_bound: str = "max_tokens", **fields: Any
) -> Any:
    sent = dict(fields)
    made = generation_body(Call(api, fields, CANDIDATE, "r", bound), chat_bound)
    assert fields == sent  # the client's body is shared between attempts
    return made


def test_everything_else_is_passed_through() -> None:
    fields: dict[str, Any] = {
        "model": "asked",
        "messages": [],
        "tools": [1],
        "logit_bias": {"5": 1},
        "unknown": None,
    }
    body = body_of(**fields)
    assert body == {**fields, "model": "engine", "stream": True, "stream_options": {"include_usage": True}}


def test_stream_options_are_kept() -> None:
    body = body_of(stream=False, stream_options={"continuous_usage_stats": True, "include_usage": False})
    assert body["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}


@pytest.mark.parametrize(("wished", "known"), [(True, True), (True, False), (False, True)])
def test_usage_in_each_event_where_the_engine_knows_it(wished: bool, known: bool) -> None:
    call = Call("chat", {"messages": []}, CANDIDATE, "r", usage_each=wished)
    options = generation_body(call, "max_tokens", counts_each=known)["stream_options"]
    assert options == {"include_usage": True} | ({"continuous_usage_stats": True} if wished and known else {})


@pytest.mark.parametrize(
    ("fields", "bound", "expected"),
    [
        ({}, None, {}),
        ({}, 5, {"max_completion_tokens": 5}),
        ({"max_tokens": 9}, 5, {"max_tokens": 5}),
        ({"max_tokens": 3}, 5, {"max_tokens": 3}),
        ({"max_tokens": 3}, None, {"max_tokens": 3}),
        ({"max_tokens": None}, 5, {"max_tokens": 5}),
        ({"max_completion_tokens": 9}, 5, {"max_completion_tokens": 5}),
        ({"max_completion_tokens": 9, "max_tokens": 4}, None, {"max_completion_tokens": 4}),
    ],
)
def test_the_smaller_bound_under_the_client_s_name(
    fields: dict[str, Any], bound: int | None, expected: dict[str, int]
) -> None:
    body = body_of(bound=bound, chat_bound="max_completion_tokens", **fields)
    assert {name: body[name] for name in body if name.startswith("max_")} == expected


def test_completions_know_max_tokens_only() -> None:
    body = body_of("completions", 5, "max_completion_tokens", prompt="x")
    assert (body["max_tokens"], "max_completion_tokens" in body) == (5, False)
