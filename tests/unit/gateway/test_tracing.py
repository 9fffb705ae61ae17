"""Spans of requests: ids, times, attributes, and that they reach a collector over OTLP."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._shared_internal import BatchProcessor
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from router.core.types import EndedHow, Outcome
from router.gateway.telemetry.span_exporter import ReportedExporter
from router.gateway.telemetry.tracing import Tracing
from router.store.records import RequestRecord
from tests.records import make_attempt

KINDS = {"a": "vllm", "b": "ollama"}
CALLER = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def record() -> RequestRecord:
    made = RequestRecord("req_1", 1000.0, Outcome.OK, api="chat", key_name="team-a", policy="slo")
    made.model, made.instance, made.e2e_s, made.queue_wait_s = "llama-3.1-8b", "b", 3.0, 0.5
    made.finish_reason, made.prompt_tokens, made.output_tokens = "stop", 12, 34
    made.prompt = "the secret prompt"
    made.arrived_at, made.span_ids = 10.0, {1: None, 2: 7}
    failed = make_attempt(
        *(1, "a", "llama-3.1-8b", 10.5), ended_at=11.0, ended_how=EndedHow.FAILED, error="503"
    )
    answered = make_attempt(
        *(2, "b", "llama-3.1-8b", 11.0), first_token_at=11.25, ended_at=13.0, ended_how=EndedHow.OK
    )
    made.attempt_states = [failed, answered]
    return made


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()  # type: ignore[no-untyped-call]


def spans(tracing: Tracing, exporter: InMemorySpanExporter) -> Sequence[ReadableSpan]:
    tracing.close()
    return exporter.get_finished_spans()


def test_a_request_is_a_span_with_its_wait_and_its_attempts(exporter: InMemorySpanExporter) -> None:
    tracing = Tracing(None, 1.0, "0", exporter)
    trace = tracing.begin({b"traceparent": CALLER})
    assert trace.parent_of(7) == "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01"
    tracing.end(record(), trace, KINDS.__getitem__)
    root, queue, failed, answered = spans(tracing, exporter)
    assert {f"{each.context.trace_id:032x}" for each in (root, queue, failed, answered)} == {
        CALLER[3:35].decode()
    }
    assert (f"{root.parent.span_id:016x}", root.parent.is_remote) == (CALLER[36:52].decode(), True)
    assert [each.parent.span_id for each in (queue, failed, answered)] == [trace.span_id] * 3
    assert (root.name, root.kind) == ("chat llama-3.1-8b", SpanKind.SERVER)
    assert root.status.status_code == StatusCode.UNSET
    assert (root.start_time, root.end_time) == (1_000_000_000_000, 1_003_000_000_000)
    assert root.attributes["gen_ai.usage.output_tokens"] == 34
    assert root.attributes["headway.request_id"] == "req_1"
    assert root.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert (queue.start_time, queue.end_time) == (1_000_000_000_000, 1_000_500_000_000)
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "upstream_error"
    providers = [each.attributes["gen_ai.provider.name"] for each in (root, failed, answered)]
    assert providers == ["headway", "vllm", "ollama"]
    assert answered.context.span_id == 7
    assert [(event.name, event.timestamp) for event in answered.events] == [
        ("first_token", 1_001_250_000_000)
    ]
    assert root.resource.attributes["service.name"] == "headway"
    assert "secret" not in "".join(each.to_json() for each in (root, queue, failed, answered))


def test_a_refusal_is_an_error(exporter: InMemorySpanExporter) -> None:
    tracing = Tracing(None, 1.0, "0", exporter)
    trace = tracing.begin({})
    assert trace.parent_id is None
    refused = RequestRecord("req_2", 1.0, Outcome.REJECTED_INVALID, api="embeddings")
    refused.model_requested, refused.error_code = "no-such\ud800", "model_not_found"
    tracing.end(refused, trace, KINDS.__getitem__)
    (root,) = spans(tracing, exporter)
    assert (root.name, root.parent) == ("embeddings", None)
    assert root.attributes["error.type"] == "rejected_invalid"
    assert root.attributes["headway.error_code"] == "model_not_found"
    assert root.attributes["gen_ai.request.model"] == "no-such\ufffd"


@pytest.mark.parametrize(
    "told",
    [
        b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-4BF92F-00f067aa0ba902b7-01",
        b"",
    ],
)
def test_a_wrong_traceparent_begins_a_trace(told: bytes, exporter: InMemorySpanExporter) -> None:
    tracing = Tracing(None, 1.0, "0", exporter)
    trace = tracing.begin({b"traceparent": told})
    assert trace.parent_id is None
    assert f"{trace.trace_id:032x}" != CALLER[3:35].decode()
    tracing.close()


def test_the_caller_decides_else_the_share(exporter: InMemorySpanExporter) -> None:
    never = Tracing(None, 0.0, "0", exporter)
    assert not never.begin({}).sampled
    assert never.begin({b"traceparent": CALLER}).sampled
    always = Tracing(None, 1.0, "0", exporter)
    unsampled = always.begin({b"traceparent": CALLER[:-2] + b"00"})
    assert not unsampled.sampled
    assert unsampled.parent_of(7) == "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-00"
    half = Tracing(None, 0.5, "0", exporter)
    assert 300 < sum(half.begin({}).sampled for _ in range(1000)) < 700
    for each in (never, always, half):
        each.close()


def test_a_collector_that_is_away_is_logged_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away(SpanExporter):
        tries = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            self.tries += 1
            if self.tries in (3, 4, 6):
                return SpanExportResult.SUCCESS
            for name in (OTLPSpanExporter.__module__, BatchProcessor.__module__):
                logging.getLogger(name).warning("try %d", self.tries)
            return SpanExportResult.FAILURE

        def shutdown(self) -> None: ...

    exporter = ReportedExporter(Away())
    for _ in range(6):
        exporter.export([])
    assert caplog.messages == [
        "traces cannot be sent: try 1",
        "traces are sent again",
        "traces cannot be sent: try 5",
        "traces are sent again",
    ]
    exporter.close()
    logging.getLogger(OTLPSpanExporter.__module__).warning("of another exporter")
    assert caplog.messages[-1] == "of another exporter"


def test_a_collector_that_is_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor would try each of its batches for ten seconds."""

    class Away(SpanExporter):
        tries = 0
        stopped = threading.Event()

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            self.tries += not self.stopped.wait(60)
            return SpanExportResult.FAILURE

        def shutdown(self) -> None:
            self.stopped.set()

    monkeypatch.setattr("router.gateway.telemetry.tracing._CLOSE_S", 0.05)
    away = Away()
    tracing = Tracing(None, 1.0, "0", away)
    for _ in range(400):  # of three spans each
        tracing.end(record(), tracing.begin({}), KINDS.__getitem__)
    tracing.close()
    assert away.tries == 0


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(SpanExporter):
        answered = threading.Event()

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            self.answered.wait(60)
            return SpanExportResult.SUCCESS

    monkeypatch.setattr("router.gateway.telemetry.tracing._CLOSE_S", 0.05)
    silent = Silent()
    tracing = Tracing(None, 1.0, "0", silent)
    tracing.end(record(), tracing.begin({}), KINDS.__getitem__)
    began = time.monotonic()
    tracing.close()
    assert time.monotonic() - began < 15
    silent.answered.set()
