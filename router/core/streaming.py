"""Whether the engine streams an answer that its client gets in one piece (`upstream_stream` of the fleet file).

A stream shows when the first token came. With `SchedulerSettings.streams_when_needed` an answer is streamed only if a target
for TTFT or TPOT, a bound on its cost, or a hedge needs that. A share of the others, drawn at random, is streamed too:
predictors learn TTFT and TPOT from them.
"""

from __future__ import annotations

from operator import attrgetter
from random import Random

from router.core import hedging
from router.core.money.reservation import Funding
from router.core.settings import SchedulerSettings
from router.core.types import Request

_values = attrgetter(*Request.__match_args__)


def as_sent(request: Request, funding: Funding | None, settings: SchedulerSettings, rng: Random) -> Request:
    """The request as engines get it: without a stream if nothing needs one. The given one is not changed."""
    if not settings.streams_when_needed or needs_stream(request, funding, settings):
        return request
    if rng.random() < settings.streamed_share:
        return request
    sent = Request(*_values(request))  # `replace` takes ten times as long
    sent.engine_streams = sent.hedges = False
    return sent


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
