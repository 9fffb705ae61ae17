"""All metric families, made from counts and sources at the time of a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from predictors.online.predictor import OnlinePredictor
from router.background import failures
from router.core.state import Instance
from router.gateway.telemetry.exposition import Family, counter, gauge, histogram
from router.gateway.telemetry.metrics import Metrics
from router.gateway.telemetry.request_families import request_families
from router.gateway.telemetry.sources import Sources
from router.gateway.telemetry.stalls import StallWatch
from router.store.queries import RecordCounts
from router.store.state import StateHealth

#: Keys whose spending is shown; those of the fleet file come first.
MAX_KEYS = 2000

_Make = Callable[..., Family]


def families(metrics: Metrics) -> Iterator[Family]:
    """The families of one process."""
    sources = metrics.sources
    yield from request_families(metrics)
    if sources.predictor is not None:
        yield from _predictor(sources.predictor)
    yield from _fleet(sources)
    if sources.records is not None:
        yield from _records(sources.records())
    yield from _budgets(sources)
    if sources.state is not None:
        yield from _state(sources.state())
    if sources.judged is not None:
        yield counter(
            "headway_judged_answers",
            "Answers chosen to be judged, by what came of it.",
            ("result",),
            [((result,), count) for result, count in sources.judged().items()],
        )
    if sources.checked is not None:
        yield counter(
            "headway_checked_answers",
            "Answers checked before their clients got them, by what came of it.",
            ("result",),
            [((result,), count) for result, count in sources.checked().items()],
        )
    if sources.connections is not None:
        opened, closed = sources.connections()
        yield _value(gauge, "headway_connections", "Open connections of clients.", opened)
        yield counter(
            "headway_connections_closed",
            "Connections of clients that the gateway closed, by reason.",
            ("reason",),
            [((reason,), count) for reason, count in closed.items()],
        )
    if sources.stalls is not None:
        yield from _stalls(sources.stalls)
    yield counter(
        "headway_background_failures",
        "Failures of background tasks, which continued.",
        ("task",),
        (((task,), count) for task, count in sorted(failures().items())),
    )


def _predictor(predictor: OnlinePredictor) -> Iterator[Family]:
    yield gauge(
        "headway_predictor_info",
        "Artifacts in use.",
        ("kind", "artifact"),
        [((kind, str(about["artifact"])), 1.0) for kind, about in predictor.models.about.items()],
    )
    group = ("model", "hardware")
    groups = list(predictor.groups().items())
    yield gauge(
        "headway_latency_model_weight",
        "Weight of the latency model against the physical estimate.",
        (*group, "of"),
        [
            ((*key, of), weight)
            for key, weights in predictor.latency_weights().items()
            for of, weight in weights.items()
        ],
    )
    coverages = [
        ((*key, of), coverage)
        for key, accuracy in groups
        for of, coverage in (("learned", accuracy.learned), ("physical", accuracy.physical))
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
        "Weight of the length model in predicted lengths, 0 to 1.",
        ("model",),
        [((model,), share) for model, share in predictor.length_weights().items()],
    )
    yield counter(
        "headway_feedback_learned",
        "Feedback that corrected predicted qualities.",
        ("model",),
        [((model,), count) for model, count in predictor.feedback_counts().items()],
    )


def _fleet(sources: Sources) -> Iterator[Family]:
    if sources.queue_depth is not None:
        yield _value(
            gauge, "headway_queue_depth", "Requests that wait for an instance.", sources.queue_depth()
        )
    if sources.live is not None:
        yield _value(gauge, "headway_live_requests", "Requests queued or running.", sources.live())
    instances = list(sources.instances())

    def each(make: _Make, name: str, text: str, read: Callable[[Instance], float | None]) -> Family:
        values = (((one.name,), read(one)) for one in instances)
        known = ((key, value) for key, value in values if value is not None)
        return make(f"headway_instance_{name}", text, ("instance",), known)

    yield each(gauge, "health", "1 healthy, 0 ejected.", lambda one: float(one.healthy))
    yield each(gauge, "draining", "1 while draining.", lambda one: float(one.draining))
    yield each(gauge, "in_flight", "This process' requests at the instance.", lambda one: one.own.in_flight)
    yield each(counter, "ejections", "Times an instance was ejected.", lambda one: one.ejections)
    yield gauge(
        "headway_instance_serves",
        "1 for each model of an instance.",
        ("instance", "model"),
        (((one.name, model), 1.0) for one in instances for model in one.candidates),
    )
    last = "by the engine's last report."
    yield each(gauge, "running", f"Running sequences, {last}", lambda one: one.report.running)
    yield each(
        gauge, "waiting", f"Sequences that wait inside the engine, {last}", lambda one: one.report.waiting
    )
    yield each(gauge, "kv_usage", f"Share of the KV memory in use, {last}", lambda one: one.report.kv_usage)
    yield gauge(
        "headway_desired_replicas",
        "Replicas that a model needs now.",
        ("model",),
        [((model,), count) for model, count in sources.desired_replicas().items()],
    )
    yield gauge(
        "headway_pool_instances",
        "Instances of a pool at the last decision, and the number decided (desired).",
        ("pool", "state"),
        [
            ((each["pool"], state), each[state])
            for each in sources.pools()
            for state in ("desired", "ready", "starting", "draining")
        ],
    )


def _records(counts: RecordCounts) -> Iterator[Family]:
    yield counter(
        "headway_records_lost",
        "Requests that killed runs left without a row, by whether they had finished; over all runs.",
        ("stage",),
        [(("finished",), counts.lost.finished), (("in_flight",), counts.lost.in_flight)],
    )
    for name, text, value in (
        ("headway_records", "Records made.", counts.finished),
        ("headway_records_written", "Records committed.", counts.recorded),
        (
            "headway_records_dropped",
            "Records dropped because no room was left or the database was gone.",
            counts.dropped,
        ),
        ("headway_store_retries", "Writes that the database did not accept at once.", counts.retries),
        (
            "headway_store_file_losses",
            "Times the SQLite file was found moved, removed or replaced.",
            counts.file_losses,
        ),
        (
            "headway_record_writer_restarts",
            "Times the process that writes records was started again after it had died.",
            counts.writer_restarts,
        ),
    ):
        yield _value(counter, name, text, value)
    for name, text, waits in (
        ("headway_records_pending", "Records not yet committed.", counts.pending),
        ("headway_records_spooled", "Pending records that are on disk.", counts.spooled),
        ("headway_spool_bytes", "Size of the pending records on disk.", counts.spooled_bytes),
    ):
        yield _value(gauge, name, text, waits)


def _budgets(sources: Sources) -> Iterator[Family]:
    labels = ("key", "period")
    levels = list(islice(sources.budgets(), 2 * MAX_KEYS))
    yield gauge(
        "headway_key_spent_usd",
        "Cost of a key's requests today (day) and ever (total).",
        labels,
        (((each.key, each.period), each.spent_usd) for each in levels),
    )
    yield gauge(
        "headway_key_budget_usd",
        "Budget of a key for today (day) and ever (total).",
        labels,
        (((each.key, each.period), each.limit_usd) for each in levels if each.limit_usd is not None),
    )


def _state(health: StateHealth) -> Iterator[Family]:
    for make, name, text, value in (
        (
            gauge,
            "headway_replicas",
            "Replicas of the gateway that share the state, including this one.",
            float(health.replicas),
        ),
        (
            gauge,
            "headway_state_connected",
            "1 while the shared state answers, 0 while this replica uses its local view.",
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
            "Exchanges that failed or timed out.",
            float(health.failures),
        ),
        (counter, "headway_state_exchange_seconds", "Time spent in exchanges.", health.exchange_s),
        (
            counter,
            "headway_state_alone_seconds",
            "Time in which this replica used its local view.",
            health.alone_s,
        ),
    ):
        yield _value(make, name, text, value)


def _stalls(stalls: StallWatch) -> Iterator[Family]:
    yield _value(
        gauge,
        "headway_event_loop_stall_max_seconds",
        "The longest stall of the event loop in the last one to two minutes.",
        stalls.recent_s,
    )
    yield histogram(
        "headway_event_loop_stall_seconds",
        "How late a timer of the event loop ran.",
        (),
        [((), stalls.histogram)],
    )


def _value(make: _Make, name: str, text: str, value: float) -> Family:
    """A family of one sample without labels."""
    return make(name, text, (), [((), value)])
