"""A chat that is taken for plain would pass the check of the model too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import Refusal
from router.core.raw_json import LongText, Signs
from router.request import body as bodies
from router.request.validation import LARGEST_INTEGER, MAX_MESSAGES

HI = {"role": "user", "content": "Hi"}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, LARGEST_INTEGER, LARGEST_INTEGER + 1, 2**70]),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.text(max_size=2), max_size=2),
    st.dictionaries(st.text(max_size=2), st.booleans(), max_size=1),
)
NAMES = st.sampled_from([*sorted(bodies._Chat.__annotations__), "routing", "top_k", "chat_template_kwargs"])
MESSAGES = st.one_of(
    VALUES,
    st.lists(st.dictionaries(st.sampled_from(["role", "content", "name"]), VALUES, max_size=3) | st.just(HI)),
)


@given(MESSAGES, st.dictionaries(NAMES.filter("messages".__ne__), VALUES, max_size=4))
def test_what_is_taken_for_plain_passes_the_model(messages: Any, more: dict[str, Any]) -> None:
    body = {"messages": messages} | more
    if bodies._is_plain_chat(body):
        bodies._CHECKS["chat"](body)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": "m", "max_tokens": 1, "stream": True, "temperature": 0.5, "seed": -3, "top_k": [1]},
        {"max_completion_tokens": LARGEST_INTEGER},
    ],
)
def test_usual_chats_are_plain(more: dict[str, Any]) -> None:
    assert bodies._is_plain_chat({"messages": [HI, HI | {"name": "a"}]} | more)


@pytest.mark.parametrize(
    ("messages", "more", "field"),
    [
        ([], {}, "messages"),
        ([HI] * (MAX_MESSAGES + 1), {}, "messages"),
        ([HI, {"content": "Hi"}], {}, "messages[1].role"),
        ([HI], {"max_tokens": True}, "max_tokens"),
        ([HI], {"max_tokens": 0}, "max_tokens"),
        ([HI], {"stream": "yes"}, "stream"),
        ([HI], {"n": 0}, "n"),
    ],
)
def test_a_wrong_chat_is_refused_by_its_field(messages: Any, more: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        bodies.check("chat", {"messages": messages} | more)
    assert refused.value.param == field


def test_a_long_text_and_parts_are_for_the_model() -> None:
    long = LongText.of("Hi", b'"Hi"', Signs())
    for content in (long, [{"type": "text", "text": "Hi"}], None):
        body = {"messages": [{"role": "user", "content": content}]}
        assert not bodies._is_plain_chat(body)
        bodies.check("chat", body)
