"""The metrics page of a process, made at once, and a gateway that has nothing but metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from predictors.online.predictor import OnlinePredictor
from router.config import ScalingConfig
from router.gateway.scraping import families, process_families
from router.gateway.telemetry.metrics import Metrics
from router.gateway.telemetry.stalls import StallWatch
from router.store.memory_state import MemoryState
from router.store.queries import RecordCounts
from router.store.runs import Lost


def metrics_text(gateway: Any) -> bytes:
    found = (*families(gateway), *process_families())
    return "".join(["".join([each.head, *each.samples("")]) for each in found]).encode()


def idle_gateway(metrics: Metrics, **parts: Any) -> Any:
    """A gateway without instances, keys and records, as far as a scrape reads it; `parts` replace its own."""
    nothing: dict[str, Any] = {
        "metrics": metrics,
        "predictor": OnlinePredictor(),
        "runner": SimpleNamespace(scheduler=SimpleNamespace(queue_depth=0, live=0, instances={})),
        "scaling": list,
        "config": SimpleNamespace(scaling=ScalingConfig()),
        "decision": None,
        "store": SimpleNamespace(counts=lambda: RecordCounts(0, 0, 0, 0, Lost())),
        "rules": SimpleNamespace(working={}),
        "state": MemoryState(),
        "judged": {},
        "checked": {},
        "connections": lambda: (0, {}),
        "stalls": StallWatch(),
    }
    return SimpleNamespace(**(nothing | parts))
