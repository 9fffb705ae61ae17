"""Ollama's answers from OpenAI's."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama import ChatResponse, EmbedResponse, GenerateResponse
from ollama._types import EmbeddingsResponse

from backends.scanning import Assembler
from router.core.errors import Refusal, UpstreamError
from router.core.types import Outcome
from router.gateway.codecs.ollama.answer import (
    Endpoint,
    at_length_1,
    embed_from_openai,
    embeddings_from_openai,
    rfc3339,
)
from router.gateway.codecs.ollama.codec import OllamaCodec
from tests.unit.gateway.chunks import HEAD, chunk, sse, text_chunk

AT_NS = 1_700_000_000_123_456_789
AT = "2023-11-14T22:13:20.123456789Z"
USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
HEADWAY = {"request_id": "r", "e2e_ms": 2000.0, "ttft_ms": 750.0, "queue_wait_ms": 250.0}
METRICS = {
    "total_duration": 2_000_000_000,
    "load_duration": 250_000_000,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 500_000_000,
    "eval_count": 5,
    "eval_duration": 1_250_000_000,
}


def non_streaming(
    endpoint: Endpoint, model: str, answer: dict[str, Any], headway: dict[str, Any] | None
) -> Any:
    return json.loads(OllamaCodec(endpoint, model).non_streaming(answer, headway))


def chat_stream(name: str = "m:latest") -> OllamaCodec:
    return OllamaCodec("chat", name, clock=lambda: AT_NS)


def generate_stream() -> OllamaCodec:
    return OllamaCodec("generate", "m", clock=lambda: AT_NS)


def parsed(
    ndjson: bytes, kind: type[ChatResponse] | type[GenerateResponse] = ChatResponse
) -> list[dict[str, Any]]:
    """The lines as objects, each accepted by the client's own type."""
    assert ndjson == b"" or ndjson.endswith(b"\n")
    lines = [json.loads(line) for line in ndjson.decode().splitlines()]  # as the client splits them
    for line in lines:
        kind.model_validate(line)
    return lines


def test_rfc3339() -> None:
    assert rfc3339(AT_NS) == AT
    assert rfc3339(0) == "1970-01-01T00:00:00.000000000Z"


def test_characters_that_end_a_line_for_the_client() -> None:
    said = "a\u2028b\u2029c\u0085d"
    call = {"index": 0, "function": {"name": "f", "arguments": f'{{"x": "{said}"}}'}}
    stream = chat_stream()
    lines = stream.events(
        chunk({"content": said}) + chunk({"content": said}) + chunk({"tool_calls": [call]}, "stop")
    )
    *pieces, called = parsed(lines)
    assert [piece["message"]["content"] for piece in pieces] == [said, said]
    assert called["message"]["tool_calls"][0]["function"]["arguments"] == {"x": said}
    assert parsed(chat_stream().finish(None, None, {"note": said}))[0]["headway"] == {"note": said}


def test_a_chat_in_full() -> None:
    stream = chat_stream()
    said = b"".join(
        stream.events(event)
        for event in (
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "Hé"}) + chunk({"content": 'l"lo'}),
            chunk({"content": "!"}),
            chunk({}, "stop"),
        )
    )
    *pieces, last = parsed(said + stream.finish(USAGE, None, HEADWAY))
    assert pieces == [
        {
            "model": "m:latest",
            "created_at": AT,
            "message": {"role": "assistant", "content": text},
            "done": False,
        }
        for text in ("Hé", 'l"lo', "!")
    ]
    assert last == {
        "model": "m:latest",
        "created_at": AT,
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        **METRICS,
        "headway": HEADWAY,
    }


