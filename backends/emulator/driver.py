"""Runs one pure engine model on the event loop: the model's time is wall time x speed.

There is one timer, set to the model's next moment. The result of a step is given to the sequences' sinks in two passes:
first all counts, then one flush for each sink. So a sink writes once, however many steps were caught up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from backends.engine import Engine, SlotEngine

#: Event loops count timers in milliseconds. A fast emulator reports several steps at a time instead of polling.
_LEAST_DELAY_S = 0.001


class Sink(Protocol):
    """Receives the tokens of one sequence."""

    def take(self, new_tokens: int, at_s: float, finished: bool) -> None:
        """Count `new_tokens` that were made at `at_s` (the model's time). Does not write yet."""

    def flush(self) -> None:
        """Write the tokens that were counted."""


class Driver:
    """Runs one engine model in real time. With `speed` 10 the model runs ten times as fast as its hardware. `clock`
    gives seconds. It cannot be uvloop's own clock, which stands still within one iteration and counts in milliseconds.
    """

    def __init__(
        self, engine: Engine | SlotEngine, speed: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine = engine
        self.speed = speed
        #: Called after progress was reported (an Ollama server waits there for a model to unload).
        self.on_progress: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._epoch = clock()
        self.reached = 0.0  # the model's time up to which all progress was reported
        self._closed = False
        self._sinks: dict[str, Sink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    def now(self) -> float:
        """The model's time in seconds. It never goes back."""
        return max(self.reached, (self._clock() - self._epoch) * self.speed)

    def active(self) -> int:
        """Sequences submitted and not yet finished or aborted."""
        return len(self._sinks)

    def submit(self, seq_id: str, start: Callable[[float], object], sink: Sink) -> None:
        """Start a sequence: `start` gets the model's time and submits the sequence to the engine. Its progress goes to
        `sink` until it has finished or was aborted. An exception of `start` (too long, queue full) is passed on."""
        now = self.now()
        self._catch_up(now)
        self._sinks[seq_id] = sink
        try:
            start(now)
        except Exception:
            del self._sinks[seq_id]
            raise
        self._catch_up(now)  # a sequence that only loads a model may have ended already
        self._arm()

    def abort(self, seq_id: str) -> None:
        """Abort a sequence; an unknown or finished one is no error."""
        if self._sinks.pop(seq_id, None) is not None:
            # At the time that the engine has reached, not the clock's: the timer still has to report what ended since
            # then.
            self.engine.abort(seq_id, self.reached)
            self._arm()
            if self.on_progress is not None:
                self._loop.call_soon(self.touch)  # a request that waits outside may have room now

    def touch(self) -> None:
        """Run what is due and set the timer again. Call it after a direct change of the engine."""
        self._catch_up(self.now())
        self._arm()

    def close(self) -> None:
        """Stop for good and forget all sequences. Their sinks are not notified."""
        self._closed = True
        self._sinks.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._closed:
            return
        due = self.engine.next_at()
        if due == self._timer_at and (due is None or self._timer is not None):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = due
        if due is not None:
            delay_s = self._epoch + due / self.speed - self._clock()
            self._timer = self._loop.call_later(max(_LEAST_DELAY_S, delay_s), self._fire)

    def _fire(self) -> None:
        due = self._timer_at
        self._timer = self._timer_at = None
        if due is not None:
            # A loop's clock may be a little early, but the model must reach its own moment.
            self.reached = max(self.reached, due)
        self._catch_up(self.now())
        self._arm()

    def _catch_up(self, now: float) -> None:
        self.reached = now
        sinks = self._sinks
        dirty: dict[int, Sink] = {}
        for progress in self.engine.advance(now):
            seq_id = progress.seq_id
            sink = sinks.get(seq_id)
            if sink is None:
                continue
            finished = progress.finished is not None
            if finished:
                del sinks[seq_id]
            sink.take(progress.new_tokens, progress.at_s, finished)
            dirty[id(sink)] = sink
        for sink in dirty.values():
            sink.flush()
        if self.on_progress is not None:
            self.on_progress()
