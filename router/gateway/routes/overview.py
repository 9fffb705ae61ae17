"""The figures of the page at /ui: `GET /admin/overview`, and the fleet's last minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query

from router.gateway.routes.access import admin_router
from router.gateway.service import Gateway
from router.store.overview import overview, recent_by_instance
from router.store.overview_figures import Window

MAX_WINDOW_S = 31 * 86400
#: An answer is reused for this many times the time that it took to make. So the database spends a bounded share of its time
#: on pages, however many are open.
_REUSED_TIMES = 4.0
_KEPT_ANSWERS = 16


class Shared:
    """Runs one computation at a time and reuses each answer for a while, longer if it was expensive."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._answers: dict[object, tuple[float, Any]] = {}  # good until, the answer

    async def get(self, key: object, make: Callable[[], Awaitable[Any]]) -> Any:
        async with self._lock:
            good_until, answer = self._answers.get(key, (0.0, None))
            if answer is not None and self._clock() < good_until:
                return answer
            began = self._clock()
            answer = await make()
            ended = self._clock()
            self._answers.pop(key, None)
            self._answers[key] = ended + _REUSED_TIMES * (ended - began), answer
            while len(self._answers) > _KEPT_ANSWERS:
                del self._answers[next(iter(self._answers))]
            return answer


def overview_routes(gateway: Gateway) -> APIRouter:
    """Aggregates of the records. Each call needs the admin key; without one set it must come from this machine."""

    router = admin_router()
    windows, recent = Shared(), Shared()

    @router.get("/overview")
    async def get_overview(
        window_s: Annotated[float, Query(ge=60, le=MAX_WINDOW_S, allow_inf_nan=False)] = 3600,
        buckets: Annotated[int, Query(ge=1, le=120)] = 60,
    ) -> dict[str, Any]:
        """The last `window_s` seconds in `buckets` equal parts: attainment, goodput, outcomes (before and after decoding
        began), quantiles of TTFT, TPOT and E2E, actual over predicted values, spending by policy, model and key, tokens.
        Of very many requests a share is read (`sampled_share`) and the figures are scaled up."""
        return dict(
            await windows.get(
                (window_s, buckets),
                lambda: overview(gateway.store, Window.ending(time.time(), window_s, buckets)),
            )
        )

    @router.get("/overview/instances")
    async def get_instances(
        window_s: Annotated[float, Query(ge=1, le=3600, allow_inf_nan=False)] = 60,
    ) -> dict[str, Any]:
        """By instance, of the requests that ended in the last `window_s` seconds: how many, mean actual and predicted
        TTFT, the share within the predicted 95 % quantile, and the output tokens."""
        longest_s = gateway.config.limits.request_timeout_s
        instances = await recent.get(window_s, lambda: recent_by_instance(gateway.store, window_s, longest_s))
        return {"window_s": window_s, "instances": instances}

    return router
