"""How far an answer goes for its money: tokens counted event by event, and no event let through that is not paid for.

Two moneys bound an answer. A cap on the request (`Dispatch.paid_tokens`) is known from the start. What is held of its
key's budgets (`router.gateway.keys.reservation`) grows while it streams: an event that is not covered waits for more. There the
next event has to be covered too, taken for as large as the largest so far, so that the answer can be ended before a
budget is passed.

An engine may take no notice of the bound that it was given, and may put several tokens into one event. Of an event,
the count is, the first that is there: the engine's own usage so far (a vLLM is asked for it), its list of log
probabilities or token ids, else what the text shows (`tokens_of_text`). The event that goes beyond what is paid for
is counted but not passed on; what follows it is not looked at, so the outcome does not depend on how the bytes were
cut into reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from backends.engine_numbers import counted, sound_usage
from router.core.events import Dispatch
from router.core.interfaces import Batch
from router.core.types import Request
from router.gateway.codecs.openai.events import chunk_of
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


class TokenMeter:
    """Meters one attempt's stream.

    `left_usd` tells what the request's other attempts have left of its cap: needed where the engine counts a longer
    prompt than its bound was. `pays` says whether so many USD are held for the attempt (None: no budget bounds it).
    `hide_usage` takes the usage that only the router asked for out of the events. `tokens` and `usage` are what was
    counted so far, `spent` says that the answer ends here, `waiting` that the rest waits until `needs_usd` are
    held: `go_on` then gives it.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        request: Request,
        left_usd: Callable[[], float],
        *,
        hide_usage: bool,
        pays: Callable[[float], bool] | None = None,
    ) -> None:
        paid: float | None = dispatch.paid_tokens
        bound, wished = dispatch.max_output_tokens, request.max_tokens
        self._capped = paid is not None
        if paid is None:
            paid = math.inf if wished is None else wished * request.choices
        self._paid = paid
        self._price = dispatch.candidate.price
        self._bound_tokens = request.bound_tokens(dispatch.candidate.model)
        self._request = request
        self._left_usd = left_usd
        self._pays = pays
        self._hide_usage = hide_usage
        #: An engine that keeps its bound ends by itself: only one token more shows that it does not.
        self._told = bound is not None and bound * request.choices <= paid
        self._prompt_tokens: int | None = None
        self._by_choice: dict[int, int] = {}
        self._events: dict[int, int] = {}  # with tokens in them, by choice
        self._ended: set[int] = set()  # choices that have come to their end
        self._widest = 1  # most tokens that one event brought
        self._passed = 0  # tokens let through
        self._rest: tuple[Batch, Sequence[bytes], object] | None = None  # what waits for money
        self._out_of_budget = False
        self.needs_usd = 0.0
        self.tokens = 0
        self.usage: Mapping[str, Any] | None = None
        self.spent = False

    @property
    def by_money(self) -> bool:
        """Whether it is the money that ends the answer here, not the client's own bound."""
        wished = self._request.max_tokens
        return self._out_of_budget or wished is None or self._limit() < wished * self._request.choices

    @property
    def waiting(self) -> bool:
        """Whether an event waits for money."""
        return self._rest is not None

    def _ahead_usd(self) -> float:
        """What has to be held for the answer to go on: what it has cost so far, and the next event."""
        ahead = 0 if len(self._ended) >= self._request.choices else self._widest
        return self._cost_usd(self.tokens + ahead)

    def _cost_usd(self, tokens: int) -> float:
        prompt_tokens = self._bound_tokens if self._prompt_tokens is None else self._prompt_tokens
        return self._price.cost_usd(prompt_tokens, tokens)

    def _told_usd(self, usage: Mapping[str, Any]) -> float:
        """What the engine's own count of the whole answer comes to."""
        prompt, output = counted(usage, "prompt_tokens"), counted(usage, "completion_tokens")
        return self._price.cost_usd(prompt or self._bound_tokens, output or self.tokens)

    def take(self, batch: Batch) -> Batch:
        """What of a batch is paid for."""
        return self._take(batch, batch.data.split(b"\n\n"), None)

    def go_on(self, paid: bool) -> Batch:
        """What waited, as far as it is paid for; unless `paid` the answer ends with the first event of it, which is
        given if it is covered itself."""
        assert self._rest is not None  # noqa: S101 (asked for by who saw `waiting`)
        (batch, events, told), self._rest = self._rest, None
        self._out_of_budget = not paid
        return self._take(batch, events, told, counted=True)

    def _take(self, batch: Batch, events: Sequence[bytes], told: object, *, counted: bool = False) -> Batch:
        """`told` is the usage in the last event, `counted` says that the first of `events` has been counted."""
        kept: list[bytes] = []
        before = self._passed
        pays = self._pays
        for at, event in enumerate(events):
            payload = chunk_of(event)
            if payload is None:
                if event:
                    kept.append(event)
                continue
            usage = payload.get("usage")
            told = sound_usage(usage) or told
            if at or not counted:
                seen = self.tokens
                self._count(payload)
                self._widest = max(self._widest, self.tokens - seen)
            finished = self._request.choices == 1 and bool(_ended(payload))
            limit = self._limit()
            if self.tokens > limit:
                self.spent = True
                break
            if pays is not None and not pays(ahead_usd := self._ahead_usd()):
                if not self._out_of_budget:
                    self._rest, self.needs_usd = (batch, events[at:], told), ahead_usd
                    break
                self.spent = True
                if not pays(self._cost_usd(self.tokens)):
                    break
            self._passed = self.tokens
            if usage is not None and self._hide_usage:
                del payload["usage"]
                kept.append(b"data: " + orjson.dumps(payload))
            else:
                kept.append(event)
            if self.tokens >= limit and not (finished or (self._told and limit == self._paid)):
                self.spent = True
            if self.spent:
                break
        if batch.usage is not None and batch.usage != told and not self.spent and self._rest is None:
            self.usage = batch.usage  # of the whole answer
            told_usd = self._told_usd(batch.usage)
            if pays is not None and not self._out_of_budget and not pays(told_usd):
                self._rest, self.needs_usd = (batch, (), told), told_usd  # it was more than could be seen
        elif self._prompt_tokens is not None:
            self.usage = {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": self.tokens,
                "total_tokens": self._prompt_tokens + self.tokens,
            }
        data = b"\n\n".join([*kept, b""]) if kept else b""
        passed = self._passed - before
        if self.spent or self._rest is not None:
            return Batch(data, passed)
        return Batch(data, passed, batch.usage, batch.finish_reason)

    def _limit(self) -> float:
        prompt_tokens = self._prompt_tokens
        if not self._capped or prompt_tokens is None or prompt_tokens <= self._bound_tokens:
            return self._paid
        affordable = self._price.affordable_output_tokens(prompt_tokens, self._left_usd())
        return self._paid if affordable is None else min(self._paid, affordable)

    def _count(self, payload: Mapping[str, Any]) -> None:
        """Count one event."""
        usage = payload.get("usage")
        prompt, output = counted(usage, "prompt_tokens"), counted(usage, "completion_tokens")
        if prompt is not None:
            self._prompt_tokens = prompt
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
        self.tokens = sum(self._by_choice.values())


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