@pytest.mark.parametrize("make", [chunk, None])
def test_generate_from_chat_chunks_and_from_completions(make: Any) -> None:
    stream = generate_stream()
    events = [chunk({"content": t}) if make else text_chunk(t) for t in ("a", "b", '"', "c")]
    *pieces, last = parsed(
        stream.events(b"".join(events)) + stream.finish(USAGE, "length", HEADWAY), GenerateResponse
    )
    assert pieces == [
        {"model": "m", "created_at": AT, "response": text, "done": False} for text in ("a", "b", '"', "c")
    ]
    assert last == {
        "model": "m",
        "created_at": AT,
        "response": "",
        "done": True,
        "done_reason": "length",
        **METRICS,
        "headway": HEADWAY,
    }


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thinking(field: str) -> None:
    for stream, kind in ((chat_stream(), ChatResponse), (generate_stream(), GenerateResponse)):
        lines = parsed(
            stream.events(
                b"".join(chunk({field: t}) for t in ("let", " me", ' "see"')) + chunk({"content": "4"})
            ),
            kind,
        )
        said = [line.get("message", line) for line in lines]
        assert [one.get("thinking") for one in said] == ["let", " me", ' "see"', None]
        assert [one.get("content", one.get("response")) for one in said] == ["", "", "", "4"]


def test_thinking_under_both_names_is_told_once() -> None:
    lines = parsed(chat_stream().events(chunk({"reasoning": "a", "reasoning_content": "a"})))
    assert [line["message"]["thinking"] for line in lines] == ["a"]


def test_a_tool_call_comes_when_it_is_complete() -> None:
    stream = chat_stream()
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert stream.events(chunk({"role": "assistant", "tool_calls": [call]})) == b""
    for piece in ('{"a', '": [1, {"b": null}]}'):
        assert stream.events(chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})) == b""
    (line,) = parsed(stream.events(chunk({}, "tool_calls")))
    assert line["message"] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "function": {"index": 0, "name": "f", "arguments": {"a": [1, {"b": None}]}}}
        ],
    }
    (last,) = parsed(stream.finish(USAGE, "tool_calls", HEADWAY))
    assert last["done_reason"] == "stop"
    assert "tool_calls" not in last["message"]


def test_tool_calls_without_a_finish_come_before_the_last_line() -> None:
    stream = chat_stream()
    calls = [
        {"index": 0, "function": {"name": "f", "arguments": "{}"}},
        {"index": 1, "function": {"name": "g", "arguments": ""}},
    ]
    assert stream.events(chunk({"content": "so", "tool_calls": calls})) != b""
    first, last = parsed(stream.finish(None, None, None))
    assert [call["function"]["name"] for call in first["message"]["tool_calls"]] == ["f", "g"]
    assert first["message"]["tool_calls"][1]["function"]["arguments"] == {}
    assert last == {
        "model": "m:latest",
        "created_at": AT,
        "message": {"role": "assistant", "content": ""},
        "done": True,
    }


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", "3", "nope"])
def test_half_a_tool_call_is_left_out(arguments: str) -> None:
    stream = chat_stream()
    call = {"index": 0, "id": "1", "function": {"name": "f", "arguments": arguments}}
    said = stream.events(chunk({"tool_calls": [call]}) + chunk({}, "length"))
    (last,) = parsed(said + stream.finish(USAGE, None, HEADWAY))
    assert last["done_reason"] == "length"


def test_logprobs() -> None:
    item = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.5}]}
    lines = parsed(
        chat_stream().events(chunk({"content": "a"}, logprobs={"content": [item], "refusal": None}))
    )
    assert lines[0]["logprobs"] == [item]
    legacy = {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.5],
        "top_logprobs": [None, {"b": -1.5, "c": -2.0}],
    }
    (line,) = parsed(generate_stream().events(text_chunk("ab", logprobs=legacy)), GenerateResponse)
    tops = [{"token": "b", "logprob": -1.5}, {"token": "c", "logprob": -2.0}]
    assert line["logprobs"] == [{"token": "b", "logprob": -1.5, "top_logprobs": tops}]


def test_what_says_nothing_gives_no_line() -> None:
    silent = [
        b": ping\n\n",
        b"data: [DONE]\n\n",
        sse({**HEAD, "choices": [], "usage": USAGE}),
        chunk({"role": "assistant"}),
        chunk({"content": None}),
        sse({**HEAD, "choices": [{"index": 1, "delta": {"content": "other"}}]}),
    ]
    assert chat_stream().events(b"".join(silent)) == b""
    assert chat_stream().events(b"") == b""


def test_a_refusal_is_content() -> None:
    (line,) = parsed(chat_stream().events(chunk({"refusal": "no"})))
    assert line["message"]["content"] == "no"


