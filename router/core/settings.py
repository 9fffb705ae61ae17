"""The scheduler's settings in a fleet file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`confidence`: a hard SLO is accepted only if some candidate meets it with at least this probability. `max_queue`:
    requests that may wait for a slot. `max_attempts`: attempts that a request may have. `eject_after`: consecutive
    failures that eject an instance. `return_after`: consecutive successful probes after which it returns.
    `hedge_share`: the largest share of requests that get a second attempt beside a late first one (0: none).
    `hedge_worth`: the value of a met SLO for a hedge, in prices of an answer. `explore`: the share of decisions that
    try another option. `streams_when_needed`: answers that nobody needs as a stream are asked for in one piece, except a
    `streamed_share` of them (`router.core.streaming`).
    """

    confidence: float = 0.9
    max_queue: int = 512
    max_attempts: int = 3
    eject_after: int = 3
    return_after: int = 2
    hedge_share: float = 0.0
    hedge_worth: float = 3.0
    explore: float = 0.0
    streams_when_needed: bool = False
    streamed_share: float = 0.05
