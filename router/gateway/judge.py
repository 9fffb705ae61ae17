"""Asks a model of the fleet how good answers are, through the gateway itself as requests of one key. So the key's limits and
budgets hold, and the requests are recorded, unless they refuse them.

A `judge` in the fleet file rates a share of the answers in the background:

1. `Judge.sample` sees each request before its relay. Of a sampled one the answer is copied while the client gets it.
2. A complete answer waits in a short queue. If the queue is full, the answer is dropped and counted.
3. A worker asks the judge's model. The question goes after the clients' requests (priority -1).
4. The score is feedback, as if the client had given it; the row of it names the judge's key.

An answer to a request of the judge's key is never judged. A `second_look` checks answers before their clients get them
(`AnswerChecks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from backends.scanning import Assembler
from router.background import surviving
from router.config.sections import JudgeConfig, SecondLookConfig
from router.core.errors import Refusal, unauthorized
from router.core.types import Outcome
from router.gateway.codecs.codec import CopyingCodec
from router.gateway.endpoints import HotPaths
from router.gateway.fleet.rules import Rules
from router.gateway.http.internal_request import InternalRequest
from router.gateway.intake.callers import RawHeaders
from router.gateway.relay.relay import Relay
from router.gateway.service import Gateway
from router.gateway.telemetry.metrics import SUCCESS
from router.judging import body_of, quality_of, question
from router.logs import current_request
from router.request.routing_params import KeyTerms
from router.store.database import StoreError
from router.store.records import RequestRecord

#: The results for an answer: it has a score, the verdict has none, there is no verdict, or the answer was not judged.
RESULTS = ("judged", "unreadable", "failed", "dropped")
#: Longer prompts (in bytes of JSON) and longer answers (in characters) are not judged.
MOST_TEXT = 1 << 16
#: Answers that may wait to be judged, and those that are judged at once.
MOST_WAITING, _AT_ONCE = 64, 2
#: The events of longer answers are not kept: an event is some 250 bytes a token.
_MOST_EVENT_BYTES = 1 << 20


class Verdicts:
    """Requests verdicts from `model` with `key`. `counts` are answers by result (RESULTS)."""

    def __init__(self, gateway: Gateway, model: str, key: str) -> None:
        self.key = key
        self.counts = dict.fromkeys(RESULTS, 0)
        self._paths = _KeyPaths(gateway, key)
        self._model = model

    async def quality(
        self, prompt: str, answer: str, routing: Mapping[str, Any] | None = None
    ) -> tuple[str, float | None]:
        """The result (one of RESULTS), and the quality of the answer, 0 to 1, if it was judged. `routing` are the request's routing
        parameters."""
        body = body_of(self._model, question(prompt, answer))
        if routing is not None:
            body["routing"] = routing
        status, response = await InternalRequest(
            self._paths, "/v1/chat/completions", orjson.dumps(body)
        ).answer()
        if status != 200:
            return "failed", None
        quality = quality_of(answer_text("chat", orjson.loads(response)))
        return "unreadable" if quality is None else "judged", quality


class Judge(Verdicts):
    """Judges the answers of one gateway."""

    def __init__(self, gateway: Gateway, config: JudgeConfig) -> None:
        super().__init__(gateway, config.model, config.key)
        self._gateway = gateway
        self._share = config.share
        #: Prompts and their answers (the text, or the events of a stream), with the records and APIs of the requests.
        self._waiting = asyncio.Queue[tuple[RequestRecord, str, str, str | bytes]](MOST_WAITING)
        for _ in range(_AT_ONCE):
            gateway.tasks.start(self._work(), "judge")

    def sample(self, relay: Relay) -> None:
        """Have the answer to this request judged, if it is chosen."""
        request, record = relay.request, relay.record
        sampled = int(request.id[-8:], 16) < self._share * 0x1_0000_0000  # random digits
        fits = request.decodes and request.choices == 1 and request.prompt_tokens_bound <= MOST_TEXT
        if sampled and fits and record.key_name != self.key:
            ended = partial(self._ended, record, relay.api, relay.body)
            relay.codec = CopyingCodec(relay.codec, _MOST_EVENT_BYTES, ended)

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
        self._waiting.put_nowait((record, api, prompt, kept))

    async def _work(self) -> None:
        while True:
            record, api, prompt, answer = await self._waiting.get()
            current_request.set(record.id)  # for the log
            result = "failed"
            with surviving("judge"):
                result = await self._judge(record, api, prompt, answer)
            self.counts[result] += 1

    async def _judge(self, record: RequestRecord, api: str, prompt: str, answer: str | bytes) -> str:
        """Judge an answer; returns the result (RESULTS)."""
        if self._gateway.draining:  # the question would be refused
            return "dropped"
        if isinstance(answer, bytes):
            assembler = Assembler("chat" if api == "chat" else "completions")
            assembler.feed(answer)
            answer = answer_text(api, assembler.result())
        if not 0 < len(answer) <= MOST_TEXT:
            return "dropped"
        result, quality = await self.quality(prompt, answer, {"priority": -1})
        if quality is None:
            return result
        try:
            kept = await self._gateway.feedback.add(record.id, quality, record.key_name, by=self.key)
        except (Refusal, StoreError):  # the answer has all its ratings; the database does not answer
            return "failed"
        return "judged" if kept else "failed"


class AnswerChecks(Verdicts):
    """Checks answers before their clients get them, if the fleet file has a `second_look`. The policy chooses which ones
    (`policies.second_look`). Without its verdict after `timeout_s` an answer counts as not checked."""

    def __init__(self, gateway: Gateway, config: SecondLookConfig) -> None:
        super().__init__(gateway, config.model, config.key)
        self._limit_s = config.timeout_s

    async def __call__(self, relay: Relay, answer: Mapping[str, Any]) -> float | None:
        """How good an answer is, 0 to 1; None if that cannot be known in time."""
        result, quality = "failed", None
        try:
            prompt, text = asked_text(relay.api, relay.body), answer_text(relay.api, answer)
            if not text.strip():
                result, quality = "judged", 0.0  # no judge need read it
            elif not prompt or max(len(prompt), len(text)) > MOST_TEXT:
                result = "dropped"
            else:
                async with asyncio.timeout(self._limit_s):
                    result, quality = await self.quality(prompt, text)
        except TimeoutError:
            pass
        finally:
            self.counts[result] += 1
        return quality


def hot_paths(gateway: Gateway) -> HotPaths:
    """What serves the hot paths of a gateway."""
    config = gateway.config
    judge = None if config.judge is None else Judge(gateway, config.judge)
    checks = None if config.second_look is None else AnswerChecks(gateway, config.second_look)
    if judge is not None:
        gateway.judged = judge.counts
    if checks is not None:
        gateway.checked = checks.counts
    return HotPaths(gateway, None if judge is None else judge.sample, checks)


class _KeyPaths(HotPaths):
    """The hot paths for requests of one key, which need not show it."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        super().__init__(gateway)
        self._key = key

    def _authenticate(
        self, rules: Rules, raw: RawHeaders, headers: dict[bytes, bytes], record: RequestRecord
    ) -> KeyTerms | None:
        key = rules.working.get(self._key)
        if key is None:
            raise unauthorized("The judge's key no longer exists.")
        record.key_name = self._key
        return key.terms

    def _finish(self, record: RequestRecord) -> None:
        """A question that the key's limits or budgets refuse leaves no record: once they are spent, each one would."""
        if record.outcome in (Outcome.REJECTED_RATE, Outcome.REJECTED_BUDGET):
            self._gateway.store.writer.forget()
        else:
            super()._finish(record)


# --- the texts of a request and of its answer, as a reader sees them --------------------------------------
def asked_text(api: str, body: Mapping[str, Any]) -> str:
    """The prompt's text of a checked chat or completion; "" if a part of it is no text. Messages of a longer chat begin with
    their role."""
    if api != "chat":
        prompt = body["prompt"]
        return prompt if isinstance(prompt, str) else ""
    said = [(str(message.get("role")), _content(message.get("content"))) for message in body["messages"]]
    if any(text is None for _, text in said):
        return ""
    if len(said) == 1:
        return said[0][1] or ""
    return "\n\n".join(f"{role}: {text}" for role, text in said)


def answer_text(api: str, answer: Mapping[str, Any]) -> str:
    """The text of an answer's first choice, in OpenAI's form; "" if it has none."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if api == "chat" else choice["text"]
    except (KeyError, IndexError, TypeError):
        return ""
    return text if isinstance(text, str) else ""


def _content(content: Any) -> str | None:
    """The text of a message; None if a part of it is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") if part.get("type") == "text" else None for part in content]
    return None if None in texts else "".join(map(str, texts))
