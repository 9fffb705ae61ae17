"""OpenAI-shaped requests as Ollama's, and its answers as OpenAI's."""

from __future__ import annotations

from array import array
from base64 import b64decode
from typing import Any

import pytest

from backends.ollama_bodies import MAX_ARGUMENTS_CHARS, embeddings_answer, native_body, non_streaming_answer
from router.core.errors import UpstreamRejected
from router.core.interfaces import Call
from router.core.types import Candidate

CANDIDATE = Candidate("i", "fleet", "llama3:8b")
HI = [{"role": "user", "content": "hi"}]


def call(api: str = "chat", bound: int | None = None, **fields: Any) -> Call:
    return Call(api, fields, CANDIDATE, "r1", bound)


def test_the_plainest_chat() -> None:
    assert native_body(call(messages=HI), None) == {
        "model": "llama3:8b",
        "messages": HI,
        "stream": True,
        "truncate": False,
        "shift": False,
        "options": {},
    }


def test_options() -> None:
    body = native_body(
        call(
            bound=20,
            messages=HI,
            max_tokens=50,
            temperature=0,
            top_p=0.5,
            seed=3,
            stop="x",
            presence_penalty=0.1,
            frequency_penalty=None,
            repetition_penalty=1.1,
            num_ctx=7,
            vllm_xargs={"emulate_output_tokens": 9, "other": 1},
        ),
        4096,
        "5m",
    )
    assert body["options"] == {
        "temperature": 0,
        "top_p": 0.5,
        "seed": 3,
        "stop": ["x"],
        "presence_penalty": 0.1,
        "repeat_penalty": 1.1,
        "num_predict": 20,
        "num_ctx": 4096,
        "emulate_output_tokens": 9,
    }
    assert body["keep_alive"] == "5m"


def test_a_conversation_with_tools_and_images() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "text", "text": "is it"},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [
                {"id": "c9", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c9", "content": "42"},
    ]
    body = native_body(call(messages=messages, tools=[{"type": "function"}]), None)
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what\nis it", "images": ["AAAA"]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"id": "c9", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c9", "tool_name": "f"},
    ]
    assert body["tools"] == [{"type": "function"}]
    assert "tools" not in native_body(call(messages=HI, tools=[1], tool_choice="none"), None)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json"),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
            {"type": "object"},
        ),
    ],
)
def test_formats(wanted: object, expected: object) -> None:
    assert native_body(call(messages=HI, response_format=wanted), None).get("format") == expected


def test_reasoning_effort_and_logprobs() -> None:
    body = native_body(call(messages=HI, reasoning_effort="none", logprobs=True, top_logprobs=2), None)
    assert (body["think"], body["logprobs"], body["top_logprobs"]) == (False, True, 2)
    assert "logprobs" not in native_body(call(messages=HI, logprobs=False), None)
    body = native_body(call("completions", prompt="x", logprobs=0), None)  # of the generated tokens alone
    assert (body["logprobs"], body["top_logprobs"]) == (True, 0)
    assert native_body(call(messages=HI, reasoning_effort="high"), None)["think"] == "high"
    for think in (True, False):
        switches = {"enable_thinking": think, "thinking": think}
        assert native_body(call(messages=HI, chat_template_kwargs=switches), None)["think"] is think
    assert "think" not in native_body(call(messages=HI, chat_template_kwargs="on"), None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": HI, "n": 2}, "n"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
                ]
            },
            "messages",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
                ]
            },
            "messages",
        ),
    ],
)
def test_what_ollama_cannot_do_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UpstreamRejected) as refused:
        native_body(call(**fields), None)
    assert refused.value.param == param


@pytest.mark.parametrize("calls", [1, 3000])
def test_arguments_of_tool_calls_are_parsed_up_to_a_bound(calls: int) -> None:
    arguments = '{"a":[' + "[]," * (MAX_ARGUMENTS_CHARS // 3 // calls) + "1]}"
    asked = [{"function": {"name": "f", "arguments": arguments}}] * calls
    with pytest.raises(UpstreamRejected) as refused:
        native_body(call(messages=[{"role": "assistant", "tool_calls": asked}]), None)
    assert refused.value.param == "messages"
    assert "too long" in str(refused.value)


def test_completions() -> None:
    body = native_body(call("completions", prompt=["once"], suffix="end", logprobs=3), 128)
    assert (body["prompt"], body["suffix"], body["top_logprobs"]) == ("once", "end", 3)
    for prompt in (["a", "b"], [1, 2], None):
        with pytest.raises(UpstreamRejected):
            native_body(call("completions", prompt=prompt), None)


def test_embeddings() -> None:
    asked = call("embeddings", input=["a", "b"], dimensions=2, encoding_format="base64")
    assert native_body(asked, 64) == {
        "model": "llama3:8b",
        "input": ["a", "b"],
        "truncate": False,
        "dimensions": 2,
        "options": {"num_ctx": 64},
    }
    answer = {"embeddings": [[0.5, 1.0], [0.0, -1.0]], "prompt_eval_count": 2}
    packed = embeddings_answer(answer, asked)
    vectors = [array("f", b64decode(item["embedding"])).tolist() for item in packed["data"]]
    assert vectors == answer["embeddings"]
    plain = embeddings_answer(answer, call("embeddings", input="a"))
    assert [item["embedding"] for item in plain["data"]] == answer["embeddings"]
    assert plain["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    with pytest.raises(UpstreamRejected):
        native_body(call("embeddings", input=[[1, 2]]), None)


def test_a_whole_answer() -> None:
    message = {
        "role": "assistant",
        "content": "",
        "thinking": "hm",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    }
    answer = non_streaming_answer(
        {"message": message, "done_reason": "stop", "eval_count": 3}, call(messages=HI), 1
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning"] == "hm"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert answer["usage"] == {"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 3}
