"""What `/metrics` tells, read back with Prometheus' own parser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.core.state import Instance
from router.core.types import Outcome
from router.gateway.fleet.scaling import Scaling
from router.gateway.telemetry import metrics as metrics_module
from router.gateway.telemetry.metrics import Metrics
from router.gateway.telemetry.series import TOKEN_BUCKETS, TTFT_BUCKETS
from router.store.queries import RecordCounts
from router.store.records import RequestRecord
from router.store.runs import Lost
from tests.metrics_page import idle_gateway, metrics_text

Samples = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    made.set_fleet(
        policies=["latency", "price"],
        models=["llama", "qwen"],
        aliases=["small"],
        instances={"gpu-0": "vllm", "gpu-1": "ollama"},
        keys=["team-a"],
    )
    return made


def record(**fields: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "api": "chat",
        "key_name": "team-a",
        "policy": "latency",
        "model_requested": "small",
        "model": "llama",
        "instance": "gpu-0",
        "attempts": 1,
        "prompt_tokens": 100,
        "output_tokens": 50,
        "ttft_s": 0.2,
        "tpot_s": 0.03,
        "e2e_s": 1.5,
        "cost_usd": 0.25,
        "predicted_ttft_s_p50": 0.1,
        "predicted_e2e_s_p50": 1.0,
        "predicted_output_tokens_p50": 100.0,
    }
    return RequestRecord("req", 0.0, **(values | fields))


def scrape(metrics: Metrics, **parts: Any) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(metrics_text(idle_gateway(metrics, **parts)).decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum over the samples that have these labels."""
    return sum(v for each, v in samples[name] if labels.items() <= each.items())


def test_requests_are_counted_by_what_became_of_them(metrics: Metrics) -> None:
    for _ in range(3):
        metrics.record(record())
    metrics.record(record(outcome=Outcome.LATE, instance="gpu-1"))
    metrics.record(RequestRecord("req", 0.0, Outcome.REJECTED_AUTH))
    samples = scrape(metrics)
    assert value(samples, "headway_requests_total") == 5
    both = {"policy": "latency", "model": "llama"}
    assert value(samples, "headway_requests_total", **both, instance="gpu-0", outcome="ok") == 3
    assert value(samples, "headway_requests_total", **both, instance="gpu-1", outcome="late") == 1
    assert value(samples, "headway_requests_total", policy="", model="", outcome="rejected_auth") == 1
    assert value(samples, "headway_spend_usd_total", policy="latency", model="llama", key="team-a") == 1.0


def test_a_counter_by_policy_begins_at_zero(metrics: Metrics) -> None:
    """A rule such as `increase(headway_budget_overruns_total[10m]) > 0` does not see a series that begins with 1."""
    before = scrape(metrics)
    for name in ("slo_offered", "slo_met", "attempts", "hedged", "budget_overruns", "budget_overrun_usd"):
        counted = {labels["policy"]: count for labels, count in before[f"headway_{name}_total"]}
        assert counted["latency"] == 0
    metrics.record(record(budget_overrun_usd=0.01))
    assert value(scrape(metrics), "headway_budget_overruns_total", policy="latency") == 1


def test_times_and_tokens_have_opentelemetrys_names_and_buckets(metrics: Metrics) -> None:
    metrics.record(record())
    samples = scrape(metrics)
    labels = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "vllm",
        "gen_ai_request_model": "small",
        "gen_ai_response_model": "llama",
        "server_address": "gpu-0",
    }
    ttft = "gen_ai_server_time_to_first_token_seconds"
    assert value(samples, f"{ttft}_sum", **labels) == 0.2
    assert value(samples, f"{ttft}_count", **labels) == 1
    bounds = [each["le"] for each, _ in samples[f"{ttft}_bucket"]]
    assert bounds == [*(repr(bound) for bound in TTFT_BUCKETS), "+Inf"]
    assert value(samples, f"{ttft}_bucket", le="0.1") == 0
    assert value(samples, f"{ttft}_bucket", le="0.25") == 1
    assert value(samples, "gen_ai_server_time_per_output_token_seconds_sum", **labels) == 0.03
    assert value(samples, "gen_ai_server_request_duration_seconds_sum", **labels) == 1.5
    usage = "gen_ai_client_token_usage"
    assert value(samples, f"{usage}_sum", **labels, gen_ai_token_type="input") == 100
    assert value(samples, f"{usage}_sum", **labels, gen_ai_token_type="output") == 50
    assert (TOKEN_BUCKETS[0], TOKEN_BUCKETS[-1]) == (1, 67108864)


