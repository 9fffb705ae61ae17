"""Metric families, made from what was counted at the time of a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from router.background import failures
from router.core.state import Instance
from router.gateway.telemetry.exposition import Family, counter, gauge, histogram

if TYPE_CHECKING:
    from router.gateway.telemetry.metrics import Labels, Metrics, Series

#: Keys of which the money is told; the fleet file's come first.
MAX_KEYS = 2000


class Families:
    """Metric families made from what was counted, at the time of a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __iter__(self) -> Iterator[Family]:
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
        yield from self._connections()
        yield from self._stalls()
        yield counter(
            "headway_background_failures",
            "Failures of what runs beside requests; it went on.",
            ("task",),
            (((task,), count) for task, count in sorted(failures().items())),
        )

    def _gen_ai(self, series: list[tuple[Labels, Series]]) -> Iterator[Family]:
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
        yield histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Time from arrival to the first token, queue included; server_address is the instance.",
            names,
            ((values, one.ttft) for values, one in answered),
        )
        yield histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time per output token after the first.",
            names,
            ((values, one.tpot) for values, one in answered),
        )
        yield histogram(
            "gen_ai_server_request_duration_seconds",
            "Time from arrival to the end of the request.",
            names,
            ((values, one.duration) for values, one in answered),
        )
        yield histogram(
            "gen_ai_client_token_usage",
            "Input and output tokens of a request.",
            (*names, "gen_ai_token_type"),
            [((*values, "input"), one.input_tokens) for values, one in answered]
            + [((*values, "output"), one.output_tokens) for values, one in answered],
        )

    def _requests(self, series: list[tuple[Labels, Series]]) -> Iterator[Family]:
        yield counter(
            "headway_requests",
            "Requests that reached the router.",
            ("policy", "model", "instance", "outcome"),
            (((each.policy, each.model, each.instance, each.outcome), one.requests) for each, one in series),
        )
        slo = ("policy",)
        yield counter(
            "headway_slo_offered",
            "Requests with an SLO that count for attainment.",
            slo,
            (((each.policy,), one.offered) for each, one in series),
        )
        yield counter(
            "headway_slo_met",
            "Requests that met all targets of their SLO.",
            slo,
            (((each.policy,), one.met) for each, one in series),
        )
        yield counter(
            "headway_spend_usd",
            "Cost of all attempts.",
            ("policy", "model", "key"),
            self._metrics.spend(),
        )
        by_policy = ("policy",)
        yield counter(
            "headway_attempts",
            "Times that requests were sent to an instance, retries and hedges included.",
            by_policy,
            (((each.policy,), one.attempts) for each, one in series),
        )
        yield counter(
            "headway_hedged",
            "Requests that got a second attempt beside a late first one.",
            by_policy,
            (((each.policy,), one.hedged) for each, one in series),
        )
        yield counter(
            "headway_budget_overruns",
            "Requests whose cost passed their cap.",
            slo,
            (((each.policy,), one.overruns) for each, one in series),
        )
        yield counter(
            "headway_budget_overrun_usd",
            "Cost beyond the caps.",
            slo,
            (((each.policy,), one.overrun_usd) for each, one in series),
        )

    @staticmethod
    def _predictions(series: list[tuple[Labels, Series]]) -> Iterator[Family]:
        names = ("model", "instance")
        for quantity, text in (
            ("ttft", "time to the first token"),
            ("e2e", "time of the whole request"),
            ("output_tokens", "output tokens"),
        ):
            attribute = f"ratio_{quantity}"
            yield histogram(
                f"headway_prediction_{quantity}_ratio",
                f"Actual over predicted (median): {text}.",
                names,
                (((each.model, each.instance), getattr(one, attribute)) for each, one in series),
            )

    def _predictors(self) -> Iterator[Family]:
        predictor = self._metrics.predictor
        if predictor is None:
            return
        yield gauge(
            "headway_predictor_info",
            "Artifacts in use.",
            ("kind", "artifact"),
            [((kind, str(about["artifact"])), 1.0) for kind, about in predictor.models.about.items()],
        )
        group = ("model", "hardware")
        groups = list(predictor.groups().items())
        yield gauge(
            "headway_predictor_believed",
            "1 while the latency model serves, 0: the physical one.",
            group,
            [(key, float(trust.believed)) for key, trust in groups],
        )
        yield counter(
            "headway_predictor_alarms",
            "Times the latency model's predictions did not hold.",
            group,
            [(key, trust.alarms) for key, trust in groups],
        )
        coverages = [
            ((*key, of), coverage)
            for key, trust in groups
            for of, coverage in (("learned", trust.learned), ("physical", trust.physical))
            if coverage.ttfts
        ]
        yield gauge(
            "headway_predictor_coverage",
            "Share of recent TTFTs within a predicted quantile.",
            (*group, "of", "quantile"),
            [((*key, "0.5"), coverage.ttft_p50) for key, coverage in coverages]
            + [((*key, "0.95"), coverage.ttft_p95) for key, coverage in coverages],
        )
        yield gauge(
            "headway_predictor_error",
            "Mean |ln(actual / predicted median TTFT)|.",
            (*group, "of"),
            [(key, coverage.ttft_log_error) for key, coverage in coverages],
        )
        yield gauge(
            "headway_length_model_weight",
            "How far the length model is believed, 0 to 1.",
            ("model",),
            [((model,), share) for model, share in predictor.length_weights().items()],
        )
        yield counter(
            "headway_feedback_learned",
            "Judgements that corrected predicted qualities.",
            ("model",),
            [((model,), count) for model, count in predictor.feedback_counts().items()],
        )

    def _decisions(self) -> Family:
        return histogram(
            "headway_decision_seconds",
            "Time that the scheduler took to decide one request.",
            ("policy",),
            (((policy,), histogram) for policy, histogram in sorted(self._metrics.decisions.items())),
        )

    def _fleet(self) -> Iterator[Family]:
        depth = self._metrics.queue_depth()
        if depth is not None:
            yield _value(gauge, "headway_queue_depth", "Requests that wait for an instance.", depth)
        live = self._metrics.live()
        if live is not None:
            yield _value(gauge, "headway_live_requests", "Requests queued or under way.", live)
        instances = list(self._metrics.instances())

        def each(make: _Make, name: str, text: str, read: Callable[[Instance], float | None]) -> Family:
            values = (((one.name,), read(one)) for one in instances)
            known = ((key, value) for key, value in values if value is not None)
            return make(f"headway_instance_{name}", text, ("instance",), known)

        yield each(gauge, "health", "1 healthy, 0 ejected.", lambda one: float(one.healthy))
        yield each(gauge, "draining", "1 while draining.", lambda one: float(one.draining))
        yield each(gauge, "in_flight", "Own requests at the instance.", lambda one: one.own.in_flight)
        yield each(counter, "ejections", "Times an instance was ejected.", lambda one: one.ejections)
        yield gauge(
            "headway_instance_serves",
            "1 for each model of an instance.",
            ("instance", "model"),
            (((one.name, model), 1.0) for one in instances for model in one.candidates),
        )
        last = "by the engine's last report."
        yield each(gauge, "running", f"Sequences that run, {last}", lambda one: one.report.running)
        yield each(
            gauge,
            "waiting",
            "Sequences that wait inside the engine, by its last report.",
            lambda one: one.report.waiting,
        )
        yield each(
            gauge, "kv_usage", f"Share of the KV memory in use, {last}", lambda one: one.report.kv_usage
        )
        yield gauge(
            "headway_desired_replicas",
            "Replicas that a model wants now.",
            ("model",),
            [((model,), count) for model, count in self._metrics.desired_replicas().items()],
        )

    def _records(self) -> Iterator[Family]:
        counts = self._metrics.records()
        if counts is None:
            return
        yield counter(
            "headway_records_lost",
            "Requests that killed runs left without a row, by whether they had finished; over all runs.",
            ("stage",),
            [(("finished",), counts.lost.finished), (("in_flight",), counts.lost.in_flight)],
        )
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
            yield _value(counter, name, text, value)
        for name, text, waits in (
            ("headway_records_pending", "Records not yet committed.", counts.pending),
            ("headway_records_spooled", "Of these, records that wait on disk.", counts.spooled),
            ("headway_spool_bytes", "Size of what waits on disk.", counts.spooled_bytes),
        ):
            yield _value(gauge, name, text, waits)

    def _budgets(self) -> Iterator[Family]:
        labels = ("key", "period")
        levels = list(islice(self._metrics.budgets(), 2 * MAX_KEYS))
        yield gauge(
            "headway_key_spent_usd",
            "Spent today (day) and ever (total).",
            labels,
            (((each.key, each.period), each.spent_usd) for each in levels),
        )
        yield gauge(
            "headway_key_budget_usd",
            "Budget of today and of all time.",
            labels,
            (((each.key, each.period), each.limit_usd) for each in levels if each.limit_usd is not None),
        )

    def _state(self) -> Iterator[Family]:
        health = self._metrics.state()
        if health is None:
            return
        for make, name, text, value in (
            (
                gauge,
                "headway_replicas",
                "Replicas of the gateway that share the state, this one too.",
                float(health.replicas),
            ),
            (
                gauge,
                "headway_state_connected",
                "1 while the shared state answers, 0: this replica goes by its own view.",
                float(health.connected),
            ),
            (
                counter,
                "headway_state_exchanges",
                "Exchanges with the shared state.",
                float(health.exchanges),
            ),
            (
                counter,
                "headway_state_failures",
                "Exchanges that failed or took too long.",
                float(health.failures),
            ),
            (counter, "headway_state_exchange_seconds", "Time that exchanges took.", health.exchange_s),
            (
                counter,
                "headway_state_alone_seconds",
                "Time that this replica has gone by its own view.",
                health.alone_s,
            ),
        ):
            yield _value(make, name, text, value)

    def _connections(self) -> Iterator[Family]:
        connections = self._metrics.connections()
        if connections is None:
            return
        opened, closed = connections
        yield _value(gauge, "headway_connections", "Connections of clients that are open.", opened)
        yield counter(
            "headway_connections_closed",
            "Connections of clients that the gateway ended, by why.",
            ("reason",),
            [((reason,), count) for reason, count in closed.items()],
        )

    def _stalls(self) -> Iterator[Family]:
        stalls = self._metrics.stalls
        if stalls is None:
            return
        yield _value(
            gauge,
            "headway_event_loop_stall_max_seconds",
            "The longest time, in the last one to two minutes, in which the event loop served nothing else.",
            stalls.recent_s,
        )
        yield histogram(
            "headway_event_loop_stall_seconds",
            "How late a timer of the event loop ran.",
            (),
            [((), stalls.histogram)],
        )


_Make = Callable[..., Family]


def _value(make: _Make, name: str, text: str, value: float) -> Family:
    """A family of one sample without labels."""
    return make(name, text, (), [((), value)])
