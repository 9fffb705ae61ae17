"""Metric families of requests: OpenTelemetry's GenAI histograms, outcomes, SLOs, cost, predictions, decisions."""

from __future__ import annotations

from collections.abc import Iterator

from router.gateway.telemetry.exposition import Family, counter, histogram
from router.gateway.telemetry.metrics import SUCCESS, Metrics
from router.gateway.telemetry.series import Labels, Series

_Counted = list[tuple[Labels, Series]]


def request_families(metrics: Metrics) -> Iterator[Family]:
    """The families that are made from counted requests."""
    series = list(metrics.all_series())
    yield from _gen_ai(metrics, series)
    yield from _requests(metrics, series)
    yield from _predictions(series)
    yield histogram(
        "headway_decision_seconds",
        "Time that the scheduler took to decide one request.",
        ("policy",),
        (((policy,), times) for policy, times in sorted(metrics.decisions.items())),
    )


def _gen_ai(metrics: Metrics, series: _Counted) -> Iterator[Family]:
    names = (
        "gen_ai_operation_name",
        "gen_ai_provider_name",
        "gen_ai_request_model",
        "gen_ai_response_model",
        "server_address",
        "error_type",
        "headway_policy",
    )
    labelled = []
    for each, one in series:
        kind, error = metrics.kind(each.instance), "" if each.outcome in SUCCESS else each.outcome.value
        values = (each.operation, kind, each.requested, each.model, each.instance, error, each.policy)
        labelled.append((values, one))
    text = "Time from arrival to the first token, queue included; server_address is the instance."
    times = [(values, one.ttft) for values, one in labelled]
    yield histogram("gen_ai_server_time_to_first_token_seconds", text, names, times)
    text = "Mean time per output token after the first."
    times = [(values, one.tpot) for values, one in labelled]
    yield histogram("gen_ai_server_time_per_output_token_seconds", text, names, times)
    text = "Time from arrival to the end of the request."
    times = [(values, one.duration) for values, one in labelled]
    yield histogram("gen_ai_server_request_duration_seconds", text, names, times)
    yield histogram(
        "gen_ai_client_token_usage",
        "Input and output tokens of a request.",
        (*names, "gen_ai_token_type"),
        [((*values, "input"), one.input_tokens) for values, one in labelled]
        + [((*values, "output"), one.output_tokens) for values, one in labelled],
    )


def _requests(metrics: Metrics, series: _Counted) -> Iterator[Family]:
    yield counter(
        "headway_requests",
        "Requests that reached the router.",
        ("policy", "model", "instance", "outcome"),
        (
            ((each.policy, each.model, each.instance, each.outcome.value), one.requests)
            for each, one in series
        ),
    )
    yield counter("headway_spend_usd", "Cost of all attempts.", ("policy", "model", "key"), metrics.spend())
    for name, text, counted in (
        ("slo_offered", "Requests with an SLO that count for attainment.", "offered"),
        ("slo_met", "Requests that met all targets of their SLO.", "met"),
        (
            "attempts",
            "Times that requests were sent to an instance, retries and hedges included.",
            "attempts",
        ),
        ("hedged", "Requests that got a hedge, a second attempt beside a late first one.", "hedged"),
        ("budget_overruns", "Requests whose cost exceeded their cap.", "overruns"),
        ("budget_overrun_usd", "Cost beyond the caps.", "overrun_usd"),
    ):
        values = [((each.policy,), getattr(one, counted)) for each, one in series]
        yield counter(f"headway_{name}", text, ("policy",), values)


def _predictions(series: _Counted) -> Iterator[Family]:
    for quantity, text in (
        ("ttft", "time to the first token"),
        ("e2e", "time of the whole request"),
        ("output_tokens", "output tokens"),
    ):
        ratios = [((each.model, each.instance), getattr(one, f"ratio_{quantity}")) for each, one in series]
        yield histogram(
            f"headway_prediction_{quantity}_ratio",
            f"Actual over predicted (median): {text}.",
            ("model", "instance"),
            ratios,
        )