def test_only_the_duration_is_told_apart_by_outcome(metrics: Metrics) -> None:
    """As in OpenTelemetry's conventions. With the outcome, each of these histograms would be there many times over."""
    for outcome in (Outcome.OK, Outcome.LATE, Outcome.CLIENT_CANCELLED):
        metrics.record(record(outcome=outcome))
    samples = scrape(metrics)
    for name in ("server_time_to_first_token_seconds", "server_time_per_output_token_seconds"):
        assert [value for _, value in samples[f"gen_ai_{name}_count"]] == [3]
    assert [value for _, value in samples["gen_ai_client_token_usage_count"]] == [3, 3]
    durations = samples["gen_ai_server_request_duration_seconds_count"]
    assert [(labels["error_type"], value) for labels, value in durations] == [
        ("", 2),
        ("client_cancelled", 1),
    ]


def test_a_bound_is_inclusive(metrics: Metrics) -> None:
    metrics.record(record(ttft_s=0.25))
    samples = scrape(metrics)
    assert value(samples, "gen_ai_server_time_to_first_token_seconds_bucket", le="0.25") == 1
    assert value(samples, "gen_ai_server_time_to_first_token_seconds_bucket", le="0.1") == 0


def test_predictions_are_held_against_what_happened(metrics: Metrics) -> None:
    metrics.record(record())
    metrics.record(record(outcome=Outcome.CLIENT_CANCELLED, output_tokens=1))  # says nothing of the length
    samples = scrape(metrics)
    labels = {"model": "llama", "instance": "gpu-0"}
    assert value(samples, "headway_prediction_ttft_ratio_sum", **labels) == pytest.approx(4.0)
    assert value(samples, "headway_prediction_e2e_ratio_sum", **labels) == pytest.approx(1.5)
    assert value(samples, "headway_prediction_output_tokens_ratio_sum", **labels) == pytest.approx(0.5)


def test_attainment_counts_as_the_contract_says(metrics: Metrics) -> None:
    for outcome, slo_ttft_s, met in (
        (Outcome.OK, 0.5, True),
        (Outcome.LATE, 0.5, False),
        (Outcome.REJECTED_SLO, 0.5, False),
        (Outcome.REJECTED_OVERLOAD, 0.5, None),
        (Outcome.OK, None, None),  # had no SLO
        (Outcome.CLIENT_CANCELLED, 0.5, False),  # these are outside
        (Outcome.REJECTED_INVALID, 0.5, False),
        (Outcome.REJECTED_AUTH, 0.5, False),
    ):
        metrics.record(record(outcome=outcome, slo_ttft_s=slo_ttft_s, slo_met=met))
    samples = scrape(metrics)
    assert value(samples, "headway_slo_offered_total", policy="latency") == 4
    assert value(samples, "headway_slo_met_total", policy="latency") == 1


def test_overruns(metrics: Metrics) -> None:
    metrics.record(record(max_cost_usd=0.2, budget_overrun_usd=0.05))
    metrics.record(record(max_cost_usd=0.2, budget_overrun_usd=0.0))
    samples = scrape(metrics)
    assert value(samples, "headway_budget_overruns_total", policy="latency") == 1
    assert value(samples, "headway_budget_overrun_usd_total") == 0.05


def all_labels(samples: Samples) -> set[str]:
    return {
        text for name, rows in samples.items() if not name.startswith("python") for row, _ in rows
        for text in row.values()
    }  # fmt: skip


def test_names_that_clients_make_up_are_no_labels(metrics: Metrics) -> None:
    evil = 'x"} 1\nheadway_requests_total{policy="'
    before = len(list(metrics.all_series()))
    for i in range(500):
        metrics.record(
            RequestRecord(
                "req",
                0.0,
                Outcome.REJECTED_INVALID,
                api=f"api-{i}",
                policy=f"policy-{i}",
                model_requested=f"{evil}{i}",
                model=f"model-{i}",
                instance=f"gpu-1{i}",
                key_name=f"key-{i}",
            )
        )
    assert len(list(metrics.all_series())) == before + 1
    samples = scrape(metrics)
    assert samples["headway_requests_total"] == [
        ({"policy": "other", "model": "other", "instance": "other", "outcome": "rejected_invalid"}, 500.0)
    ]
    assert not any("evil" in text or 'x"' in text or "policy-" in text for text in all_labels(samples))


@pytest.mark.parametrize(
    ("asked", "label"),
    [("llama", "llama"), ("small", "small"), ("auto", "auto"), ("auto:price", "auto"), ("llama:price", "llama"),
     ("gpt-5", "other"), ("gpt-5:price", "other"), (None, ""), ("", "")],
)  # fmt: skip
def test_the_model_asked_for_is_a_known_name(metrics: Metrics, asked: str | None, label: str) -> None:
    metrics.record(record(model_requested=asked))
    (labels, _) = scrape(metrics)["gen_ai_server_request_duration_seconds_count"][0]
    assert labels["gen_ai_request_model"] == label


def test_names_of_the_fleet_are_escaped(metrics: Metrics) -> None:
    odd = 'a "quoted"\\name\nof two lines'
    metrics.set_fleet(policies=[], models=[odd], instances={})
    metrics.record(record(model=odd))
    assert value(scrape(metrics), "headway_requests_total", model=odd) == 1


