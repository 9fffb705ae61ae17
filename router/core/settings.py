"""What a fleet file sets of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`confidence`: a hard SLO is accepted only if some candidate keeps it with at least this probability.
    `max_queue`: requests that may wait for a slot. `max_attempts`: attempts a request may have. `eject_after`: failures in a
    row that eject an instance; `return_after`: good probes in a row that bring it back. `hedge_share`: the greatest share of
    requests that get a second attempt beside a late first one (0: none), `hedge_worth` what a kept SLO is worth to it, in
    prices of an answer. `explore`: share of decisions that try another option."""

    confidence: float = 0.9
    max_queue: int = 512
    max_attempts: int = 3
    eject_after: int = 3
    return_after: int = 2
    hedge_share: float = 0.0
    hedge_worth: float = 3.0
    explore: float = 0.0
