"""OpenTelemetry traces: one span a request, and under it its wait in the queue and each of its attempts.

Spans are made from the record when a request has ended, so the relay only needs ids. The ids are drawn when the request
arrives, because engines get them (`traceparent`, W3C Trace Context): a vLLM's own spans become children of ours. Names and
attributes follow OpenTelemetry's semantic conventions for generative AI spans. They contain no prompt and no answer.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from router.core.types import EndedHow
from router.gateway.telemetry.metrics import OPERATIONS, SUCCESS
from router.store.entries import clean

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from router.store.records import RequestRecord

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")

#: At the end, waiting spans are sent for at most this long.
_CLOSE_S = 3.0
_LAST_S = 0.5


class Trace(NamedTuple):
    """A request's place in a trace. `span_id` is its own, `parent_id` its caller's (None: it begins the trace). Spans are
    sent only if it is `sampled`; engines are told so, or they would begin traces of their own."""

    trace_id: int
    span_id: int
    parent_id: int | None
    sampled: bool

    def parent_of(self, span_id: int) -> str:
        """The `traceparent` of a call inside the span `span_id`."""
        return f"00-{self.trace_id:032x}-{span_id:016x}-{self.sampled:02x}"


def new_span_id() -> int:
    """A span's id, never 0."""
    return secrets.randbits(64) or 1


class Tracing:
    """Draws ids and sends spans. Raises ModuleNotFoundError without the extra `otel`."""

    def __init__(
        self, endpoint: str | None, sample: float, version: str, exporter: SpanExporter | None = None
    ) -> None:
        """`exporter` in place of OTLP over HTTP to `endpoint`."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        from router.gateway.telemetry.span_exporter import ReportedExporter

        resource = Resource.create()  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes.get("service.name")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "headway"}))
        self._resource = resource
        self._scope = InstrumentationScope("headway", version)
        self._exporter = ReportedExporter(exporter or OTLPSpanExporter(endpoint=endpoint))
        self._processor = BatchSpanProcessor(self._exporter)
        self._sample = sample
        self._rng = Random(secrets.randbits(64))

    def begin(self, headers: Mapping[bytes, bytes]) -> Trace:
        """The trace of a request that arrives. A caller's `traceparent` decides whether it is sampled."""
        given = _TRACEPARENT.fullmatch(headers.get(b"traceparent", b"").strip())
        if given is not None and given[1] != b"ff" and int(given[2], 16) and int(given[3], 16):
            sampled = bool(int(given[4], 16) & 1)
            return Trace(int(given[2], 16), new_span_id(), int(given[3], 16), sampled)
        return Trace(secrets.randbits(128) or 1, new_span_id(), None, self._rng.random() < self._sample)

    def end(self, record: RequestRecord, trace: Trace, kind_of: Callable[[str], str]) -> None:
        """Send the spans of a request that has ended. `kind_of` is the engine kind of an instance."""
        operation = OPERATIONS.get(record.api or "", "chat")
        name = f"{operation} {record.model or ''}".strip()
        times = record.received_at, record.received_at + (record.e2e_s or 0.0)
        attributes = _request_attributes(record, operation)
        failed = None if record.outcome in SUCCESS else record.outcome.value
        self._send(trace, trace.span_id, trace.parent_id, name, "SERVER", times, attributes, failed)
        if record.queue_wait_s:
            times = record.received_at, record.received_at + record.queue_wait_s
            attributes = {"headway.policy": record.policy}
            self._send(trace, new_span_id(), trace.span_id, "queue", "INTERNAL", times, attributes)
        since, span_ids = record.received_at - (record.arrived_at or 0.0), record.span_ids or {}
        for each in record.attempt_states:
            candidate, how = each.candidate, each.ended_how
            span_id, name = span_ids.get(each.number) or new_span_id(), f"attempt {candidate.instance}"
            times = since + each.dispatched_at, since + (each.ended_at or each.dispatched_at)
            attributes = {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": kind_of(candidate.instance),
                "gen_ai.request.model": candidate.model,
                "server.address": candidate.instance,
                "headway.attempt": each.number,
                "headway.ended_how": None if how is None else how.value,
                "gen_ai.usage.output_tokens": each.output_tokens,
                "headway.cost_usd": each.cost_usd,
            }
            failed = "upstream_error" if how is EndedHow.FAILED else None
            first_at = None if each.first_token_at is None else since + each.first_token_at
            self._send(trace, span_id, trace.span_id, name, "CLIENT", times, attributes, failed, first_at)

    def _send(
        self,
        trace: Trace,
        span_id: int,
        parent_id: int | None,
        name: str,
        kind: str,
        times: tuple[float, float],
        attributes: Mapping[str, Any],
        failed: str | None = None,
        first_token_at: float | None = None,
    ) -> None:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(of: int, *, remote: bool = False) -> SpanContext:
            return SpanContext(trace.trace_id, of, remote, TraceFlags(TraceFlags.SAMPLED))

        known = {key: value for key, value in attributes.items() if value is not None}
        if failed is not None:
            known["error.type"] = failed
        remote = parent_id is not None and parent_id == trace.parent_id
        began, ended = times
        self._processor.on_end(
            ReadableSpan(
                name,
                context=context(span_id),
                parent=None if parent_id is None else context(parent_id, remote=remote),
                resource=self._resource,
                attributes=known,
                events=()
                if first_token_at is None
                else (Event("first_token", timestamp=int(first_token_at * 1e9)),),
                kind=SpanKind[kind],
                status=Status(StatusCode.UNSET if failed is None else StatusCode.ERROR),
                start_time=int(began * 1e9),
                end_time=int(max(began, ended) * 1e9),
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        """Send waiting spans within a few seconds, and stop. Blocks: call it in a thread."""
        # The processor sends every batch, and the exporter tries each again for 10 s, until it is shut down. It then still
        # waits for the answer to what it has sent: such a wait ends with the process.
        closing = Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            self._exporter.shutdown()
            closing.join(_LAST_S)
        self._exporter.close()


def _request_attributes(record: RequestRecord, operation: str) -> dict[str, Any]:
    finish = record.finish_reason
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "headway",
        "gen_ai.request.model": clean(record.model_requested),
        "gen_ai.response.model": record.model,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.response.finish_reasons": None if finish is None else (finish,),
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "server.address": record.instance,
        "headway.request_id": record.id,
        "headway.api": record.api,
        "headway.key": record.key_name,
        "headway.policy": record.policy,
        "headway.outcome": record.outcome.value,
        "headway.error_code": record.error_code,
        "headway.attempts": record.attempts,
        "headway.hedged": record.hedged,
        "headway.candidates": len(record.decisions[0].considered) if record.decisions else None,
        "headway.propensity": record.propensity,
        "headway.queue_wait_s": record.queue_wait_s,
        "headway.ttft_s": record.ttft_s,
        "headway.tpot_s": record.tpot_s,
        "headway.predicted_ttft_s": record.predicted_ttft_s_p50,
        "headway.predicted_e2e_s": record.predicted_e2e_s_p50,
        "headway.cost_usd": record.cost_usd,
        "headway.slo_met": record.slo_met,
    }
