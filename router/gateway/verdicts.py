"""Asks a model of the fleet how good an answer is, through the gateway itself as a request of one key. So the key's limits and
budgets hold, and the request is recorded, unless they refuse it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from router.config.sections import SecondLookConfig
from router.core.errors import unauthorized
from router.core.types import Outcome
from router.gateway.endpoints import HotPaths
from router.gateway.fleet.rules import Rules
from router.gateway.http.internal_request import InternalRequest
from router.gateway.intake.callers import RawHeaders
from router.gateway.relay.exchange import Exchange
from router.gateway.service import Gateway
from router.judging import body_of, quality_of, question
from router.request.key_terms import KeyTerms
from router.request.texts import answer_text, asked_text
from router.store.records import RequestRecord

#: The results for an answer: it has a score, the verdict has none, there is no verdict, or the answer was not judged.
RESULTS = ("judged", "unreadable", "failed", "dropped")
#: Longer prompts (in bytes of JSON) and longer answers (in characters) are not judged.
MOST_TEXT = 1 << 16


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


class AnswerChecks:
    """Checks answers before their clients get them, if the fleet file has a `second_look`. The policy chooses which ones
    (`policies.second_look`). Without its verdict after `timeout_s` an answer counts as not checked. `counts` are answers by
    result."""

    def __init__(self, gateway: Gateway, config: SecondLookConfig) -> None:
        self._verdicts = Verdicts(gateway, config.model, config.key)
        self._limit_s = config.timeout_s
        self.counts = self._verdicts.counts

    async def __call__(self, exchange: Exchange, answer: Mapping[str, Any]) -> float | None:
        """How good an answer is, 0 to 1; None if that cannot be known in time."""
        result, quality = "failed", None
        try:
            prompt, text = asked_text(exchange.api, exchange.body), answer_text(exchange.api, answer)
            if not text.strip():
                result, quality = "judged", 0.0  # no judge need read it
            elif not prompt or max(len(prompt), len(text)) > MOST_TEXT:
                result = "dropped"
            else:
                async with asyncio.timeout(self._limit_s):
                    result, quality = await self._verdicts.quality(prompt, text)
        except TimeoutError:
            pass
        finally:
            self.counts[result] += 1
        return quality


class _KeyPaths(HotPaths):
    """The hot paths for requests of one key, which need not show it."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        super().__init__(gateway)
        self._key = key

    def _authenticate(
        self, rules: Rules, raw: RawHeaders, headers: dict[bytes, bytes], record: RequestRecord
    ) -> KeyTerms | None:
        terms = rules.terms.get(self._key)
        if terms is None:
            raise unauthorized("The judge's key no longer exists.")
        record.key_name = self._key
        return terms

    def _finish(self, record: RequestRecord) -> None:
        """A question that the key's limits or budgets refuse leaves no record: once they are spent, each one would."""
        if record.outcome in (Outcome.REJECTED_RATE, Outcome.REJECTED_BUDGET):
            self._gateway.store.writer.forget()
        else:
            super()._finish(record)
