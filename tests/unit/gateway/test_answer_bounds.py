"""However much an engine writes, an answer that is put together, or said once more at its end, has bounds."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from time import thread_time
from typing import Any

import orjson
import pytest

from backends.scanning import Assembler, SseScanner
from router.core.errors import UpstreamError
from router.gateway.codecs.ollama.stream import NdjsonStream
from router.gateway.codecs.responses import stream as responses_stream
from router.gateway.codecs.responses.stream import ResponsesStream
from tests.pace import cpu_limit_s

LIMIT_S = 0.05


def event(delta: dict[str, Any], **members: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **members}
    return b"data: " + orjson.dumps({"id": "x", "model": "m", "choices": [choice]}) + b"\n\n"


def call(index: int, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"name": "f", "arguments": arguments}}]}


FLOODS = {
    "text": event({"content": "x" * 60_000}),
    "escapes": event({"content": '\x01"' * 10_000}),
    "two kinds of text": event({"content": "x"}) * 100 + event({"reasoning_content": "x"}) * 100,
    "logprobs": event({"content": "x"}, logprobs={"content": [{"token": "t", "logprob": -1.0}] * 1000}),
    "tool calls": b"".join(event(call(index, "x" * 300)) for index in range(100)),
}


@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.parametrize("into", ["whole", "response"])
def test_an_answer_without_end_is_ended(kind: str, into: str) -> None:
    feed = Assembler("chat").feed if into == "whole" else ResponsesStream("r", "m", {}).feed
    with pytest.raises(UpstreamError):
        deque(map(feed, repeat(FLOODS[kind])), maxlen=0)


@pytest.mark.parametrize("make", [lambda: ResponsesStream("r", "m", {}), lambda: NdjsonStream("chat", "m")])
def test_tool_calls_of_an_answer_have_a_bound_in_all(make: Any) -> None:
    stream = make()
    pieces = (event(call(index, "x" * 100_000)) for index in range(200))
    with pytest.raises(UpstreamError):
        deque(map(stream.feed, pieces), maxlen=0)


def test_an_answer_of_too_many_parts_is_ended_early() -> None:
    """Each switch between text and reasoning opens an item of its own."""
    stream = ResponsesStream("r", "m", {})
    pair = event({"content": "x"}) + event({"reasoning_content": "x"})
    written: list[int] = []
    with pytest.raises(UpstreamError):
        written.extend(map(len, map(stream.feed, repeat(pair, 2000))))
    assert 100_000 < sum(written) < 4_000_000


def test_a_call_that_is_not_complete_is_not_parsed_with_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0

    def counted(call: Any) -> bool:
        nonlocal parsed
        parsed += 1
        return False

    monkeypatch.setattr(responses_stream, "_is_complete", counted)
    stream = ResponsesStream("r", "m", {})
    stream.feed(event(call(0, '{"a":{}')) + event(call(1, "{")))
    for _ in range(1000):
        stream.feed(event(call(0, ',"b":{}')) + event({"content": "x"}))
    assert parsed < 50


def test_blank_lines_cost_little() -> None:
    scanner = SseScanner("m")
    scanner.feed(event({"content": "x"}))
    least_s = 1.0
    for _ in range(3):
        before = thread_time()
        scanner.feed(b"\n" * 256_000)
        least_s = min(least_s, thread_time() - before)
    assert least_s < cpu_limit_s(LIMIT_S)
