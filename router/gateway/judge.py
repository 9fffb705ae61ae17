"""Has a share of the answers judged in the background, if the fleet file has a `judge`.

1. `Judge.relay` takes the place of `Relay`. Of a sampled request it copies the answer while the client gets it.
2. A complete answer waits in a short queue. If the queue is full, the answer is dropped and counted.
3. A worker asks the judge's model through the gateway itself, as a request of the judge's key. So the key's limits and
   budgets hold, and the request is recorded. It goes after the clients' requests (priority -1).
4. The score is feedback, as if the client had given it; the row of it names the judge's key.

An answer to a request of the judge's key is never judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import orjson

from backends.scanning import Assembler
from router.background import surviving
from router.config.sections import JudgeConfig
from router.core.errors import Refusal
from router.core.types import Outcome
from router.gateway.codecs.copying import CopyingCodec
from router.gateway.endpoints import HotPaths
from router.gateway.fleet.rules import Rules
from router.gateway.http.client_request import ClientRequest
from router.gateway.http.internal_request import InternalRequest
from router.gateway.intake.callers import RawHeaders
from router.gateway.relay.exchange import Exchange
from router.gateway.relay.relay import Relay
from router.gateway.service import Gateway
from router.judging import body_of, quality_of, question
from router.logs import current_request
from router.request.key_terms import KeyTerms
from router.request.texts import answer_text, asked_text
from router.store.records import RequestRecord

#: Answers that may wait to be judged, and those that are judged at once.
MOST_WAITING, _AT_ONCE = 64, 2
#: Longer prompts (in bytes of JSON) and longer answers (in characters) are not judged. An event is some 250 bytes a token.
_MOST_TEXT, _MOST_EVENT_BYTES = 1 << 16, 1 << 20
_WHOLE = frozenset({Outcome.OK, Outcome.LATE})


class _Sample(NamedTuple):
    """A prompt and its answer: the text, or the events of its stream."""

    request_id: str
    key: str | None
    api: str
    prompt: str
    answer: str | bytes


class _JudgePaths(HotPaths):
    """The hot paths for requests of one key, which need not show it."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        super().__init__(gateway)
        self._key = key

    def _authenticate(
        self, rules: Rules, raw: RawHeaders, headers: dict[bytes, bytes], record: RequestRecord
    ) -> KeyTerms | None:
        terms = rules.terms.get(self._key)
        if terms is None:
            raise Refusal(
                401, "invalid_api_key", "The judge's key is no longer there.", Outcome.REJECTED_AUTH
            )
        record.key_name = self._key
        return terms


class Judge:
    """Judges the answers of one gateway. `counts` are answers by what came of them."""

    def __init__(self, gateway: Gateway, config: JudgeConfig) -> None:
        self._gateway = gateway
        self._config = config
        self._paths = _JudgePaths(gateway, config.key)
        self._waiting: asyncio.Queue[_Sample] = asyncio.Queue(MOST_WAITING)
        self._works = False
        self.counts = dict.fromkeys(("judged", "unreadable", "failed", "dropped"), 0)

    def relay(self, gateway: Gateway, exchange: Exchange, client: ClientRequest) -> Relay:
        """The relay of a request, whose answer may be judged."""
        request, record = exchange.request, exchange.record
        sampled = int(request.id[-8:], 16) < self._config.share * 0x1_0000_0000  # random digits
        fits = request.decodes and request.choices == 1 and request.prompt_tokens_bound <= _MOST_TEXT
        if sampled and fits and record.key_name != self._config.key:
            ended = partial(self._ended, record, exchange.api, exchange.body)
            exchange.codec = CopyingCodec(exchange.codec, _MOST_EVENT_BYTES, ended)
        return Relay(gateway, exchange, client)

    def _ended(
        self,
        record: RequestRecord,
        api: str,
        body: Mapping[str, Any],
        answer: Mapping[str, Any] | bytes,
        headway: Mapping[str, Any],
    ) -> None:
        """A sampled answer is complete; it is being written to the client."""
        if headway["outcome"] not in _WHOLE:
            return
        prompt = asked_text(api, body)
        kept = answer if isinstance(answer, bytes) else answer_text(api, answer)
        if not prompt or not kept or self._waiting.full():
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
        """Judge an answer; returns what came of it."""
        answer = sample.answer
        if isinstance(answer, bytes):
            assembler = Assembler("chat" if sample.api == "chat" else "completions")
            assembler.feed(answer)
            answer = answer_text(sample.api, assembler.result())
        if not 0 < len(answer) <= _MOST_TEXT:
            return "dropped"
        body = body_of(self._config.model, question(sample.prompt, answer)) | {"routing": {"priority": -1}}
        asked = InternalRequest(self._paths, "/v1/chat/completions", orjson.dumps(body))
        status, response = await asked.answer()
        if status != 200:
            return "failed"
        quality = quality_of(answer_text("chat", orjson.loads(response)))
        if quality is None:
            return "unreadable"
        feedback, by = self._gateway.feedback, self._config.key
        return "judged" if await feedback.add(sample.request_id, quality, sample.key, by=by) else "failed"


def hot_paths(gateway: Gateway) -> HotPaths:
    """What serves the hot paths of a gateway."""
    config = gateway.config.judge
    if config is None:
        return HotPaths(gateway)
    judge = Judge(gateway, config)
    gateway.metrics.sources.judged = lambda: judge.counts
    return HotPaths(gateway, judge.relay)
