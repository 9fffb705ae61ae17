"""One generation request from its submission to the last byte, in any wire format.

1. `Generation.begin` submits one sequence for each choice to the driver.
2. The driver counts tokens into each `Choice` and flushes it: a stream gets one write for each step, a plain answer
   waits for the end.
3. A client that reads too slowly gets no writes. Its tokens are counted and sent merged when it can take more, as
   vLLM's output collector merges them. Memory stays bounded, because text is made when it is sent.
4. If a client leaves, its sequences are aborted at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Protocol

from backends.emulator.driver import Driver
from backends.emulator.faults import Fault, FaultKind
from backends.emulator.http import Exchange
from backends.emulator.text import Answer, prefix_hashes
from backends.engine.sequence import Finish, Sequence

_numbers = itertools.count(1)


class Observer(Protocol):
    """Counts the events of sequences (metrics). Times are the model's."""

    def first_token(self, choice: Choice, at_s: float) -> None: ...
    def later_token(self, gap_s: float) -> None: ...
    def finished(self, choice: Choice, at_s: float) -> None: ...
    def aborted(self, choice: Choice, at_s: float) -> None: ...


@dataclass(slots=True, eq=False)
class Choice:
    """One choice of an answer: the sink of one sequence.

    `submit` takes it into the engine. `head` and `tail` are the constant bytes around a piece of text.
    """

    index: int
    sequence: Sequence
    submit: Callable[[Sequence, float], object]
    answer: Answer
    finish_reason: str
    stop_reason: str | None = None
    produced: int = 0
    sent: int = 0
    engine_finished: bool = False
    closed: bool = False
    first_at: float | None = None
    last_at: float = 0.0
    head: bytes = b""
    tail: bytes = b""
    generation: Generation = field(init=False)

    def take(self, new_tokens: int, at_s: float, finished: bool) -> None:
        observer = self.generation.observer
        if new_tokens:
            self.produced += new_tokens
            if self.first_at is None:
                self.first_at = at_s
                if observer is not None:
                    observer.first_token(self, at_s)
            elif observer is not None:
                observer.later_token(at_s - self.last_at)
            self.last_at = at_s
        if finished:
            self.engine_finished = True
            if observer is not None:
                observer.finished(self, at_s)

    def flush(self) -> None:
        self.generation.flush(self)


class Wire(Protocol):
    """The bytes of one request's answer in one format."""

    content_type: str
    head_first: bool  # whether a stream's status line is sent before the first token

    def prepare(self, choice: Choice) -> None:
        """Set the choice's `head` and `tail`."""

    def opening(self) -> bytes:
        """The beginning of a stream, sent together with the first token."""
        return b""

    def pieces(self, choice: Choice, start: int, stop: int, last: bool) -> bytes:
        """The events of tokens `start` to `stop`; `last` says that the choice ends with them."""

    def closing(self, generation: Generation) -> bytes:
        """The end of a stream."""

    def whole(self, generation: Generation) -> bytes:
        """The body of a non-streaming answer."""

    def stream_error(self, status: int, message: str) -> bytes:
        """The end of a stream that failed after its status line."""

    def error_body(self, status: int, message: str) -> bytes:
        """The body of an error answer."""


