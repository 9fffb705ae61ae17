"""The metrics page of a process, made at once."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest

from router.gateway.telemetry.families import families
from router.gateway.telemetry.metrics import Metrics
from router.gateway.telemetry.scrapes import PROCESS


def metrics_text(metrics: Metrics) -> bytes:
    made = ["".join([each.head, *each.samples("")]) for each in families(metrics)]
    return "".join(made).encode() + generate_latest(PROCESS)
