"""Finished requests: looking them up, and feedback about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from router.core.errors import invalid_request
from router.core.events import QualityReported
from router.core.types import ANSWERED
from router.store.database import StoreError
from router.store.queries import Store
from router.store.state import State

logger = logging.getLogger("headway")

#: A row reaches the store within about 0.2 s of its request's end. A missing row is looked up again after this time.
_RECORDED_S = 0.3
#: Feedback kept for one answer. The predictor learns from the first only.
MAX_JUDGEMENTS = 8


async def find_request(
    store: Store, state: State, request_id: str, key: str | None = None, *, any_key: bool = False
) -> dict[str, Any] | None:
    """The row of a request, as `Store.request` finds it. Where other replicas may still be writing it, it is looked up
    twice."""
    row = await store.request(request_id, key, any_key=any_key)
    if row is None and state.health.replicas > 1:
        await asyncio.sleep(_RECORDED_S)
        row = await store.request(request_id, key, any_key=any_key)
    return row


class Feedback:
    """Adds feedback, and teaches the predictor what the store already holds."""

    def __init__(self, store: Store, state: State, report: Callable[[QualityReported], None]) -> None:
        self._store = store
        self._state = state
        self._report = report

    async def add(self, request_id: str, quality: float, key: str | None, *, by: str | None = None) -> bool:
        """Keep a judgement (`quality` 0 to 1) and learn from it; False if the key has no such request. `by` is the key that
        judged (None: the same one).

        Raises a Refusal (409) for a request without an answer, and after `MAX_JUDGEMENTS`: otherwise one caller could fill
        the store.
        """
        row = await find_request(self._store, self._state, request_id, key)
        if row is None:
            return False
        if row["outcome"] not in ANSWERED:
            raise invalid_request("This request got no answer.", None, "not_answered", 409)
        place = await self._store.add_feedback(request_id, quality, key, by, MAX_JUDGEMENTS)
        if place > MAX_JUDGEMENTS:
            message = "This answer already has the maximum number of ratings."
            raise invalid_request(message, None, "judged_already", 409)
        if place > 1:
            return True  # only the first counts: otherwise one caller could lower a model's quality at will
        try:
            learned = await self._store.feedback_to_learn(request_id=request_id, limit=1)
        except StoreError as error:  # the rating is kept: the next start learns it
            logger.warning("a rating is kept but not learned yet: %s", error)
            return True
        for model, features, judged in learned:
            self._report(QualityReported(model, features, judged))
        return True

    async def learn_recorded(self) -> None:
        """Teach the predictor the feedback of earlier runs."""
        for model, features, quality in await self._store.feedback_to_learn():
            self._report(QualityReported(model, features, quality, recorded=True))