@dataclass(slots=True, eq=False)
class Generation:
    """One request under way. `on_end` is called once, however it ends."""

    exchange: Exchange
    driver: Driver
    wire: Wire
    choices: Many[Choice]
    _: KW_ONLY
    streaming: bool
    fault: Fault | None = None
    observer: Observer | None = None
    on_end: Callable[[Generation], None] | None = None
    submitted_at: float = field(default=0.0, init=False)
    ended: bool = field(default=False, init=False)
    _headed: bool = field(default=False, init=False)
    _opened: bool = field(default=False, init=False)
    _open: int = field(init=False)
    _sent_tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._open = len(self.choices)
        for choice in self.choices:
            choice.generation = self
            self.wire.prepare(choice)

    def begin(self) -> None:
        """Attach to the exchange and submit the sequences. The driver's timer produces the answer."""
        self.attach()
        self.launch()

    def attach(self) -> None:
        """Attach to the exchange: from here on a client that leaves ends the work."""
        self.exchange.on_drop = self._dropped
        self.exchange.on_drain = self._drain
        self.submitted_at = self.driver.now()

    def launch(self) -> None:
        """Submit the sequences."""
        if self.ended:
            return
        if self.streaming and self.wire.head_first:
            self._head()
        if self.fault is not None and self.fault.after_tokens == 0:
            self._break(self.fault)
            return
        for choice in self.choices:
            if not self.ended:
                self.driver.submit(choice.sequence.id, partial(choice.submit, choice.sequence), choice)

    def flush(self, choice: Choice) -> None:
        """Send what the choice has produced, as far as the client reads it."""
        if self.ended:
            return
        if self.fault is not None:
            self._flush_until(self.fault, choice)
        elif not self.streaming:
            if choice.engine_finished and not choice.closed:
                choice.closed = True
                self._open -= 1
                if self._open == 0:
                    self._end()
                    self.exchange.respond(200, self.wire.whole(self))
        elif not self.exchange.paused:
            self._send(choice, choice.produced)

    def _send(self, choice: Choice, stop: int) -> None:
        last = choice.engine_finished and stop == choice.produced
        if choice.closed or (stop == choice.sent and not last):
            return
        data = self._pieces(choice, stop, last)
        if last:
            choice.closed = True
            self._open -= 1
            if self._open == 0:
                data += self.wire.closing(self)
                self._end()
                self.exchange.finish(data)
                return
        self.exchange.write(data)

    def _pieces(self, choice: Choice, stop: int, last: bool) -> bytes:
        """The choice's tokens up to `stop` that were not sent yet; the stream is opened before the first."""
        data = self.wire.pieces(choice, choice.sent, stop, last)
        choice.sent = stop
        if not self._opened:
            self._opened = True
            data = self.wire.opening() + data
            self._head()
        return data

    def _head(self) -> None:
        if not self._headed:
            self._headed = True
            self.exchange.start(200, self.wire.content_type)

    def _drain(self) -> None:
        for choice in self.choices:
            if self.exchange.paused or self.ended:
                return
            self.flush(choice)

    def _dropped(self) -> None:
        self.stop_work()
        self._end()

    def stop_work(self) -> None:
        """Abort the sequences that are still running."""
        for choice in self.choices:
            if not choice.engine_finished:
                if self.observer is not None:
                    self.observer.aborted(choice, self.driver.now())
                choice.engine_finished = True
                self.driver.abort(choice.sequence.id)

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            if self.on_end is not None:
                self.on_end(self)

    def fail(self, status: int, message: str) -> None:
        """End the answer with the engine's error in this format, at any point of the answer."""
        if self.ended:
            return
        self.stop_work()
        self._end()
        if self._headed:
            self.exchange.finish(self.wire.stream_error(status, message))
        else:
            self.exchange.respond(status, self.wire.error_body(status, message))

    def cut(self) -> None:
        """Reset the connection in the middle of the answer."""
        if not self.ended:
            self.stop_work()
            self._end()
            self.exchange.cut()

    def hang(self) -> None:
        """Send nothing more. The connection stays open until the client closes it."""
        self.stop_work()
        self.ended = True  # `on_end` is called when the client has left
        ended, self.on_end = self.on_end, None
        self.exchange.on_drain = None
        self.exchange.on_drop = (lambda: ended(self)) if ended is not None else None

    # --- faults ---
    def _flush_until(self, fault: Fault, choice: Choice) -> None:
        if self.streaming:
            if self.exchange.paused:
                return
            left = max(0, fault.after_tokens - self._sent_tokens)
            stop = min(choice.produced, choice.sent + left, choice.answer.tokens - 1)
            if stop > choice.sent:
                self._sent_tokens += stop - choice.sent
                self.exchange.write(self._pieces(choice, stop, False))
            reached = self._sent_tokens
        else:
            reached = sum(each.produced for each in self.choices)
        if reached >= fault.after_tokens or choice.engine_finished:
            self._break(fault)

    def _break(self, fault: Fault) -> None:
        if fault.kind in {FaultKind.HANG_MID_STREAM, FaultKind.HANG_BEFORE_FIRST_TOKEN}:
            self.hang()
        elif fault.kind is FaultKind.TRUNCATE and self._headed:
            self.stop_work()
            self._end()
            self.exchange.finish()
        elif fault.kind in {FaultKind.TRUNCATE, FaultKind.CUT}:
            self.cut()
        else:
            self.fail(fault.status, "the engine failed (emulated fault)")


def new_sequence(
    prompt: bytes, prompt_tokens: int, output_tokens: int, model: str, finish: Finish = "stop"
) -> Sequence:
    """A sequence with an id that is unique in this process."""
    return Sequence(
        id=f"seq-{next(_numbers)}",
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prefix=prefix_hashes(prompt),
        model=model,
        finish=finish,
    )
