"""The measuring side of one streamed answer: bytes and times in, token times out. No I/O, no clock.

The client shares its cores with what it measures, so an event is not parsed where counting will do: events
are read one by one until the first token, then only counted, and the end of the stream is parsed once.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from backends.sse_events import DONE, carries_token, data_of, object_of
from benchmarks.measures import Summary
from router.core.errors import UpstreamError

#: How an event with a JSON object begins. A quote inside a JSON string is escaped, so this cannot occur in
#: the text of an answer.
_EVENT = b'data: {"'
_OVERLAP = len(_EVENT) - 1
_TAIL_BYTES = 1 << 14
#: Usage, the reason to finish and errors stand in the last few events.
_LAST_EVENTS = 8


class StreamMeter:
    """Feed it what arrives, as it arrives; then `finish`. Times are seconds on any one clock. `first_at` is when the first
    token came, `last_at` the last event, `events` how many from the first token on. Events that come bunched have gaps of
    zero. After `finish`: `done` says whether `[DONE]` came, `error` is an error event's object, `usage`, `finish_reason` and
    `headway` are as the stream gave them."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.events = 0
        self.done = False
        self.error: Mapping[str, Any] | None = None
        self.usage: Mapping[str, Any] | None = None
        self.finish_reason: str | None = None
        self.headway: Mapping[str, Any] | None = None
        self._gaps_s = array("d")
        self._bunched = 0
        self._data = bytearray()  # the unread head, then the tail
        self._read = 0  # how far the head has been read
        self._overlap = b""

    def feed(self, chunk: bytes, now: float) -> None:
        """Some bytes that arrived at `now`."""
        if self.first_at is None:
            self._data += chunk
            self._read_head(now)
            return
        count = (self._overlap + chunk).count(_EVENT)
        self._overlap = chunk[-_OVERLAP:] if len(chunk) >= _OVERLAP else (self._overlap + chunk)[-_OVERLAP:]
        if count:
            assert self.last_at is not None  # noqa: S101 (set with first_at)
            self._gaps_s.append(now - self.last_at)
            self._bunched += count - 1
            self.events += count
            self.last_at = now
        data = self._data
        data += chunk
        if len(data) > 4 * _TAIL_BYTES:
            del data[:-_TAIL_BYTES]

    def _read_head(self, now: float) -> None:
        data = self._data
        while (end := data.find(b"\n", self._read)) >= 0:
            event = _event_of(bytes(data[self._read : end]))
            self._read = end + 1
            if event is None:
                continue
            if any(
                carries_token(choice) for choice in event.get("choices") or () if isinstance(choice, dict)
            ):
                self.first_at = self.last_at = now
                rest = bytes(data[self._read :])
                further = rest.count(_EVENT)
                self.events = 1 + further
                self._bunched += further
                self._overlap = rest[-_OVERLAP:]
                break
            if event.get("error") is not None:
                self._take(event)

    def finish(self) -> None:
        """The stream has ended: read its last events, from the end until nothing more is to be learnt."""
        lines = bytes(self._data).split(b"\n")
        self._data.clear()
        read = 0
        for line in reversed(lines):
            if data_of(line.strip()) == DONE:
                self.done = True
                continue
            event = _event_of(line)
            if event is None:
                continue
            self._take(event)
            read += 1
            if read >= _LAST_EVENTS or (self.usage is not None and self.finish_reason is not None):
                return

    def _take(self, event: Mapping[str, Any]) -> None:
        """Keep what an event has about the whole answer; what was read first stays (the end is read backwards)."""
        if self.error is None and event.get("error") is not None:
            error = event["error"]
            self.error = error if isinstance(error, dict) else {"message": str(error)}
        if self.usage is None and isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        if self.headway is None and isinstance(event.get("headway"), dict):
            self.headway = event["headway"]
        for choice in event.get("choices") or ():
            if self.finish_reason is None and isinstance(choice, dict) and choice.get("finish_reason"):
                self.finish_reason = str(choice["finish_reason"])

    def gaps_s(self) -> Summary:
        return Summary.of([*self._gaps_s, *([0.0] * self._bunched)])


def _event_of(line: bytes) -> Mapping[str, Any] | None:
    """The JSON object of a line with data; None for every other line."""
    data = data_of(line.strip())
    try:
        return None if data is None else object_of(data)
    except UpstreamError:
        return None
