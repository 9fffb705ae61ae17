"""How far an answer goes for its money: tokens counted event by event, and no event let through that is not paid for.

An engine may take no notice of the bound that it was given, and may put several tokens into one event. Of an event,
the count is, the first that is there: the engine's own usage so far (a vLLM is asked for it), its list of log
probabilities or token ids, else what the text shows (`tokens_of_text`). The event that goes beyond what is paid for
is counted but not passed on; what follows it is not looked at, so the outcome does not depend on how the bytes were
cut into reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from router.core.events import Dispatch
from router.core.interfaces import Batch
from router.core.types import Request
from router.gateway.assemble import event_payload, parse_event
from router.gateway.prompt import BYTES_PER_TOKEN

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


class PaidTokens:
    """Meters one attempt's stream against `Dispatch.paid_tokens`.

    `left_usd` tells what the request's other attempts have left of its cap: needed where the engine counts a longer
    prompt than its bound was. `hide_usage` takes the usage that only the router asked for out of the events.
    `tokens` and `usage` are what was counted so far, `spent` says that the answer ends here.
    """

    def __init__(
        self, dispatch: Dispatch, request: Request, left_usd: Callable[[], float], *, hide_usage: bool
    ) -> None:
        paid, bound = dispatch.paid_tokens, dispatch.max_output_tokens
        assert paid is not None  # noqa: S101 (made for dispatches with a cap only)
        self._paid = paid
        self._price = dispatch.candidate.price
        self._bound_tokens = request.bound_tokens(dispatch.candidate.model)
        self._request = request
        self._left_usd = left_usd
        self._hide_usage = hide_usage
        #: An engine that keeps its bound ends by itself: only one token more shows that it does not.
        self._told = bound is not None and bound * request.choices <= paid
        self._prompt_tokens: int | None = None
        self._by_choice: dict[int, int] = {}
        self._events: dict[int, int] = {}  # with tokens in them, by choice
        self.tokens = 0
        self.usage: Mapping[str, Any] | None = None
        self.spent = False

    @property
    def by_money(self) -> bool:
        """Whether it is the money that ends the answer here, not the client's own bound."""
        wished = self._request.max_tokens
        return wished is None or self._limit() < wished * self._request.choices

    def take(self, batch: Batch) -> Batch:
        """What of a batch is paid for."""
        kept: list[bytes] = []
        before = passed = self.tokens
        told: object = None  # the usage in the last event
        for event in batch.data.split(b"\n\n"):
            payload = _object(event)
            if payload is None:
                if event:
                    kept.append(event)
                continue
            usage = payload.get("usage")
            told = usage if isinstance(usage, dict) else told
            finished = self._count(payload)
            limit = self._limit()
            if self.tokens > limit:
                self.spent = True
                break
            passed = self.tokens
            if usage is not None and self._hide_usage:
                del payload["usage"]
                kept.append(b"data: " + orjson.dumps(payload))
            else:
                kept.append(event)
            if self.tokens >= limit and not (finished or (self._told and limit == self._paid)):
                self.spent = True
                break
        if batch.usage is not None and batch.usage != told and not self.spent:
            self.usage = batch.usage  # of the whole answer
        elif self._prompt_tokens is not None:
            self.usage = {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": self.tokens,
                "total_tokens": self._prompt_tokens + self.tokens,
            }
        data = b"\n\n".join([*kept, b""]) if kept else b""
        if self.spent:
            return Batch(data, passed - before)
        return Batch(data, passed - before, batch.usage, batch.finish_reason)

    def _limit(self) -> int:
        prompt_tokens = self._prompt_tokens
        if prompt_tokens is None or prompt_tokens <= self._bound_tokens:
            return self._paid
        affordable = self._price.affordable_output_tokens(prompt_tokens, self._left_usd())
        return self._paid if affordable is None else min(self._paid, affordable)

    def _count(self, payload: Mapping[str, Any]) -> bool:
        """Count one event; True if it ends the answer."""
        usage = payload.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if type(prompt) is int and prompt > 0:
            self._prompt_tokens = prompt
        choices = payload.get("choices")
        choices = choices if isinstance(choices, list) else []
        finished = False
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            finished = self._request.choices == 1 and isinstance(choice.get("finish_reason"), str)
            index = choice.get("index")
            at = index if type(index) is int else 0
            made = _tokens_of(choice)
            count = self._by_choice.get(at, 0) + made
            if made:
                self._events[at] = self._events.get(at, 0) + 1
            if type(output) is int and output > 0 and len(choices) == 1:
                count = max(output, self._events.get(at, 0))
            self._by_choice[at] = count
        self.tokens = sum(self._by_choice.values())
        return finished


def _object(event: bytes) -> dict[str, Any] | None:
    """The object of an event; None for a comment or nothing. Raises UpstreamError for what is no JSON object."""
    payload = event_payload(event)
    return None if payload is None else parse_event(payload)


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
    """All that the model wrote of an event's choice."""
    delta = choice.get("delta")
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