def test_the_number_of_series_is_bounded(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MAX_SERIES", 10)
    metrics.set_fleet(policies=[], models=[], instances={f"gpu-{i}": "vllm" for i in range(100)})
    for i in range(100):
        metrics.record(record(instance=f"gpu-{i}"))
    samples = scrape(metrics)
    assert len(samples["headway_requests_total"]) == 11
    assert value(samples, "headway_requests_total") == 100
    assert value(samples, "headway_requests_total", instance="other", outcome="ok") == 90


def test_counters_by_policy_keep_the_counts_of_instances_that_left(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_SERIES", 4)
    late = {"outcome": Outcome.LATE, "slo_ttft_s": 0.1, "slo_met": False, "budget_overrun_usd": 0.5}
    met = {"slo_ttft_s": 0.5, "slo_met": True, "hedged": True, "attempts": 2}
    names = ("slo_offered", "slo_met", "attempts", "hedged", "budget_overruns", "budget_overrun_usd")
    for left in ("gpu-0", "gpu-2"):
        metrics.set_fleet(policies=[], models=[], instances={left: "vllm", "gpu-1": "ollama"})
        for fields in (late, met):
            metrics.record(record(instance=left, **fields))
            metrics.record(record(instance="gpu-1", **fields))
        before = {name: scrape(metrics)[f"headway_{name}_total"] for name in names}
        metrics.set_fleet(policies=[], models=[], instances={"gpu-1": "ollama"})
        samples = scrape(metrics)
        assert "headway_requests_total" in samples
        assert left not in {labels["instance"] for labels, _ in samples["headway_requests_total"]}
        assert {name: samples[f"headway_{name}_total"] for name in names} == before
    assert value(samples, "headway_slo_offered_total", policy="latency") == 8


def test_gauges_are_read_at_the_scrape(metrics: Metrics) -> None:
    fleet = {
        "gpu-0": Instance("gpu-0", "vllm", {}, in_flight=3),
        "gpu-1": Instance("gpu-1", "ollama", {}, healthy=False, ejections=2),
        "gpu-2": Instance("gpu-2", "vllm", {}, starting=True),
    }
    scheduler = SimpleNamespace(queue_depth=7, live=0, instances=fleet)
    counts = RecordCounts(finished=10, recorded=8, dropped=1, pending=1, lost=Lost(5, 6))
    parts = {
        "runner": SimpleNamespace(scheduler=scheduler),
        "scaling": lambda: [Scaling("llama", 2, 1, 3, 7, 2), Scaling("qwen", 0, 0, 0, 0, None)],
        "store": SimpleNamespace(counts=lambda: counts),
    }
    samples = scrape(metrics, **parts)
    assert value(samples, "headway_queue_depth") == 7
    assert value(samples, "headway_instance_in_flight", instance="gpu-0") == 3
    assert value(samples, "headway_instance_health", instance="gpu-0") == 1
    assert value(samples, "headway_instance_health", instance="gpu-1") == 0
    assert value(samples, "headway_instance_ejections_total", instance="gpu-1") == 2
    assert [labels["instance"] for labels, _ in samples["headway_instance_health"]] == ["gpu-0", "gpu-1"]
    assert [labels["model"] for labels, _ in samples["headway_desired_replicas"]] == ["llama"]
    assert value(samples, "headway_desired_replicas", model="llama") == 2
    assert value(samples, "headway_records_lost_total", stage="finished") == 5
    assert value(samples, "headway_records_lost_total", stage="in_flight") == 6
    assert value(samples, "headway_records_dropped_total") == 1
    assert value(samples, "headway_records_pending") == 1
    scheduler.queue_depth = 0
    fleet.clear()
    samples = scrape(metrics, **parts)
    assert value(samples, "headway_queue_depth") == 0
    assert "headway_instance_in_flight" not in samples


def test_decision_times_by_policy(metrics: Metrics) -> None:
    metrics.observe_decision("latency", 0.0002)
    metrics.observe_decision("made-up", 0.0002)
    samples = scrape(metrics)
    assert [labels["policy"] for labels, _ in samples["headway_decision_seconds_count"]] == ["latency"]
    assert value(samples, "headway_decision_seconds_bucket", le="0.00025") == 1


def test_two_processes_worth_of_metrics_do_not_meet(metrics: Metrics) -> None:
    metrics.record(record())
    assert "headway_requests_total" not in scrape(Metrics())


def test_records_are_counted_together_and_a_faulty_one_spares_the_others(metrics: Metrics) -> None:
    broken = record()
    broken.e2e_s = "soon"  # type: ignore[assignment]
    metrics.record(record())
    metrics.record(broken)
    for _ in range(metrics_module._COUNTED_AT_ONCE):
        metrics.record(record())
    samples = scrape(metrics)
    counted = value(samples, "gen_ai_server_request_duration_seconds_count", server_address="gpu-0")
    assert counted == metrics_module._COUNTED_AT_ONCE + 1