def test_content_in_parts_is_text_and_thinking() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
        {"type": "text", "text": "Hi"},
    ]
    (line,) = parsed(chat_stream().events(chunk({"content": parts})))
    assert line["message"] == {"role": "assistant", "content": "Hi", "thinking": "Hm"}
    answer = {"choices": [{"message": {"role": "assistant", "content": parts}}]}
    assert non_streaming("chat", "m", answer, None)["message"] == line["message"]


def test_arguments_of_a_call_may_be_an_object() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    answer = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}
    (made,) = non_streaming("chat", "m", answer, None)["message"]["tool_calls"]
    assert made["function"]["arguments"] == {"x": 1}


def test_line_ends_of_either_kind() -> None:
    event = chunk({"content": "a"})
    said = chat_stream().events(event.replace(b"\n", b"\r\n") + event)
    assert [line["message"]["content"] for line in parsed(said)] == ["a", "a"]


@pytest.mark.parametrize(
    "event",
    [b"data: {x\n\n", b"data: []\n\n", sse({"error": {"message": "boom"}}), chunk({"tool_calls": ["x"]})],
)
def test_what_is_no_event_of_ours_is_an_upstream_error(event: bytes) -> None:
    stream = chat_stream()
    stream.events(chunk({"content": "a"}))
    with pytest.raises(UpstreamError):
        stream.events(event)


def test_the_error_line() -> None:
    refusal = Refusal(502, "upstream_error", 'the "engine" left', Outcome.BACKEND_ERROR)
    assert chat_stream().stream_error(refusal) == b'{"error":"the \\"engine\\" left"}\n'


def test_the_clock_is_read_once_for_each_read_and_moves_on() -> None:
    times = iter([AT_NS, AT_NS + 1, AT_NS + 2_000_000_000])
    stream = OllamaCodec("chat", "m", clock=lambda: next(times))
    event = chunk({"content": "a"})
    stamps = [line["created_at"] for _ in range(3) for line in parsed(stream.events(event + event))]
    assert stamps == [
        AT,
        AT,
        AT[:-3] + "90Z",
        AT[:-3] + "90Z",
        "2023-11-14T22:13:22.123456789Z",
        "2023-11-14T22:13:22.123456789Z",
    ]


def test_a_models_name_is_escaped() -> None:
    (line,) = parsed(chat_stream('a"b\\ü').events(chunk({"content": "x"})))
    assert line["model"] == 'a"b\\ü'


def test_unknown_and_zero_metrics_are_left_out() -> None:
    (last,) = parsed(chat_stream().finish({"prompt_tokens": 0, "completion_tokens": None}, "stop", None))
    assert set(last) == {"model", "created_at", "message", "done", "done_reason"}


TEXT = st.text(max_size=6) | st.sampled_from(['"', "\\", '\\"}', "a", "\n\n", '","thinking":"'])
DELTAS = st.one_of(
    *[st.builds(lambda text, name=name: {name: text}, TEXT) for name in ("content", "content", "reasoning")],
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXT),
    st.builds(lambda a, b: {"content": a, "reasoning_content": b}, TEXT, TEXT),
    st.builds(
        lambda text: {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": text}}]}, TEXT
    ),
)


@given(st.lists(DELTAS, max_size=15), st.lists(st.integers(0, 15), max_size=5))
def test_lines_do_not_depend_on_how_events_arrive_and_agree_with_the_whole_answer(
    deltas: list[dict[str, Any]], cuts: list[int]
) -> None:
    events = [chunk(delta) for delta in deltas] + [chunk({}, "stop")]
    at_once = chat_stream()
    lines = at_once.events(b"".join(events))
    split = chat_stream()
    edges = [0, *sorted(min(at, len(events)) for at in cuts), len(events)]
    assert b"".join(split.events(b"".join(events[a:b])) for a, b in itertools.pairwise(edges)) == lines

    assembler = Assembler("chat")
    assembler.feed(b"".join(events))
    answer = ChatResponse.model_validate(non_streaming("chat", "m", assembler.result(), None))
    messages = [line["message"] for line in parsed(lines)]
    assert "".join(one["content"] for one in messages) == answer.message.content
    streamed = [call for one in messages for call in one.get("tool_calls", [])]
    assert len(streamed) == len(answer.message.tool_calls or [])
    if not any("reasoning_content" in delta for delta in deltas):
        assert "".join(one.get("thinking", "") for one in messages) == (answer.message.thinking or "")


