"""Ollama's requests in OpenAI's shape."""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Callable
from typing import Any

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama._types import ChatRequest, EmbedRequest, GenerateRequest

from router.core.errors import Refusal
from router.gateway.codecs.ollama.request import (
    Translated,
    chat_to_openai,
    embed_to_openai,
    embeddings_to_openai,
    generate_to_openai,
)

HI = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Translated:
    return chat_to_openai({"model": "m", "messages": HI, **fields})


def generate(**fields: Any) -> Translated:
    return generate_to_openai({"model": "m", "prompt": "hi", **fields})


def embed(**fields: Any) -> Translated:
    return embed_to_openai({"model": "m", **fields})


def test_the_plainest_chat_streams() -> None:
    assert chat() == Translated({"model": "m", "messages": HI, "stream": True}, True, "chat", None)
    assert chat(stream=False) == Translated(
        {"model": "m", "messages": HI, "stream": False}, False, "chat", None
    )


def test_the_plainest_generate_is_a_chat() -> None:
    assert generate() == Translated({"model": "m", "messages": HI, "stream": True}, True, "chat", None)
    found = generate(system="be brief", stream=False).body["messages"]
    assert found == [{"role": "system", "content": "be brief"}, *HI]


OPTIONS: list[tuple[dict[str, Any] | None, dict[str, Any]]] = [
    ({"num_predict": 128}, {"max_tokens": 128}),
    ({"num_predict": 128.0}, {"max_tokens": 128}),
    ({"num_predict": -1}, {}),
    ({"num_predict": -2}, {}),
    ({"num_predict": 0}, {}),
    ({"temperature": 0}, {"temperature": 0}),
    ({"temperature": 0.8, "top_p": 0.9}, {"temperature": 0.8, "top_p": 0.9}),
    ({"seed": 7}, {"seed": 7}),
    ({"seed": 0}, {"seed": 0}),
    ({"seed": -1}, {}),
    ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
    ({"stop": []}, {}),
    (
        {"presence_penalty": 1, "frequency_penalty": -0.5},
        {"presence_penalty": 1, "frequency_penalty": -0.5},
    ),
    ({"repeat_penalty": 1.1, "min_p": 0.1}, {"repetition_penalty": 1.1, "min_p": 0.1}),
    ({"top_k": 40}, {"top_k": 40}),
    ({"top_k": 0}, {}),
    ({"num_ctx": 8192, "num_gpu": 1, "num_batch": 2, "main_gpu": 0, "use_mmap": True}, {}),
    ({"no_such_option": "x", "temperature": None}, {}),
    (None, {}),
]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        (
            {"format": {"type": "object"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "response", "schema": {"type": "object"}},
                }
            },
        ),
        ({"format": ""}, {}),
        ({"format": None}, {}),
        ({"think": True}, {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ({"think": False}, {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        ({"think": "high"}, {"reasoning_effort": "high"}),
        ({"think": None}, {}),
        ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 20}),
        ({"top_logprobs": 3}, {}),
        ({"routing": {"policy": "price"}}, {"routing": {"policy": "price"}}),
        ({"keep_alive": "5m", "truncate": False, "shift": True}, {}),
        *(({"options": options}, expected) for options, expected in OPTIONS),
    ],
)
def test_fields_of_both_endpoints(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    for body in (chat(**fields).body, generate(**fields).body):
        assert {k: v for k, v in body.items() if k not in ("model", "messages", "stream")} == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 3}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"options": []}, "options"),
        ({"options": {"num_predict": "10"}}, "options.num_predict"),
        ({"options": {"num_predict": True}}, "options.num_predict"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"temperature": math.nan}}, "options.temperature"),
        ({"options": {"seed": math.inf}}, "options.seed"),
        ({"options": {"num_predict": 1e19}}, "options.num_predict"),
        ({"options": {"stop": "x"}}, "options.stop"),
        ({"options": {"stop": [1]}}, "options.stop"),
        ({"format": "xml"}, "format"),
        ({"format": 1}, "format"),
        ({"format": []}, "format"),
        ({"think": "hard"}, "think"),
        ({"think": 1}, "think"),
        ({"truncate": "no"}, "truncate"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": "3"}, "top_logprobs"),
        *(
            ({"keep_alive": value}, "keep_alive")
            for value in (
                *("300", "", "m", "5", "5 m", "5m ", "five", "1d", "--5m", "1.2.3s", "٣s"),
                *(True, [], {}, math.nan),
            )
        ),
    ],
)
def test_wrong_types_are_named_by_both_endpoints(fields: dict[str, Any], param: str) -> None:
    for translate in (chat, generate):
        with pytest.raises(Refusal) as caught:
            translate(**fields)
        assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("translate", "fields", "param"),
    [
        (chat, {"messages": "hi"}, "messages"),
        (chat, {"messages": ["hi"]}, "messages[0]"),
        (chat, {"messages": [*HI, {"content": "x"}]}, "messages[1].role"),
        (chat, {"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        (chat, {"messages": [{"role": "user", "images": "x"}]}, "messages[0].images"),
        (chat, {"messages": [{"role": "user", "images": [1]}]}, "messages[0].images"),
        (chat, {"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
        (
            chat,
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].function",
        ),
        (chat, {"tools": {}}, "tools"),
        (chat, {"tools": ["x"]}, "tools[0]"),
        (generate, {"prompt": 1}, "prompt"),
        (generate, {"raw": "x"}, "raw"),
        (generate, {"raw": True, "system": "x"}, "raw"),
        (generate, {"raw": True, "template": "x"}, "raw"),
        (generate, {"raw": True, "context": [1]}, "raw"),
        (generate, {"template": "{{ .Prompt }}"}, "template"),
        (generate, {"context": [1, 2]}, "context"),
        (generate, {"raw": True, "images": ["aGk="]}, "images"),
        (generate, {"images": [""]}, "images"),
        (embed, {"input": 3}, "input"),
        (embed, {"input": ["a", 3]}, "input"),
        (embed, {"input": {}}, "input"),
        (embed, {"input": "a", "dimensions": "x"}, "dimensions"),
        (embed, {"input": "a", "dimensions": -1}, "dimensions"),
        (embed, {"input": "a", "dimensions": True}, "dimensions"),
    ],
)
def test_what_one_endpoint_refuses(
    translate: Callable[..., Translated], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Refusal) as caught:
        translate(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_raw_prompt_is_a_completion() -> None:
    asked = generate(raw=True, logprobs=True, top_logprobs=2, think=True, options={"num_predict": 3})
    assert asked.api == "completions"
    assert asked.body == {
        "model": "m",
        "prompt": "hi",
        "stream": True,
        "max_tokens": 3,
        "logprobs": 2,
        "raw": True,
    }


def test_a_suffix_is_a_completion() -> None:
    asked = generate(suffix="return x", stream=False)
    assert (asked.api, asked.stream) == ("completions", False)
    assert asked.body == {"model": "m", "prompt": "hi", "suffix": "return x", "stream": False}


@pytest.mark.parametrize(
    ("keep_alive", "load"),
    [
        *(
            (value, "load")
            for value in (None, 300, 0.5, -1, -0.1, 1e300, "5m", "-1s", "1h30m", "300ms", "1.5h")
        ),
        *((value, "load") for value in (".5s", "2us", "2µs", "2μs", "7ns", "+5m", "0h1s", "1h0s")),
        *((value, "unload") for value in (0, 0.0, "0", "+0", "-0", "0s", "-0s", "0h0.0m", ".0s")),
    ],
)
def test_an_empty_request_only_loads_or_unloads(keep_alive: Any, load: str) -> None:
    for asked in (
        chat(messages=[], keep_alive=keep_alive),
        chat_to_openai({"model": "m", "keep_alive": keep_alive}),
        generate(prompt="", keep_alive=keep_alive),
        generate_to_openai({"model": "m", "keep_alive": keep_alive}),
        embed_to_openai({"model": "m", "input": [], "keep_alive": keep_alive}),
        embed_to_openai({"model": "m", "input": "", "keep_alive": keep_alive}),
    ):
        assert asked.load == load
        assert asked.body == {"model": "m"}


def test_an_empty_request_is_checked_all_the_same() -> None:
    with pytest.raises(Refusal):
        chat(messages=[], options={"seed": "x"})


def test_an_empty_model() -> None:
    for translate, status, message in (
        (chat_to_openai, 400, "model is required"),
        (embeddings_to_openai, 400, "model is required"),
        (generate_to_openai, 404, "model '' not found"),
        (embed_to_openai, 404, "model '' not found"),
    ):
        for body in ({}, {"model": ""}, {"model": None}):
            with pytest.raises(Refusal) as caught:
                translate(body)
            assert (caught.value.status, caught.value.message) == (status, message)
    assert chat_to_openai({"name": "old"}).body["model"] == "old"


@given(st.text(alphabet="0123456789.+-nusmhµ ", max_size=10) | st.floats() | st.integers())
def test_any_keep_alive_is_a_time_or_a_400(value: Any) -> None:
    with contextlib.suppress(Refusal):
        assert chat(messages=[], keep_alive=value).load


def test_images_become_data_urls() -> None:
    png, jpeg = (
        base64.b64encode(head + b"rest").decode() for head in (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0")
    )
    expected = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{jpeg}"}},
    ]
    asked = chat(messages=[{"role": "user", "content": "what?", "images": [png, jpeg]}])
    assert asked.body["messages"][0]["content"] == expected
    assert generate(prompt="what?", images=[png, jpeg]).body["messages"][0]["content"] == expected


def test_a_conversation_with_tools() -> None:
    asked = chat(
        tools=[{"type": "function", "function": {"name": "now"}}],
        messages=[
            {"role": "System", "content": "s"},
            {"role": "user", "content": "u"},
            {
                "role": "assistant",
                "thinking": "hm",
                "tool_calls": [
                    {"function": {"name": "now", "arguments": {"zone": "UTC"}}},
                    {"function": {"name": "then", "arguments": {}}},
                    {"id": "own", "function": {"name": "now"}},
                ],
            },
            {"role": "tool", "content": "later", "tool_name": "then"},
            {"role": "tool", "content": "mine", "tool_call_id": "own"},
            {"role": "tool", "content": "noon"},
        ],
    )
    assert asked.body["tools"] == [{"type": "function", "function": {"name": "now"}}]
    system, _, assistant, *answers = asked.body["messages"]
    assert system == {"role": "system", "content": "s"}
    assert assistant["reasoning_content"] == "hm"
    assert [(call["id"], call["type"], call["function"]) for call in assistant["tool_calls"]] == [
        ("call00000", "function", {"name": "now", "arguments": '{"zone":"UTC"}'}),
        ("call00001", "function", {"name": "then", "arguments": "{}"}),
        ("own", "function", {"name": "now", "arguments": "{}"}),
    ]
    found = [(answer["content"], answer["tool_call_id"]) for answer in answers]
    assert found == [("later", "call00001"), ("mine", "own"), ("noon", "call00000")]
    assert answers[0]["name"] == "then"


def test_ids_differ_between_turns() -> None:
    turn = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    body = chat(
        messages=[turn, {"role": "tool", "content": "1"}, turn, {"role": "tool", "content": "2"}]
    ).body
    ids = [message["tool_calls"][0]["id"] for message in body["messages"][::2]]
    assert [message["tool_call_id"] for message in body["messages"][1::2]] == ids
    assert len(set(ids)) == 2


def test_embed() -> None:
    assert embed_to_openai({"model": "m", "input": "a", "options": {"temperature": 1}}) == Translated(
        {"model": "m", "input": "a", "encoding_format": "float"}, False, "embeddings", None
    )
    asked = embed_to_openai({"model": "m", "input": ["a", "b"], "dimensions": 64, "truncate": True})
    assert asked.body == {"model": "m", "input": ["a", "b"], "dimensions": 64, "encoding_format": "float"}
    assert embeddings_to_openai({"model": "m", "prompt": "a"}).body["input"] == "a"
    assert embeddings_to_openai({"model": "m"}).load == "load"


def test_what_the_ollama_client_sends_is_understood() -> None:
    def now(zone: str) -> str:
        """The time.

        Args:
          zone: a time zone
        """
        return zone

    sent = ChatRequest(
        model="m:latest",
        messages=[
            ollama.Message(role="user", content="hi", images=[ollama.Image(value=b"\x89PNG\r\n\x1a\n")])
        ],
        tools=[ollama._utils.convert_function_to_tool(now)],
        stream=False,
        format={"type": "object"},
        options=ollama.Options(num_predict=5, temperature=0.0, stop=["x"]),
        keep_alive=-1,
        think="low",
    ).model_dump(exclude_none=True)
    asked = chat_to_openai(sent)
    assert asked.stream is False
    assert (asked.body["max_tokens"], asked.body["temperature"], asked.body["stop"]) == (5, 0.0, ["x"])
    assert asked.body["reasoning_effort"] == "low"
    assert asked.body["tools"][0]["function"]["name"] == "now"
    assert asked.body["messages"][0]["content"][1]["image_url"]["url"].startswith(
        "data:image/png;base64,iVBOR"
    )

    generated = generate_to_openai(
        GenerateRequest(model="m", prompt="hi", stream=True).model_dump(exclude_none=True)
    )
    assert generated.body["messages"] == HI
    embedded = embed_to_openai(EmbedRequest(model="m", input=["a"]).model_dump(exclude_none=True))
    assert embedded.body["input"] == ["a"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "prompt",
        "input",
        "options",
        "format",
        "think",
        "tools",
        "images",
        "keep_alive",
        "raw",
        "suffix",
        "context",
    ]
)


@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_json_is_translated_or_refused(fields: dict[str, Any]) -> None:
    for translate in (chat_to_openai, generate_to_openai, embed_to_openai, embeddings_to_openai):
        try:
            asked = translate({"model": "m", **fields})
        except Refusal as refusal:
            given_status = refusal.status
        else:
            given_status = 200
            assert asked.body["model"] == "m"
        assert given_status in (200, 400)
