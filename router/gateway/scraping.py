"""The metrics page: made of what requests left behind and of the state of the gateway, at each scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain, islice
from weakref import WeakSet, ref

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from predictors.online.predictor import OnlinePredictor
from router.background import failures
from router.core.state import Instance
from router.gateway.fleet.scaling import pools
from router.gateway.keys.accounts import budget_levels
from router.gateway.service import Gateway
from router.gateway.telemetry.exposition import Family, Page, counter, gauge, histogram
from router.gateway.telemetry.metrics import SUCCESS, Metrics
from router.gateway.telemetry.stalls import StallWatch
from router.store.queries import RecordCounts
from router.store.state import StateHealth

#: Keys whose spending is shown; those of the fleet file come first.
MAX_KEYS = 2000
#: Pages kept while clients read them.
MAX_PAGES = 3

#: What prometheus_client reports about this process.
PROCESS = CollectorRegistry(auto_describe=False)
ProcessCollector(registry=PROCESS)
PlatformCollector(registry=PROCESS)
GCCollector(registry=PROCESS)

_Make = Callable[..., Family]


async def metrics_page(gateway: Gateway, more: str = "") -> Page:
    """The page of a scrape; the event loop runs while it is made. `more` is a label for all samples (`worker="0"`)."""
    return await Page.of(chain(families(gateway), process_families()), more)


def process_families() -> Iterator[Family]:
    """The families of `PROCESS`."""
    for metric in PROCESS.collect():
        make = counter if metric.type == "counter" else gauge
        values = [(tuple(each.labels.values()), each.value) for each in metric.samples]
        yield make(metric.name, metric.documentation, tuple(metric.samples[0].labels), values)


class Scrapes:
    """Makes one page at a time. Callers that come while one is made share the next."""

    def __init__(self, make: Callable[[], Awaitable[Page]]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._begun = self._newest_number = 0  # pages
        self._kept: WeakSet[Page] = WeakSet()
        self._newest: Callable[[], Page | None] = lambda: None

    async def page(self) -> Page:
        """A page made after this call.

        While clients still read `MAX_PAGES` pages, it is the newest of those: clients that do not read what they
        requested cannot fill the memory.
        """
        begun = self._begun
        async with self._making:
            page = self._newest()
            if page is None or (self._newest_number <= begun and len(self._kept) < MAX_PAGES):
                self._begun += 1
                page = await self._make()
                self._kept.add(page)
                self._newest, self._newest_number = ref(page), self._begun
            return page


# --- families -----------------------------------------------------------------------------------------------
def families(gateway: Gateway) -> Iterator[Family]:
    """The families of one process."""
    yield from _requests(gateway.metrics)
    yield from _predictor(gateway.predictor)
    yield from _fleet(gateway)
    yield from _records(gateway.store.counts())
    yield from _budgets(gateway)
    yield from _state(gateway.state.health)
    if gateway.judged is not None:
        text = "Answers chosen to be judged, by result."
        yield _by("result", counter, "headway_judged_answers", text, gateway.judged)
    if gateway.checked is not None:
        text = "Answers checked before their clients got them, by result."
        yield _by("result", counter, "headway_checked_answers", text, gateway.checked)
    if gateway.connections is not None:
        opened, closed = gateway.connections()
        yield _value(gauge, "headway_connections", "Open connections of clients.", opened)
        text = "Connections of clients that the gateway closed, by reason."
        yield _by("reason", counter, "headway_connections_closed", text, closed)
    yield from _stalls(gateway.stalls)
    text = "Failures of background tasks, which continued."
    yield _by("task", counter, "headway_background_failures", text, dict(sorted(failures().items())))


def _requests(metrics: Metrics) -> Iterator[Family]:
    """What is counted of requests: OpenTelemetry's GenAI histograms, outcomes, SLOs, cost, predictions, decisions."""
    series = list(metrics.all_series())
    names = (
        *("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_response_model"),
        *("server_address", "headway_policy"),
    )
    labelled = []
    for each, one in series:
        kind = metrics.kind(each.instance)
        values = (each.operation, kind, each.requested, each.model, each.instance, each.policy)
        labelled.append((values, each.outcome, one))

    text = "Time from arrival to the first token, queue included; server_address is the instance."
    first_tokens = ((values, one.ttft) for values, _, one in labelled)
    yield histogram("gen_ai_server_time_to_first_token_seconds", text, names, first_tokens)
    text = "Mean time per output token after the first."
    output_tokens = ((values, one.tpot) for values, _, one in labelled)
    yield histogram("gen_ai_server_time_per_output_token_seconds", text, names, output_tokens)
    text = "Time from arrival to the end of the request."
    durations = (
        ((*values, "" if outcome in SUCCESS else outcome.value), one.duration)
        for values, outcome, one in labelled
    )
    yield histogram("gen_ai_server_request_duration_seconds", text, (*names, "error_type"), durations)
    yield histogram(
        "gen_ai_client_token_usage",
        "Input and output tokens of a request.",
        (*names, "gen_ai_token_type"),
        [((*values, "input"), one.input_tokens) for values, _, one in labelled]
        + [((*values, "output"), one.output_tokens) for values, _, one in labelled],
    )
    yield counter(
        "headway_requests",
        "Requests that reached the router.",
        ("policy", "model", "instance", "outcome"),
        [
            ((each.policy, each.model, each.instance, each.outcome.value), one.requests)
            for each, one in series
        ],
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
        # From 0 on: Prometheus sees no increase in a series that begins with its first event.
        by_policy = [((policy,), 0.0) for policy in metrics.decisions]
        by_policy += [((each.policy,), getattr(one, counted)) for each, one in series]
        by_policy += [((policy,), getattr(one, counted)) for policy, one in metrics.dropped.items()]
        yield counter(f"headway_{name}", text, ("policy",), by_policy)
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
    yield histogram(
        "headway_decision_seconds",
        "Time that the scheduler took to decide one request.",
        ("policy",),
        (((policy,), times) for policy, times in sorted(metrics.decisions.items())),
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
        "Share of recent TTFTs at or below a predicted quantile.",
        (*group, "of", "predicted_quantile"),
        [((*key, "0.5"), coverage.ttft_p50) for key, coverage in coverages]
        + [((*key, "0.95"), coverage.ttft_p95) for key, coverage in coverages],
    )
    yield gauge(
        "headway_predictor_error",
        "Mean |ln(actual / predicted median TTFT)|.",
        (*group, "of"),
        [(key, coverage.ttft_log_error) for key, coverage in coverages],
    )
    text = "Weight of the length model in predicted lengths, 0 to 1."
    yield _by("model", gauge, "headway_length_model_weight", text, predictor.length_weights())
    text = "Feedback that corrected predicted qualities."
    yield _by("model", counter, "headway_feedback_learned", text, predictor.feedback_counts())


def _fleet(gateway: Gateway) -> Iterator[Family]:
    scheduler = gateway.runner.scheduler
    text = "Requests that wait for an instance."
    yield _value(gauge, "headway_queue_depth", text, scheduler.queue_depth)
    yield _value(gauge, "headway_live_requests", "Requests queued or running.", scheduler.live)
    instances = [each for each in scheduler.instances.values() if not each.starting]

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
    text = "Replicas that a model needs now."
    desired = {each.model: each.desired_replicas for each in gateway.scaling()}
    known = {model: replicas for model, replicas in desired.items() if replicas is not None}
    yield _by("model", gauge, "headway_desired_replicas", text, known)
    yield gauge(
        "headway_pool_instances",
        "Instances of a pool at the last decision, and the number decided (desired).",
        ("pool", "state"),
        [
            ((each["pool"], state), each[state])
            for each in pools(gateway.config.scaling, gateway.decision)
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
    text = "Records dropped because no room was left or the database was gone."
    yield _value(counter, "headway_records", "Records made.", counts.finished)
    yield _value(counter, "headway_records_written", "Records committed.", counts.recorded)
    yield _value(counter, "headway_records_dropped", text, counts.dropped)
    text = "Writes that the database did not accept at once."
    yield _value(counter, "headway_store_retries", text, counts.retries)
    text = "Times the SQLite file was found moved, removed or replaced."
    yield _value(counter, "headway_store_file_losses", text, counts.file_losses)
    text = "Times the process that writes records was started again after it had died."
    yield _value(counter, "headway_record_writer_restarts", text, counts.writer_restarts)
    yield _value(gauge, "headway_records_pending", "Records not yet committed.", counts.pending)
    yield _value(gauge, "headway_records_spooled", "Pending records that are on disk.", counts.spooled)
    text = "Size of the pending records on disk."
    yield _value(gauge, "headway_spool_bytes", text, counts.spooled_bytes)


def _budgets(gateway: Gateway) -> Iterator[Family]:
    labels = ("key", "period")
    accounts = (each.account for each in gateway.rules.working.values())
    levels = list(islice(budget_levels(accounts, gateway.state), 2 * MAX_KEYS))
    yield gauge(
        "headway_key_spent_usd",
        "Cost of a key's requests today (day) and ever (total).",
        labels,
        (((key, period), spent_usd) for key, period, spent_usd, _ in levels),
    )
    yield gauge(
        "headway_key_budget_usd",
        "Budget of a key for today (day) and ever (total).",
        labels,
        (((key, period), limit_usd) for key, period, _, limit_usd in levels),
    )


def _state(health: StateHealth) -> Iterator[Family]:
    text = "Replicas of the gateway that share the state, including this one."
    yield _value(gauge, "headway_replicas", text, health.replicas)
    text = "1 while the shared state answers, 0 while this replica uses its local view."
    yield _value(gauge, "headway_state_connected", text, health.connected)
    text = "Exchanges with the shared state."
    yield _value(counter, "headway_state_exchanges", text, health.exchanges)
    text = "Exchanges that failed or timed out."
    yield _value(counter, "headway_state_failures", text, health.failures)
    text = "Time spent in exchanges."
    yield _value(counter, "headway_state_exchange_seconds", text, health.exchange_s)
    text = "Time in which this replica used its local view."
    yield _value(counter, "headway_state_alone_seconds", text, health.alone_s)


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


def _by(label: str, make: _Make, name: str, text: str, values: Mapping[str, float]) -> Family:
    """A family with one label; `values` by what it says."""
    return make(name, text, (label,), [((key,), value) for key, value in values.items()])
