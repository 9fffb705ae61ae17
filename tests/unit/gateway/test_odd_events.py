"""Events of an engine in which any part is of another type: an answer, or an UpstreamError while it is read; what ends
an answer never fails."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from backends.scanning import Assembler, SseScanner
from router.core.errors import UpstreamError
from router.gateway.codecs.codec import ApiCodec
from router.gateway.codecs.ollama.codec import OllamaCodec
from router.gateway.codecs.openai import OpenAICodec
from router.gateway.codecs.responses.codec import ResponsesCodec
from router.gateway.codecs.responses.request import responses_to_chat
from tests.integration.stalls.test_odd_bodies import changed

ODD = [
    "null", "true", "-1", "1e308", '"x"', '""', "[]", "[1]", '["x"]', "[{}]", "{}", '{"a":1}',
    '{"content":[1]}',
]  # fmt: skip
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHUNK = {
    "id": "i",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "up",
    "choices": [
        {
            "index": 0,
            "delta": {
                "role": "assistant",
                "content": "x",
                "reasoning": "r",
                "tool_calls": [CALL],
                "refusal": None,
            },
            "logprobs": {
                "content": [
                    {
                        "token": "x",
                        "logprob": -1.0,
                        "bytes": [120],
                        "top_logprobs": [{"token": "x", "logprob": -1}],
                    }
                ]
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
    },
}
TEXT = {
    "id": "i",
    "choices": [
        {
            "index": 0,
            "text": "x",
            "finish_reason": None,
            "logprobs": {"tokens": ["x"], "token_logprobs": [-1], "top_logprobs": [{"x": -1}]},
        }
    ],
}
HEADWAY: dict[str, Any] = {"e2e_ms": 1.0, "ttft_ms": 0.5, "queue_wait_ms": 0.1, "model": "m"}
#: What an attempt makes an UpstreamError of while it reads (`backends.stream`).
READING = (UpstreamError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def events(chunk: dict[str, Any]) -> list[bytes]:
    texts = [text for other in changed(chunk) if '"@here@":' not in (text := json.dumps(other))]
    return [b"data: %b\n\n" % text.replace('"@here@"', odd).encode() for text in texts for odd in ODD]


def codecs() -> dict[str, ApiCodec]:
    response = responses_to_chat({"model": "m", "input": "x"})
    return {
        "openai": OpenAICodec(True),
        "ollama chat": OllamaCodec("chat", "m"),
        "ollama generate": OllamaCodec("generate", "m"),
        "responses": ResponsesCodec(response, "req_1"),
    }


@pytest.mark.parametrize("api", ["openai", "ollama chat", "ollama generate", "responses"])
def test_any_event_is_passed_on_or_fails_while_it_is_read(api: str) -> None:
    chunk = TEXT if api == "ollama generate" else CHUNK
    good = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    for event in events(chunk):
        codec = codecs()[api]
        scanner = SseScanner("m")
        usage, reason = None, None
        try:
            begun = False
            for data in (good, event, good, b"data: [DONE]\n\n"):
                batch = scanner.feed(data)
                if batch is None:
                    continue
                usage, reason = batch.usage or usage, batch.finish_reason or reason
                codec.events(batch.data) if begun else codec.first(batch.data)
                begun = True
        except READING:
            continue
        assert isinstance(codec.finish(usage, reason, HEADWAY), bytes), event


@pytest.mark.parametrize("api", ["openai", "ollama chat", "ollama generate", "responses"])
def test_any_event_makes_a_whole_answer_or_fails_while_it_is_read(api: str) -> None:
    chunk = TEXT if api == "ollama generate" else CHUNK
    good = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    for event in events(chunk):
        scanner, assembler = SseScanner("m"), Assembler("completions" if chunk is TEXT else "chat")
        usage = None
        try:
            for data in (good, event, good, b"data: [DONE]\n\n"):
                batch = scanner.feed(data)
                if batch is not None:
                    usage = batch.usage or usage
                    assembler.feed(batch.data)
            answer = assembler.result()
        except UpstreamError:
            continue
        answer["usage"] = usage or {"prompt_tokens": 1, "completion_tokens": 1}
        assert json.loads(codecs()[api].non_streaming(answer, HEADWAY)), event


@pytest.mark.parametrize("api", ["openai", "ollama chat", "ollama generate", "responses"])
def test_a_second_attempt_begins_anew(api: str) -> None:
    """An attempt may fail on its first events, of which nothing was sent."""
    good = b"data: " + json.dumps(TEXT if api == "ollama generate" else CHUNK).encode() + b"\n\n"
    anew, again = codecs()[api], codecs()[api]
    with suppress(UpstreamError):
        again.first(good + b"data: {\n\n")
    for codec in (anew, again):
        codec._clock = lambda: 0  # type: ignore[attr-defined]
    assert again.first(good) == anew.first(good)
    assert again.finish(None, "stop", HEADWAY) == anew.finish(None, "stop", HEADWAY)
