"""Where gauges come from: read whenever `/metrics` is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from predictors.online.predictor import OnlinePredictor
from router.core.state import Instance
from router.gateway.telemetry.stalls import StallWatch
from router.store.queries import RecordCounts
from router.store.state import StateHealth


class BudgetLevel(NamedTuple):
    """How far one budget of a key is used: `period` is `day` or `total`, `limit_usd` None where it has no bound."""

    key: str
    period: str
    spent_usd: float
    limit_usd: float | None


@dataclass(slots=True)
class Sources:
    """Functions that read the state of the process at a scrape. None: there is no such thing here.

    `desired_replicas` is by model, `pools` has the last decision's pools as `GET /admin/scaling` shows them. `live` counts
    requests that are queued or running. `connections` gives the open connections of clients and, by reason, those that the
    server closed. `judged` counts judged answers by result, `checked` those that were checked before their clients got them.
    """

    instances: Callable[[], Iterable[Instance]] = tuple
    queue_depth: Callable[[], int] | None = None
    live: Callable[[], int] | None = None
    desired_replicas: Callable[[], Mapping[str, int]] = dict
    pools: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    records: Callable[[], RecordCounts] | None = None
    state: Callable[[], StateHealth] | None = None
    budgets: Callable[[], Iterable[BudgetLevel]] = tuple
    connections: Callable[[], tuple[int, Mapping[str, int]]] | None = None
    predictor: OnlinePredictor | None = None
    stalls: StallWatch | None = None
    judged: Callable[[], Mapping[str, int]] | None = None
    checked: Callable[[], Mapping[str, int]] | None = None
