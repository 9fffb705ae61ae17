"""Metric families, made from what was counted at the time of a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from router.gateway.histogram import Histogram

if TYPE_CHECKING:
    from router.gateway.metrics import Labels, Metrics, Series


class Families(Collector):
    """Metric families made from what was counted, at the time of a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        """Nothing beforehand: reading the fleet while it is being built would be too early."""
        return []

    def collect(self) -> Iterator[Metric]:
        series = list(self._metrics.all_series())
        yield from self._gen_ai(series)
        yield from self._requests(series)
        yield from self._predictions(series)
        yield from self._predictors()
        yield self._decisions()
        yield from self._fleet()
        yield from self._records()
        yield from self._budgets()
        yield from self._state()

    def _gen_ai(self, series: list[tuple[Labels, Series]]) -> Iterator[Metric]:
        names = (
            "gen_ai_operation_name",
            "gen_ai_provider_name",
            "gen_ai_request_model",
            "gen_ai_response_model",
            "server_address",
            "error_type",
            "headway_policy",
        )

        def labels(each: Labels) -> tuple[str, ...]:
            return (
                each.operation,
                self._metrics.kind(each.instance),
                each.requested,
                each.model,
                each.instance,
                each.error,
                each.policy,
            )

        answered = [(labels(each), one) for each, one in series]
        yield _histograms(
            "gen_ai_server_time_to_first_token_seconds",
            "Time from arrival to the first token, queue included; server_address is the instance.",
            names,
            ((values, one.ttft) for values, one in answered),
        )
        yield _histograms(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time per output token after the first.",
            names,
            ((values, one.tpot) for values, one in answered),
        )
        yield _histograms(
            "gen_ai_server_request_duration_seconds",
            "Time from arrival to the end of the request.",
            names,
            ((values, one.duration) for values, one in answered),
        )
        yield _histograms(
            "gen_ai_client_token_usage",
            "Input and output tokens of a request.",
            (*names, "gen_ai_token_type"),
            [((*values, "input"), one.input_tokens) for values, one in answered]
            + [((*values, "output"), one.output_tokens) for values, one in answered],
        )

    @staticmethod
    def _requests(series: list[tuple[Labels, Series]]) -> Iterator[Metric]:
        yield _counters(
            "headway_requests",
            "Requests that reached the router.",
            ("policy", "model", "instance", "outcome"),
            (((each.policy, each.model, each.instance, each.outcome), one.requests) for each, one in series),
        )
        slo = ("policy",)
        yield _counters(
            "headway_slo_offered",
            "Requests with an SLO that count for attainment.",
            slo,
            (((each.policy,), one.offered) for each, one in series),
        )
        yield _counters(
            "headway_slo_met",
            "Requests that met all targets of their SLO.",
            slo,
            (((each.policy,), one.met) for each, one in series),
        )
        yield _counters(
            "headway_spend_usd",
            "Cost of all attempts.",
            ("policy", "model", "key"),
            (((each.policy, each.model, each.key), one.cost_usd) for each, one in series),
        )
        by_policy = ("policy",)
        yield _counters(
            "headway_attempts",
            "Times that requests were sent to an instance, retries and hedges included.",
            by_policy,
            (((each.policy,), one.attempts) for each, one in series),
        )
        yield _counters(
            "headway_hedged",
            "Requests that got a second attempt beside a late first one.",
            by_policy,
            (((each.policy,), one.hedged) for each, one in series),
        )
        yield _counters(
            "headway_budget_overruns",
            "Requests whose cost passed their cap.",
            slo,
            (((each.policy,), one.overruns) for each, one in series),
        )
        yield _counters(
            "headway_budget_overrun_usd",
            "Cost beyond the caps.",
            slo,
            (((each.policy,), one.overrun_usd) for each, one in series),
        )

    @staticmethod
    def _predictions(series: list[tuple[Labels, Series]]) -> Iterator[Metric]:
        names = ("model", "instance")
        for quantity, text in (
            ("ttft", "time to the first token"),
            ("e2e", "time of the whole request"),
            ("output_tokens", "output tokens"),
        ):
            attribute = f"ratio_{quantity}"
            yield _histograms(
                f"headway_prediction_{quantity}_ratio",
                f"Actual over predicted (median): {text}.",
                names,
                (((each.model, each.instance), getattr(one, attribute)) for each, one in series),
            )

    def _predictors(self) -> Iterator[Metric]:
        predictor = self._metrics.predictor
        if predictor is None:
            return
        info = GaugeMetricFamily("headway_predictor_info", "Artifacts in use.", labels=["kind", "artifact"])
        for kind, about in predictor.models.about.items():
            info.add_metric([kind, str(about["artifact"])], 1.0)
        group = ["model", "hardware"]
        believed = GaugeMetricFamily(
            "headway_predictor_believed",
            "1 while the latency model serves, 0: the physical one.",
            labels=group,
        )
        alarms = CounterMetricFamily(
            "headway_predictor_alarms", "Times the latency model's predictions did not hold.", labels=group
        )
        covered = GaugeMetricFamily(
            "headway_predictor_coverage",
            "Share of recent TTFTs within a predicted quantile.",
            labels=[*group, "of", "quantile"],
        )
        error = GaugeMetricFamily(
            "headway_predictor_error", "Mean |ln(actual / predicted median TTFT)|.", labels=[*group, "of"]
        )
        for (model, hardware), trust in predictor.groups().items():
            believed.add_metric([model, hardware], float(trust.believed))
            alarms.add_metric([model, hardware], trust.alarms)
            for of, coverage in (("learned", trust.learned), ("physical", trust.physical)):
                if coverage.ttfts:
                    covered.add_metric([model, hardware, of, "0.5"], coverage.ttft_p50)
                    covered.add_metric([model, hardware, of, "0.95"], coverage.ttft_p95)
                    error.add_metric([model, hardware, of], coverage.ttft_log_error)
        weight = GaugeMetricFamily(
            "headway_length_model_weight", "How far the length model is believed, 0 to 1.", labels=["model"]
        )
        for model, share in predictor.length_weights().items():
            weight.add_metric([model], share)
        feedback = CounterMetricFamily(
            "headway_feedback_learned", "Judgements that corrected predicted qualities.", labels=["model"]
        )
        for model, count in predictor.feedback_counts().items():
            feedback.add_metric([model], count)
        yield from (info, believed, alarms, covered, error, weight, feedback)

    def _decisions(self) -> Metric:
        return _histograms(
            "headway_decision_seconds",
            "Time that the scheduler took to decide one request.",
            ("policy",),
            (((policy,), histogram) for policy, histogram in sorted(self._metrics.decisions.items())),
        )

    def _fleet(self) -> Iterator[Metric]:
        depth = self._metrics.queue_depth()
        if depth is not None:
            yield GaugeMetricFamily("headway_queue_depth", "Requests that wait for an instance.", value=depth)
        live = self._metrics.live()
        if live is not None:
            yield GaugeMetricFamily("headway_live_requests", "Requests queued or under way.", value=live)
        health = GaugeMetricFamily("headway_instance_health", "1 healthy, 0 ejected.", labels=["instance"])
        draining = GaugeMetricFamily("headway_instance_draining", "1 while draining.", labels=["instance"])
        in_flight = GaugeMetricFamily(
            "headway_instance_in_flight", "Own requests at the instance.", labels=["instance"]
        )
        ejections = CounterMetricFamily(
            "headway_instance_ejections", "Times an instance was ejected.", labels=["instance"]
        )
        serves = GaugeMetricFamily(
            "headway_instance_serves", "1 for each model of an instance.", labels=["instance", "model"]
        )
        reported = [
            GaugeMetricFamily(f"headway_instance_{name}", text, labels=["instance"])
            for name, text in (
                ("running", "Sequences that run, by the engine's last report."),
                ("waiting", "Sequences that wait inside the engine, by its last report."),
                ("kv_usage", "Share of the KV memory in use, by the engine's last report."),
            )
        ]
        for instance in self._metrics.instances():
            labels = [instance.name]
            for model in instance.candidates:
                serves.add_metric([instance.name, model], 1.0)
            report = instance.report
            for family, value in zip(
                reported, (report.running, report.waiting, report.kv_usage), strict=True
            ):
                if value is not None:
                    family.add_metric(labels, value)
            health.add_metric(labels, float(instance.healthy))
            draining.add_metric(labels, float(instance.draining))
            in_flight.add_metric(labels, instance.own.in_flight)
            ejections.add_metric(labels, instance.ejections)
        yield from (health, draining, in_flight, ejections, serves, *reported)
        replicas = GaugeMetricFamily(
            "headway_desired_replicas", "Replicas that a model wants now.", labels=["model"]
        )
        for model, count in self._metrics.desired_replicas().items():
            replicas.add_metric([model], count)
        yield replicas

    def _records(self) -> Iterator[Metric]:
        counts = self._metrics.records()
        if counts is None:
            return
        lost = CounterMetricFamily(
            "headway_records_lost",
            "Requests that killed runs left without a row, by whether they had finished; over all runs.",
            labels=["stage"],
        )
        lost.add_metric(["finished"], counts.lost.finished)
        lost.add_metric(["in_flight"], counts.lost.in_flight)
        yield lost
        for name, text, value in (
            ("headway_records", "Records taken.", counts.finished),
            ("headway_records_written", "Records committed.", counts.recorded),
            (
                "headway_records_dropped",
                "Records dropped: no room was left, or no database takes them.",
                counts.dropped,
            ),
            ("headway_store_retries", "Writes that the database did not take at once.", counts.retries),
            (
                "headway_store_file_losses",
                "Times that the SQLite file was found moved, removed or replaced.",
                counts.file_losses,
            ),
        ):
            yield CounterMetricFamily(name, text, value=value)
        for name, text, waits in (
            ("headway_records_pending", "Records not yet committed.", counts.pending),
            ("headway_records_spooled", "Of these, records that wait on disk.", counts.spooled),
            ("headway_spool_bytes", "Size of what waits on disk.", counts.spooled_bytes),
        ):
            yield GaugeMetricFamily(name, text, value=waits)

    def _budgets(self) -> Iterator[Metric]:
        labels = ["key", "period"]
        spent = GaugeMetricFamily(
            "headway_key_spent_usd", "Spent today (day) and ever (total).", labels=labels
        )
        limit = GaugeMetricFamily("headway_key_budget_usd", "Budget of today and of all time.", labels=labels)
        for key, period, spent_usd, limit_usd in self._metrics.budgets():
            spent.add_metric([key, period], spent_usd)
            if limit_usd is not None:
                limit.add_metric([key, period], limit_usd)
        yield from (spent, limit)

    def _state(self) -> Iterator[Metric]:
        health = self._metrics.state()
        if health is None:
            return
        for name, text, value in (
            (
                "headway_replicas",
                "Replicas of the gateway that share the state, this one too.",
                health.replicas,
            ),
            (
                "headway_state_connected",
                "1 while the shared state answers, 0: this replica goes by its own view.",
                health.connected,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))
        for name, text, amount in (
            ("headway_state_exchanges", "Exchanges with the shared state.", float(health.exchanges)),
            ("headway_state_failures", "Exchanges that failed or took too long.", float(health.failures)),
            ("headway_state_exchange_seconds", "Time that exchanges took.", health.exchange_s),
            (
                "headway_state_alone_seconds",
                "Time that this replica has gone by its own view.",
                health.alone_s,
            ),
        ):
            yield CounterMetricFamily(name, text, value=amount)


def _counters(
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    """A counter family: values summed over the series that share labels."""
    sums: dict[tuple[str, ...], float] = {}
    for key, value in values:
        sums[key] = sums.get(key, 0.0) + value
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in sums.items():
        family.add_metric(key, value)
    return family


def _histograms(
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], Histogram]],
) -> Metric:
    """A histogram family: counts summed over the series that share labels; empty ones are left out."""
    sums: dict[tuple[str, ...], Histogram] = {}
    for key, histogram in values:
        if any(histogram.counts):
            known = sums.get(key)
            if known is None:
                known = sums[key] = Histogram(histogram.bounds)
            known.add(histogram)
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, histogram in sums.items():
        family.add_metric(key, histogram.buckets(), histogram.total)
    return family
