"""Meters a stream event by event (`router.core.money.meter`), so that no event passes that is not paid for.

An engine may ignore the bound that it was given, and may put several tokens into one event. The tokens of an event are, by
the first source that it has: the engine's own usage so far (a vLLM is asked for it), its list of log probabilities or
token ids, else its text (`tokens_of_text`). The event that goes beyond what is paid for is counted but not passed on. What
follows it is not looked at, so the outcome does not depend on how the bytes were cut into reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from backends.engine_numbers import counted, sound_usage
from backends.sse_events import chunk_of
from router.core.interfaces import Batch
from router.core.money.meter import TokenMeter, Verdict
from router.request.prompt import BYTES_PER_TOKEN

#: The longest tokens of vocabularies in use are runs of this many spaces or dashes.
_MOST_BYTES_OF_A_TOKEN = 128


def tokens_of_text(text: str) -> int:
    """Tokens that the text of one event holds. No token holds two words, so one word may be one token, honestly
    streamed; of two and more it is known that the engine does not stream token by token, and the usual number of
    bytes a token counts too."""
    if not text:
        return 0
    words = len(text.split())
    size = len(text.encode("utf-8", "surrogatepass"))
    if words > 1:
        return max(words, -(-size // BYTES_PER_TOKEN))
    return max(1, -(-size // _MOST_BYTES_OF_A_TOKEN))


class _Rest(NamedTuple):
    """What waits for money: events of a batch from `at` on, of which the first has been counted. `reported` is the usage in
    the last event that had one."""

    batch: Batch
    events: Sequence[bytes]
    reported: object


class MeteredStream:
    """The events of one attempt under its meter.

    `hide_usage` takes the usage that only the router asked for out of the events. `usage` is what is known of it so far,
    `stopped` says that the answer ends here, `waiting` that the rest waits for money: `go_on` then gives it.
    """

    __slots__ = (
        "_by_choice",
        "_choices",
        "_ended",
        "_events",
        "_hide_usage",
        "_passed",
        "_rest",
        "meter",
        "stopped",
        "usage",
    )

    def __init__(self, meter: TokenMeter, choices: int, *, hide_usage: bool) -> None:
        self.meter = meter
        self._choices = choices
        self._hide_usage = hide_usage
        self._by_choice: dict[int, int] = {}  # tokens
        self._events: dict[int, int] = {}  # events with tokens in them, by choice
        self._ended: set[int] = set()  # choices that have come to their end
        self._passed = 0  # tokens
        self._rest: _Rest | None = None
        self.usage: Mapping[str, Any] | None = None
        self.stopped = False

    @property
    def waiting(self) -> bool:
        """Whether an event waits for money."""
        return self._rest is not None

    def take(self, batch: Batch) -> Batch:
        """What of a batch is paid for."""
        return self._take(batch, batch.data.split(b"\n\n"), None)

    def go_on(self) -> Batch:
        """What waited, as far as the allowance of now pays for it."""
        assert self._rest is not None  # noqa: S101 (the caller saw `waiting`)
        (batch, events, reported), self._rest = self._rest, None
        return self._take(batch, events, reported, counted_first=True)

    def _take(
        self, batch: Batch, events: Sequence[bytes], reported: object, *, counted_first: bool = False
    ) -> Batch:
        meter = self.meter
        kept: list[bytes] = []
        before = self._passed
        for at, event in enumerate(events):
            payload = chunk_of(event)
            if payload is None:
                if event:
                    kept.append(event)
                continue
            usage = payload.get("usage")
            reported = sound_usage(usage) or reported
            if at or not counted_first:
                self._count(payload)
            verdict = meter.judge(
                complete=len(self._ended) >= self._choices,
                finished=self._choices == 1 and bool(_ended(payload)),
            )
            if verdict is Verdict.WAIT:
                self._rest = _Rest(batch, events[at:], reported)
                break
            if verdict is Verdict.STOP:
                self.stopped = True
                break
            self._passed = meter.tokens
            if usage is not None and self._hide_usage:
                del payload["usage"]
                kept.append(b"data: " + orjson.dumps(payload))
            else:
                kept.append(event)
            if verdict is Verdict.PASS_LAST:
                self.stopped = True
                break
        ended_early = self.stopped or self._rest is not None
        if batch.usage is not None and batch.usage != reported and not ended_early:
            self.usage = batch.usage  # of the whole answer
            prompt, output = (counted(batch.usage, name) for name in ("prompt_tokens", "completion_tokens"))
            if meter.judge_total(prompt, output) is Verdict.WAIT:  # it was more than could be seen
                self._rest = _Rest(batch, (), reported)
                ended_early = True
        elif meter.prompt_tokens is not None:
            self.usage = {
                "prompt_tokens": meter.prompt_tokens,
                "completion_tokens": meter.tokens,
                "total_tokens": meter.prompt_tokens + meter.tokens,
            }
        data = b"\n\n".join([*kept, b""]) if kept else b""
        passed = self._passed - before
        if ended_early:
            return Batch(data, passed)
        return Batch(data, passed, batch.usage, batch.finish_reason)

    def _count(self, payload: Mapping[str, Any]) -> None:
        """Count one event."""
        usage = payload.get("usage")
        output = counted(usage, "completion_tokens")
        self._ended |= _ended(payload)
        choices = _choices(payload)
        for choice in choices:
            at = _index(choice)
            made = _tokens_of(choice)
            count = self._by_choice.get(at, 0) + made
            if made:
                self._events[at] = self._events.get(at, 0) + 1
            if output is not None and len(choices) == 1:
                count = max(output, self._events.get(at, 0))
            self._by_choice[at] = count
        self.meter.count(sum(self._by_choice.values()), counted(usage, "prompt_tokens"))


def tokens_of(answer: Mapping[str, Any]) -> int:
    """Tokens that the choices of an answer in one piece hold, as far as they show."""
    return sum(map(_tokens_of, _choices(answer)))


def _choices(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an event says of each choice."""
    choices = payload.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _index(choice: Mapping[str, Any]) -> int:
    index = choice.get("index")
    return index if type(index) is int else 0


def _ended(payload: Mapping[str, Any]) -> set[int]:
    """The choices that an event ends."""
    return {_index(each) for each in _choices(payload) if isinstance(each.get("finish_reason"), str)}


def _tokens_of(choice: Mapping[str, Any]) -> int:
    """Tokens that one event brings for one choice."""
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        listed = logprobs.get("content") or logprobs.get("tokens")
        if isinstance(listed, list) and listed:
            return len(listed)
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    return tokens_of_text(_text_of(choice))


def _text_of(choice: Mapping[str, Any]) -> str:
    """All that the model wrote of a choice, of an event or of an answer in one piece."""
    delta = choice.get("delta") or choice.get("message")
    said = delta if isinstance(delta, dict) else choice
    parts = [said.get("reasoning") or said.get("reasoning_content")]
    parts += [said.get(name) for name in ("content", "text", "refusal")]
    calls = said.get("tool_calls")
    functions = (
        [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )
    for function in (*functions, said.get("function_call")):
        if isinstance(function, dict):
            parts += [function.get("name"), function.get("arguments")]
    return "".join(part for part in parts if isinstance(part, str))
