"""However much an engine writes, an answer that is put together, or said once more at its end, has bounds."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import Any

import pytest

from backends.scanning import Assembler, SseScanner
from router.core.errors import UpstreamError
from router.gateway.codecs.ollama.codec import OllamaCodec
from router.gateway.codecs.responses import codec as responses_codec
from router.gateway.codecs.responses.codec import ResponsesCodec
from router.gateway.codecs.responses.request import responses_to_chat
from tests.pace import lines
from tests.unit.gateway.chunks import call, chunk

ASKED = responses_to_chat({"model": "m", "input": "x"})
FLOODS = {
    "text": chunk({"content": "x" * 60_000}),
    "escapes": chunk({"content": '\x01"' * 10_000}),
    "two kinds of text": chunk({"content": "x"}) * 100 + chunk({"reasoning_content": "x"}) * 100,
    "logprobs": chunk({"content": "x"}, logprobs={"content": [{"token": "t", "logprob": -1.0}] * 1000}),
    "tool calls": b"".join(chunk(call(index, "x" * 300, name="f")) for index in range(100)),
}


@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.parametrize("into", ["whole", "response"])
def test_an_answer_without_end_is_ended(kind: str, into: str) -> None:
    feed = Assembler("chat").feed if into == "whole" else ResponsesCodec(ASKED, "r").events
    with pytest.raises(UpstreamError):
        deque(map(feed, repeat(FLOODS[kind])), maxlen=0)


@pytest.mark.parametrize("make", [lambda: ResponsesCodec(ASKED, "r"), lambda: OllamaCodec("chat", "m")])
def test_tool_calls_of_an_answer_have_a_bound_in_all(make: Any) -> None:
    stream = make()
    pieces = (chunk(call(index, "x" * 100_000, name="f")) for index in range(200))
    with pytest.raises(UpstreamError):
        deque(map(stream.events, pieces), maxlen=0)


def test_an_answer_of_too_many_parts_is_ended_early() -> None:
    """Each switch between text and reasoning opens an item of its own."""
    stream = ResponsesCodec(ASKED, "r")
    pair = chunk({"content": "x"}) + chunk({"reasoning_content": "x"})
    written: list[int] = []
    with pytest.raises(UpstreamError):
        written.extend(map(len, map(stream.events, repeat(pair, 2000))))
    assert 100_000 < sum(written) < 4_000_000


def test_text_inside_a_call_counts_once() -> None:
    stream = ResponsesCodec(ASKED, "r")
    text = chunk({"content": "x" * (responses_codec.MAX_TEXT_BYTES * 2 // 3)})
    stream.events(chunk(call(0, '{"a"', name="f")) + text)
    assert b"xxx" in stream.finish(None, "stop", {})


def test_a_call_that_is_not_complete_is_not_parsed_with_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0

    def counted(json: str) -> bool:
        nonlocal parsed
        parsed += 1
        return False

    monkeypatch.setattr(responses_codec, "_is_object", counted)
    stream = ResponsesCodec(ASKED, "r")
    stream.events(chunk(call(0, '{"a":{}', name="f")) + chunk(call(1, "{", name="f")))
    for _ in range(1000):
        stream.events(chunk(call(0, ',"b":{}')) + chunk({"content": "x"}))
    assert parsed < 50


def test_blank_lines_cost_little() -> None:
    scanner = SseScanner("m")
    scanner.feed(chunk({"content": "x"}))
    with lines() as counted:
        scanner.feed(b"\n" * 256_000)
    assert counted.run < 6 * 256_000
