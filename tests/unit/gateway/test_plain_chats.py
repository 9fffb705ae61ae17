"""The check accepts what the model accepts, although it takes plain chats without the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import Refusal
from router.core.raw_json import LongText, Signs
from router.request import body as bodies
from router.request.needs import needs_of
from router.request.prompt import prompt_facts, simple_chat_facts
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
NAMES = [*sorted(bodies.Chat.__annotations__), "routing", "top_k", "chat_template_kwargs"]
OTHERS = st.sampled_from([name for name in NAMES if name != "messages"])
MESSAGES = st.one_of(
    VALUES,
    st.lists(st.dictionaries(st.sampled_from(["role", "content", "name"]), VALUES, max_size=3) | st.just(HI)),
)


#: JSON values, also such as `json.dumps` does not write.
JSON = (
    "null", "true", "false", "0", "-0", "1", "-1", "128", "129", "9007199254740991", "9007199254740992", "1" * 30, "1" * 5000,
    "0.0", "-0.0", "1.0", "1e2", "1E400", "5e-324", "NaN", '""', '"Hi"', '"1"', r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"',
    '"\u2028\ufeff"', '"' + "x" * 2_000 + '"', '"' + "x" * 70_000 + '"', "[]", "[1]", '["a"]', '["a",1]', "[" * 40 + "]" * 40,
    "[null]", "{}", '{"a":1}', '{"a":1,"a":"b"}', '{"include_usage":true}', '{"include_usage":null}', '{"include_usage":"x"}',
    '{"role":"user","content":"Hi"}', '[{"role":"user","content":"Hi"}]', '[{"role":"user","role":1,"content":"Hi"}]',
)  # fmt: skip
#: The message first, so that what follows decides.
FORMS = [
    *('{"messages":[{"role":"user","content":"Hi"}],"NAME":VALUE}'.replace("NAME", name) for name in NAMES),
    '{"messages":[{"role":VALUE,"content":"Hi"}]}',
    '{"messages":[{"role":"user","content":VALUE}]}',
    '{"messages":[{"role":"user","content":"Hi","tool_calls":VALUE}]}',
    '{"messages":[{"role":"user","content":"Hi"},VALUE]}',
    '{"messages":[{"role":"user","content":[VALUE]}]}',
    '{"messages":[{"content":VALUE}]}',
    '{"messages":VALUE}',
    '{"model":VALUE}',
]


def refused(
    check: Callable[[Mapping[str, Any]], object], body: Mapping[str, Any]
) -> tuple[str, str | None] | None:
    """The error's message and field; None if the check accepts the body."""
    try:
        check(body)
    except Refusal as refusal:
        return refusal.message, refusal.param
    return None


@pytest.mark.parametrize("form", FORMS)
def test_the_check_accepts_what_the_model_accepts(form: str) -> None:
    for value in JSON:
        try:
            body = bodies.parse_json(form.replace("VALUE", value).encode())
        except Refusal:
            continue
        said = refused(lambda body: bodies.check("chat", body), body)
        assert said == refused(bodies._CHECKS["chat"], body), value[:100]


@given(MESSAGES, st.dictionaries(OTHERS, VALUES, max_size=4))
def test_what_is_taken_for_plain_passes_the_model(messages: Any, more: dict[str, Any]) -> None:
    """Also what no JSON says."""
    body = {"messages": messages} | more
    plain, texts = bodies._plain_chat(body)
    if plain:
        assert refused(bodies._CHECKS["chat"], body) is None
    if texts is not None:  # what a simple chat is, the general way says the same
        assert simple_chat_facts(messages, texts) == prompt_facts("chat", body)
        assert needs_of("chat", body) == ()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": "m", "max_tokens": 1, "stream": True, "temperature": 0.5, "seed": -3, "top_k": [1]},
        {"max_completion_tokens": LARGEST_INTEGER},
        {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}},
    ],
)
def test_usual_chats_are_plain(more: dict[str, Any]) -> None:
    assert bodies._plain_chat({"messages": [HI, HI | {"name": "a"}]} | more) == (True, None)


@pytest.mark.parametrize(
    ("more", "simple"),
    [
        ({}, True),
        ({"model": ["m"], "max_tokens": 1, "stream": True, "temperature": 0.5, "seed": -3}, True),
        ({"stream_options": {"include_usage": True}}, False),
        ({"best_of": None}, False),
        ({"truncate_prompt_tokens": 4}, False),
        ({"documents": ["text"]}, False),
    ],
)
def test_a_simple_chat_has_nothing_but_texts_numbers_and_flags(more: dict[str, Any], simple: bool) -> None:
    assert bodies.check("chat", {"messages": [HI, HI]} | more) == (["Hi", "Hi"] if simple else None)


@pytest.mark.parametrize(
    ("api", "body", "field"),
    [
        *(
            ("chat", {"messages": given}, "messages")
            for given in ([], "Hello", {}, [HI] * (MAX_MESSAGES + 1))
        ),
        ("chat", {"messages": [None]}, "messages[0]"),
        ("chat", {"messages": [{"content": "x"}]}, "messages[0].role"),
        *(("chat", {"messages": [HI | {"content": given}]}, "messages[0].content") for given in (7, [None])),
        *(
            ("chat", {"messages": [HI], "max_tokens": given}, "max_tokens")
            for given in (0, True, "4", 10**22)
        ),
        *(("chat", {"messages": [HI], "n": given}, "n") for given in (0, 1000)),
        ("chat", {"messages": [HI], "temperature": "hot"}, "temperature"),
        ("chat", {"messages": [HI], "stream": "yes"}, "stream"),
        ("chat", {"messages": [HI], "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ("chat", {"messages": [HI], "stop": [1]}, "stop"),
        ("chat", {"messages": [HI], "tools": {}}, "tools"),
        *(
            ("completions", {"prompt": given}, "prompt")
            for given in (None, [], [1, "a"], [-1], [True], {"a": 1})
        ),
        *(("embeddings", {"input": given}, "input") for given in (None, [[1, "x"]])),
        ("embeddings", {"input": "x", "dimensions": "many"}, "dimensions"),
    ],
)
def test_a_wrong_body_is_refused_by_its_field(api: str, body: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        bodies.check(api, body)
    assert refused.value.param == field


def test_a_long_text_and_parts_are_for_the_model() -> None:
    long = LongText.of("Hi", b'"Hi"', Signs())
    for content in (long, [{"type": "text", "text": "Hi"}], None):
        body = {"messages": [{"role": "user", "content": content}]}
        assert not bodies._plain_chat(body)[0]
        assert bodies.check("chat", body) is None
