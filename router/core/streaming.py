"""When an engine is asked for a stream though its client wants none (`upstream_stream` of the fleet file).

The stream tells when the first token came. Where `SchedulerSettings.streams_when_needed` is set, a request goes without it
that nobody streams, that has no TTFT and no TPOT target, whose cost nothing bounds, and that no hedge can help. A share of
these is streamed all the same, drawn by the scheduler's generator: from them predictors learn TTFT and TPOT.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from router.core import hedging
from router.core.money.reservation import Funding
from router.core.settings import SchedulerSettings
from router.core.types import Request


def as_sent(request: Request, funding: Funding | None, settings: SchedulerSettings, rng: Random) -> Request:
    """The request as engines get it: without a stream if nothing needs one. The given one is not changed."""
    if not settings.streams_when_needed or needs_stream(request, funding, settings):
        return request
    if rng.random() < settings.streamed_share:
        return request
    return replace(request, engine_streams=False, hedges=False)


def needs_stream(request: Request, funding: Funding | None, settings: SchedulerSettings) -> bool:
    """Whether something needs the stream, or a request cannot have one anyway."""
    slo = request.slo
    return (
        request.client_streams
        or not request.engine_streams
        or (slo is not None and (slo.ttft_s is not None or slo.tpot_s is not None))
        or request.max_cost_usd is not None
        or funding is not None
        or (settings.hedge_share > 0 and hedging.may(request))
    )
