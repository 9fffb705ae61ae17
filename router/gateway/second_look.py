"""Checks answers before their clients get them, if the fleet file has a `second_look`.

The policy chooses which ones (`policies.second_look`). The model that checks is asked like a judge. Without its verdict after
`timeout_s` the answer counts as not checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from router.config.sections import SecondLookConfig
from router.gateway.relay.exchange import Exchange
from router.gateway.service import Gateway
from router.gateway.verdicts import MOST_TEXT, Verdicts
from router.request.texts import answer_text, asked_text


class AnswerChecks:
    """The checks of one gateway. `counts` are answers by what came of them."""

    def __init__(self, gateway: Gateway, config: SecondLookConfig) -> None:
        self._verdicts = Verdicts(gateway, config.model, config.key)
        self._limit_s = config.timeout_s
        self.counts = self._verdicts.counts

    async def __call__(self, exchange: Exchange, answer: Mapping[str, Any]) -> float | None:
        """How good an answer is, 0 to 1; None if that cannot be known in time."""
        result, quality = "failed", None
        try:
            prompt, text = asked_text(exchange.api, exchange.body), answer_text(exchange.api, answer)
            if not prompt or not text or max(len(prompt), len(text)) > MOST_TEXT:
                result = "dropped"
            else:
                async with asyncio.timeout(self._limit_s):
                    result, quality = await self._verdicts.quality(prompt, text)
        except TimeoutError:
            pass
        finally:
            self.counts[result] += 1
        return quality
