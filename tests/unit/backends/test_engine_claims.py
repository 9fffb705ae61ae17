"""Nothing that an engine says is finite, bounded or well formed by itself: what is taken over is."""

from __future__ import annotations

import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine_errors import from_event, from_response
from backends.engine_numbers import MAX_TOKENS, finish_reason, sound_usage, token_count
from backends.metrics import KV_USAGE, load_report
from backends.ndjson import NdjsonScanner
from backends.scanning import SseScanner
from router.core.errors import UpstreamError
from router.core.interfaces import Call
from router.core.types import Candidate

NUMBERS = (
    st.floats() | st.integers() | st.sampled_from(["+Inf", "-Inf", "NaN", "1e400", "-0", "", "x", "9" * 5000])
)
NAMES = [
    b"vllm:num_requests_running",
    b"vllm:num_requests_waiting",
    b"vllm:cache_config_info",
    KV_USAGE[0],
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "type", "code", "param", "detail", "msg", "loc", "usage", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
#: Some twenty times what each takes here. Work that grows with the square takes much longer.
LIMIT_S = 1.0


@given(st.lists(st.tuples(st.sampled_from(NAMES), NUMBERS, st.binary(max_size=20)), max_size=20))
def test_a_load_report_is_finite_whatever_the_metrics_say(lines: list[tuple[bytes, object, bytes]]) -> None:
    text = b"".join(
        b'%b{block_size="%b",num_gpu_blocks="%b"} %b\n'
        % (name, str(value).encode(), label, str(value).encode())
        for name, value, label in lines
    )
    for scrape in (text, text[::-1]):
        report = load_report(scrape)
        for figure in (report.running, report.waiting, report.kv_capacity_tokens):
            assert figure is None or 0 <= figure < 1 << 62
        assert report.kv_usage is None or 0 <= report.kv_usage <= 1


@given(JSON)
def test_counts_are_counts(value: object) -> None:
    count = token_count(value)
    assert count is None or (type(count) is int and 0 <= count <= MAX_TOKENS)
    usage = sound_usage({"prompt_tokens": value, "completion_tokens": 3, "total_tokens": value})
    assert usage is not None
    assert all(
        type(usage[name]) is int or usage[name] is None
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        if name in usage
    )
    assert finish_reason(value) is None or isinstance(value, str)


@given(JSON, st.sampled_from([400, 422, 500, 503]))
def test_any_error_body_makes_one_short_error(body: object, status: int) -> None:
    for error in (from_response(status, orjson.dumps(body)), from_event(body, started=False)):
        assert isinstance(error, UpstreamError)
        assert len(str(error)) <= 400


@pytest.mark.parametrize(
    "message",
    [
        " " * 200_000,
        "a" + " " * 200_000 + "b",
        "'msg':" * 30_000,
        "'input':" + "'msg': '" * 20_000,
        "'input':" + "'msg'" + " " * 200_000,
        "(parameter=" * 20_000,
    ],
)
def test_no_error_text_takes_long(message: str) -> None:
    body = orjson.dumps({"error": {"message": message, "param": message, "code": message}})
    began = time.thread_time()
    error = from_response(400, body)
    assert time.thread_time() - began < LIMIT_S
    assert len(str(error)) <= 400


@pytest.mark.parametrize("labels", [b"a", b'a="', b'a="\\', b"{", b"}", b" "])
def test_no_page_of_metrics_takes_long(labels: bytes) -> None:
    line = b"vllm:cache_config_info{" + labels * (4000 // len(labels)) + b"} 1\n"
    began = time.thread_time()
    load_report(line * 20)
    assert time.thread_time() - began < LIMIT_S


CALL = Call("chat", {}, Candidate("i", "m", "up"), "r")


@pytest.mark.parametrize(
    "event", [b"[],", b'"",', b'{"a":1},', b'"text":"', b'"model"   ', b'{"choices":[', b"\\"]
)
@pytest.mark.parametrize("scanner", [SseScanner("m"), NdjsonScanner(CALL, 1)])
def test_no_event_takes_long_to_refuse(scanner: SseScanner | NdjsonScanner, event: bytes) -> None:
    prefix, end = (b"data: ", b"\n\n") if isinstance(scanner, SseScanner) else (b"", b"\n")
    data = prefix + b'{"x":[' + event * (3_000_000 // len(event)) + b"1]}" + end
    began = time.thread_time()
    scanner.feed(data)
    assert time.thread_time() - began < LIMIT_S
    assert scanner.failure is not None
    scanner.failure = None


def test_an_event_that_comes_byte_by_byte_is_copied_once() -> None:
    scanner = SseScanner("m")
    scanner.feed(b"data: " + b"x" * 1_000_000)
    began = time.thread_time()
    for _ in range(20_000):
        scanner.feed(b"x")
    assert time.thread_time() - began < LIMIT_S
    assert scanner.feed(b'"}\n') is None
    scanner.feed(b"\n")
    assert scanner.failure is not None


def test_events_without_a_token_end_an_answer() -> None:
    scanner = SseScanner("m")
    event = b'data: {"choices":[{"delta":{"role":"assistant"},"x":"' + b"y" * 10_000 + b'"}]}\n\n'
    for _ in range(500):
        scanner.feed(event)
    assert "before its first token" in str(scanner.failure)
