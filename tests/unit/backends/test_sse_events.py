"""What one server-sent event says."""

from __future__ import annotations

import pytest

from backends.sse_events import DONE, END, data_of, event, object_of, objects
from router.core.errors import AnswerTooLarge, UpstreamError


@pytest.mark.parametrize(
    ("one", "data"),
    [
        (event(b'{"a":1}'), b'{"a":1}'),
        (b'data: {"a":1}', b'{"a":1}'),
        (b'data:{"a":1}\n', b'{"a":1}'),
        (b'event: x\nid: 3\ndata: {"a":1}\n\n', b'{"a":1}'),
        (b'data: {"a":\ndata: 1}\n\n', b'{"a":\n1}'),
        (b'data: {"a":1}\n: so long\n\n', b'{"a":1}'),
        (END, DONE),
        (b"data: [DONE] ", DONE),
        (b": still here\n\n", None),
        (b"\n\n", None),
        (b"", None),
        (b"error: {}\n\n", b'{"error":{}}'),
        (b'error: {"error":{}}\n\n', b'{"error":{}}'),
        (b"error: no room\n\n", b'{"error":"no room"}'),
    ],
)
def test_the_data_of_an_event(one: bytes, data: bytes | None) -> None:
    assert data_of(one) == data


def test_the_objects_of_a_stream() -> None:
    assert list(objects(event(b'{"a":1}') + b": x\n\n" + event(b'{"b":2}') + END)) == [{"a": 1}, {"b": 2}]
    with pytest.raises(UpstreamError):
        list(objects(event(b"[1]")))


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"{", UpstreamError), (b"[]", UpstreamError), (b"[" + b"[]," * 50_000 + b"0]", AnswerTooLarge)],
)
def test_data_that_are_no_object(data: bytes, error: type[UpstreamError]) -> None:
    with pytest.raises(error):
        object_of(data)
