"""Sends spans. Logs one line when sending begins to fail, and one when it works again.

OpenTelemetry's exporter logs each attempt to send. This module needs the extra `otel`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger("headway")

#: Where the exporter and the queue of spans before it log.
_LOGGERS = (OTLPSpanExporter.__module__, "opentelemetry.sdk._shared_internal")


class ReportedExporter(SpanExporter):
    """Sends spans by another exporter, whose log lines it replaces until it is closed."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._replaces)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if self._failing and result is SpanExportResult.SUCCESS:
            self._failing = False
            logger.warning("traces are sent again")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def close(self) -> None:
        """Let through what other exporters log. Call it when nothing is sent any more."""
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._replaces)

    def _replaces(self, record: logging.LogRecord) -> bool:
        if not self._failing:
            self._failing = True
            logger.warning("traces cannot be sent: %s", record.getMessage())
        return False
