"""What the load generator asks and what the canned engine answers."""

from __future__ import annotations

import orjson
import pytest

from backends.sse_events import END
from benchmarks.overhead import wire


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_says_what_it_wants(stream: bool) -> None:
    head, _, body = wire.request(8000, stream=stream, chunks=7, pace_us=2500).partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert wire.wanted(body) == (stream, 7, 2500, False)


def test_wishes_are_read_however_the_json_was_written_again() -> None:
    body = b'{"max_completion_tokens": 3, "stream": true, "stream_options": {"include_usage": true}}'
    assert wire.wanted(body) == (True, 3, 0, True)


def test_every_chunk_has_the_same_length_and_carries_its_stamp() -> None:
    early, late = wire.content_chunk(5), wire.content_chunk(123_456_789_012_345)
    assert len(early) == len(late)
    size, _, rest = late.partition(b"\r\n")
    event = rest[: int(size, 16)]
    assert rest[len(event) :] == b"\r\n"
    assert [int(stamp) for stamp in wire.STAMP.findall(event)] == [123_456_789_012_345]
    assert orjson.loads(event.removeprefix(b"data: "))["choices"][0]["finish_reason"] is None
    assert event == wire.content_event(123_456_789_012_345)


def test_the_end_of_a_stream_has_usage_only_if_asked() -> None:
    assert b'"completion_tokens":9' in wire.closing(9, True)
    assert b"usage" not in wire.closing(9, False)
    assert wire.closing(9, False).endswith(wire.chunk(END) + wire.LAST_CHUNK)
