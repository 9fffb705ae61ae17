"""Has a share of the answers judged in the background, if the fleet file has a `judge`.

1. `Judge.sample` sees each request before its relay. Of a sampled one the answer is copied while the client gets it.
2. A complete answer waits in a short queue. If the queue is full, the answer is dropped and counted.
3. A worker asks the judge's model (`router.gateway.verdicts`). The question goes after the clients' requests (priority -1).
4. The score is feedback, as if the client had given it; the row of it names the judge's key.

An answer to a request of the judge's key is never judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from backends.scanning import Assembler
from router.background import surviving
from router.config.sections import JudgeConfig
from router.core.errors import Refusal
from router.gateway.codecs.codec import CopyingCodec
from router.gateway.endpoints import HotPaths
from router.gateway.http.client_request import ClientRequest
from router.gateway.relay.exchange import Exchange
from router.gateway.relay.relay import Relay
from router.gateway.service import Gateway
from router.gateway.telemetry.metrics import SUCCESS
from router.gateway.verdicts import MOST_TEXT, AnswerChecks, Verdicts
from router.logs import current_request
from router.request.texts import answer_text, asked_text
from router.store.database import StoreError
from router.store.records import RequestRecord

#: Answers that may wait to be judged, and those that are judged at once.
MOST_WAITING, _AT_ONCE = 64, 2
#: The events of longer answers are not kept: an event is some 250 bytes a token.
_MOST_EVENT_BYTES = 1 << 20


class _Sample(NamedTuple):
    """A prompt and its answer: the text, or the events of its stream."""

    request_id: str
    key: str | None
    api: str
    prompt: str
    answer: str | bytes


class Judge:
    """Judges the answers of one gateway. `counts` are answers by result."""

    def __init__(self, gateway: Gateway, config: JudgeConfig) -> None:
        self._gateway = gateway
        self._share = config.share
        self._verdicts = Verdicts(gateway, config.model, config.key)
        self._waiting: asyncio.Queue[_Sample] = asyncio.Queue(MOST_WAITING)
        self._works = False
        self.counts = self._verdicts.counts

    def sample(self, exchange: Exchange) -> None:
        """Have the answer to this request judged, if it is chosen."""
        request, record = exchange.request, exchange.record
        sampled = int(request.id[-8:], 16) < self._share * 0x1_0000_0000  # random digits
        fits = request.decodes and request.choices == 1 and request.prompt_tokens_bound <= MOST_TEXT
        if sampled and fits and record.key_name != self._verdicts.key:
            ended = partial(self._ended, record, exchange.api, exchange.body)
            exchange.codec = CopyingCodec(exchange.codec, _MOST_EVENT_BYTES, ended)

    def _ended(
        self,
        record: RequestRecord,
        api: str,
        body: Mapping[str, Any],
        answer: Mapping[str, Any] | bytes,
        headway: Mapping[str, Any],
    ) -> None:
        """A sampled answer is complete; it is being written to the client."""
        if headway["outcome"] not in SUCCESS:
            return
        prompt = asked_text(api, body)
        kept = answer if isinstance(answer, bytes) else answer_text(api, answer)
        if not prompt or not kept or self._waiting.full() or self._gateway.draining:
            self.counts["dropped"] += 1
            return
        self._waiting.put_nowait(_Sample(record.id, record.key_name, api, prompt, kept))
        if not self._works:
            self._works = True
            for _ in range(_AT_ONCE):
                self._gateway.tasks.start(self._work(), "judge")

    async def _work(self) -> None:
        while True:
            sample = await self._waiting.get()
            current_request.set(sample.request_id)  # for the log
            result = "failed"
            with surviving("judge"):
                result = await self._judge(sample)
            self.counts[result] += 1

    async def _judge(self, sample: _Sample) -> str:
        """Judge an answer; returns the result (`verdicts.RESULTS`)."""
        if self._gateway.draining:  # the question would be refused
            return "dropped"
        answer = sample.answer
        if isinstance(answer, bytes):
            assembler = Assembler("chat" if sample.api == "chat" else "completions")
            assembler.feed(answer)
            answer = answer_text(sample.api, assembler.result())
        if not 0 < len(answer) <= MOST_TEXT:
            return "dropped"
        result, quality = await self._verdicts.quality(sample.prompt, answer, {"priority": -1})
        if quality is None:
            return result
        feedback, by = self._gateway.feedback, self._verdicts.key
        try:
            kept = await feedback.add(sample.request_id, quality, sample.key, by=by)
        except (Refusal, StoreError):  # the answer has all its ratings; the database does not answer
            return "failed"
        return "judged" if kept else "failed"


def hot_paths(gateway: Gateway) -> HotPaths:
    """What serves the hot paths of a gateway."""
    config = gateway.config
    judge = None if config.judge is None else Judge(gateway, config.judge)
    checks = None if config.second_look is None else AnswerChecks(gateway, config.second_look)
    if judge is not None:
        gateway.judged = judge.counts
    if checks is not None:
        gateway.checked = checks.counts
    if judge is None and checks is None:
        return HotPaths(gateway)

    def relay(gateway: Gateway, exchange: Exchange, client: ClientRequest) -> Relay:
        if judge is not None:
            judge.sample(exchange)
        return Relay(gateway, exchange, client, checks)

    return HotPaths(gateway, relay)