# --- whole answers -----------------------------------------------------------------------------------
def test_a_whole_chat() -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "2", "type": "function", "function": {"name": "f", "arguments": '{"x": '}},
    ]
    message = {"role": "assistant", "content": "hi", "reasoning": "hm", "tool_calls": calls}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    found = non_streaming("chat", "m:latest", answer, HEADWAY)
    assert found.pop("created_at").endswith("Z")
    assert found == {
        "model": "m:latest",
        "message": {
            "role": "assistant",
            "content": "hi",
            "thinking": "hm",
            "tool_calls": [{"id": "1", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}}],
        },
        "done": True,
        "done_reason": "stop",
        **METRICS,
        "headway": HEADWAY,
    }
    assert ChatResponse.model_validate(found).message.tool_calls[0].function.arguments == {"x": 1}


def test_a_whole_generation_from_either_api() -> None:
    chat = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": USAGE}
    text = {"choices": [{"text": "hi", "finish_reason": "stop"}], "usage": USAGE}
    for answer in (chat, text):
        found = GenerateResponse.model_validate(non_streaming("generate", "m", answer, HEADWAY))
        assert (found.response, found.done, found.done_reason, found.eval_count) == ("hi", True, "stop", 5)
    empty = {"choices": [{"message": {"content": None, "tool_calls": None}, "finish_reason": "stop"}]}
    assert non_streaming("chat", "m", empty, None)["message"] == {"role": "assistant", "content": ""}
    assert non_streaming("generate", "m", {"choices": []}, None)["response"] == ""


def test_a_whole_answers_logprobs() -> None:
    items = [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    answer = {
        "choices": [{"message": {"content": "a"}, "logprobs": {"content": items}, "finish_reason": "stop"}]
    }
    found = ChatResponse.model_validate(non_streaming("chat", "m", answer, None))
    assert [one.token for one in found.logprobs] == ["a"]


@pytest.mark.parametrize("reason", ["load", "unload"])
def test_loading_only(reason: str) -> None:
    chat = json.loads(OllamaCodec("chat", "m").loaded(reason))
    assert chat == {
        "model": "m",
        "created_at": chat["created_at"],
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": reason,
    }
    assert ChatResponse.model_validate(chat).done_reason == reason
    assert (
        GenerateResponse.model_validate(json.loads(OllamaCodec("generate", "m").loaded(reason))).response
        == ""
    )


# --- embeddings --------------------------------------------------------------------------------------
async def test_embeddings_come_in_order_and_at_length_1() -> None:
    answer = {
        "data": [{"index": 1, "embedding": [0.0, 5.0]}, {"index": 0, "embedding": [3.0, 4.0]}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert EmbeddingsResponse.model_validate(embeddings_from_openai(answer)).embedding == [3.0, 4.0]
    await at_length_1(answer)
    headway = {"request_id": "r", "e2e_ms": 2000.0, "ttft_ms": None, "queue_wait_ms": 250.0}
    found = embed_from_openai(answer, "m", headway)
    assert found == {
        "model": "m",
        "embeddings": [[0.6, 0.8], [0.0, 1.0]],
        "total_duration": 2_000_000_000,
        "prompt_eval_count": 7,
        "headway": headway,
    }
    assert EmbedResponse.model_validate(found).prompt_eval_count == 7


def test_no_embeddings() -> None:
    assert EmbedResponse.model_validate(embed_from_openai({}, "m", None)).embeddings == []
    assert embeddings_from_openai({}) == {"embedding": []}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_any_embedding_has_length_1_or_is_zero(vector: list[float]) -> None:
    answer = {"data": [{"index": 0, "embedding": vector}]}
    asyncio.run(at_length_1(answer))
    (found,) = embed_from_openai(answer, "m", None)["embeddings"]
    assert (
        math.hypot(*found) == pytest.approx(1, abs=2e-4)
        or math.hypot(*vector) == 0
        or max(map(abs, vector)) < 1e-300
    )
