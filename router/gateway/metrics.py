"""Prometheus metrics: OpenTelemetry's GenAI names where they exist, `headway_*` for the rest.

The hot path writes into plain lists (`Metrics.record`, one call a request); they become metric families when
`/metrics` is read. Labels take values from the fleet and from our own enumerations only: a name that a client
made up becomes "other", an unknown one "".

Names, attributes and buckets: OpenTelemetry semantic conventions for generative AI metrics
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/), dots written as underscores.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from predictors.serving import PhysicalPredictor
from router.core.state import Instance
from router.core.types import OUTSIDE_ATTAINMENT, Outcome
from router.store.queries import RecordCounts
from router.store.records import RequestRecord

OTHER = "other"
#: Sets of label values kept; a fleet that changes all day must not grow the process without end.
MAX_SERIES = 4000

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_BUCKETS = tuple(0.01 * 2**i for i in range(14))
TOKEN_BUCKETS = tuple(float(4**i) for i in range(14))
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
DECISION_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2)

_OPERATIONS = {
    None: "",
    "chat": "chat",
    "chat.completions": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    "ollama.chat": "chat",
    "ollama.generate": "text_completion",
    "ollama.embed": "embeddings",
    "ollama.embeddings": "embeddings",
}
_SUCCESS = frozenset({Outcome.OK, Outcome.LATE})


class Histogram:
    """Counts of values by upper bound (inclusive, as Prometheus has it)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the counts of another one with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by the text of the bound."""
        bounds = [*(repr(bound) for bound in self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class _Series:
    """All that is counted for one combination of labels."""

    __slots__ = (
        "cost_usd",
        "duration",
        "input_tokens",
        "met",
        "offered",
        "output_tokens",
        "overrun_usd",
        "overruns",
        "ratio_e2e",
        "ratio_output_tokens",
        "ratio_ttft",
        "requests",
        "tpot",
        "ttft",
    )

    def __init__(self) -> None:
        self.requests = self.offered = self.met = self.overruns = 0
        self.cost_usd = self.overrun_usd = 0.0
        self.ttft = Histogram(TTFT_BUCKETS)
        self.tpot = Histogram(TPOT_BUCKETS)
        self.duration = Histogram(DURATION_BUCKETS)
        self.input_tokens = Histogram(TOKEN_BUCKETS)
        self.output_tokens = Histogram(TOKEN_BUCKETS)
        self.ratio_ttft = Histogram(RATIO_BUCKETS)
        self.ratio_e2e = Histogram(RATIO_BUCKETS)
        self.ratio_output_tokens = Histogram(RATIO_BUCKETS)


@dataclass(frozen=True, slots=True)
class _Labels:
    policy: str
    requested: str
    model: str
    instance: str
    operation: str
    outcome: str
    key: str
    error: str


class Metrics:
    """The metrics of one process, in a registry of their own. Used from the event loop's thread only."""

    def __init__(self) -> None:
        self._policies = _known(())
        self._models = _known(())
        self._requested = _known(())
        self._instances = _known(())
        self._keys = _known(())
        self.predictor: PhysicalPredictor | None = None
        self._kinds: dict[str, str] = {}
        self._series: dict[tuple[object, ...], tuple[_Labels, _Series]] = {}
        self._overflow: dict[Outcome, tuple[_Labels, _Series]] = {}
        self.decisions: dict[str, Histogram] = {}
        self._read_instances: Callable[[], Iterable[Instance]] = tuple
        self._read_queue_depth: Callable[[], int] | None = None
        self._read_desired_replicas: Callable[[], Mapping[str, int]] = dict
        self._read_records: Callable[[], RecordCounts] | None = None
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Families(self))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def set_fleet(
        self,
        *,
        policies: Iterable[str],
        models: Iterable[str],
        aliases: Iterable[str] = (),
        instances: Mapping[str, str],
        keys: Iterable[str] = (),
    ) -> None:
        """The names that labels may take, at the start and after each change of the fleet. `instances` maps
        each name to its engine kind. What was counted under older names stays."""
        models = list(models)
        self._policies.update(_known(policies))
        self.decisions |= {
            name: Histogram(DECISION_BUCKETS)
            for name in self._policies.values()
            if name and name not in self.decisions
        }
        self._models.update(_known(models))
        self._requested.update(_known([*models, *aliases, "auto"]))
        self._instances.update(_known(instances))
        self._keys.update(_known(keys))
        self._kinds.update(instances)

    def watch(
        self,
        *,
        instances: Callable[[], Iterable[Instance]] | None = None,
        queue_depth: Callable[[], int] | None = None,
        desired_replicas: Callable[[], Mapping[str, int]] | None = None,
        records: Callable[[], RecordCounts] | None = None,
        predictor: PhysicalPredictor | None = None,
    ) -> None:
        """Where gauges are read from whenever `/metrics` is. `desired_replicas` is by model."""
        self._read_instances = instances or self._read_instances
        self._read_queue_depth = queue_depth or self._read_queue_depth
        self._read_desired_replicas = desired_replicas or self._read_desired_replicas
        self._read_records = records or self._read_records
        self.predictor = predictor or self.predictor

    # --- the hot path -------------------------------------------------------------------------------
    def record(self, record: RequestRecord) -> None:
        """Count one finished request."""
        outcome = record.outcome
        policy = self._policies.get(record.policy, OTHER)
        requested = self._requested.get(record.model_requested) or self._asked_for(record.model_requested)
        model = self._models.get(record.model, OTHER)
        instance = self._instances.get(record.instance, OTHER)
        operation = _OPERATIONS.get(record.api, OTHER)
        key = self._keys.get(record.key_name, OTHER)
        found = self._series.get((policy, requested, model, instance, operation, outcome, key))
        series = found[1] if found else self._new(policy, requested, model, instance, operation, outcome, key)

        series.requests += 1
        ttft_s, e2e_s, output_tokens = record.ttft_s, record.e2e_s, record.output_tokens
        if e2e_s is not None:
            series.duration.observe(e2e_s)
        if ttft_s is not None:
            series.ttft.observe(ttft_s)
            predicted = record.predicted_ttft_s_p50
            if predicted:
                series.ratio_ttft.observe(ttft_s / predicted)
        if record.tpot_s is not None:
            series.tpot.observe(record.tpot_s)
        if record.attempts:
            if record.prompt_tokens is not None:
                series.input_tokens.observe(record.prompt_tokens)
            if output_tokens is not None:
                series.output_tokens.observe(output_tokens)
        if outcome in _SUCCESS:  # an answer that was cut short says nothing about these
            predicted = record.predicted_e2e_s_p50
            if predicted and e2e_s is not None:
                series.ratio_e2e.observe(e2e_s / predicted)
            predicted = record.predicted_output_tokens_p50
            if predicted and output_tokens is not None:
                series.ratio_output_tokens.observe(output_tokens / predicted)
        if outcome not in OUTSIDE_ATTAINMENT and (
            record.slo_ttft_s is not None or record.slo_e2e_s is not None or record.slo_tpot_s is not None
        ):
            series.offered += 1
            if record.slo_met:
                series.met += 1
        if record.cost_usd:
            series.cost_usd += record.cost_usd
        if record.budget_overrun_usd:
            series.overruns += 1
            series.overrun_usd += record.budget_overrun_usd

    def observe_decision(self, policy: str, seconds: float) -> None:
        """The scheduler took so long to decide one request."""
        histogram = self.decisions.get(policy)
        if histogram is not None:
            histogram.observe(seconds)

    def _asked_for(self, name: str | None) -> str:
        """The label of a model name that is none of the fleet's: NAME:policy counts as NAME."""
        if not name:
            return ""
        return self._requested.get(name.rpartition(":")[0]) or OTHER

    def _new(
        self,
        policy: str,
        requested: str,
        model: str,
        instance: str,
        operation: str,
        outcome: Outcome,
        key: str,
    ) -> _Series:
        name = Outcome(outcome).value
        error = "" if outcome in _SUCCESS else name
        if len(self._series) >= MAX_SERIES:
            labels = _Labels(OTHER, OTHER, OTHER, OTHER, OTHER, name, OTHER, error)
            return self._overflow.setdefault(outcome, (labels, _Series()))[1]
        labels = _Labels(policy, requested, model, instance, operation, name, key, error)
        series = _Series()
        self._series[policy, requested, model, instance, operation, outcome, key] = (labels, series)
        return series

    # --- reading ------------------------------------------------------------------------------------
    def exposition(self) -> bytes:
        """The answer to a scrape, in Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)

    def instances(self) -> Iterable[Instance]:
        """The fleet now."""
        return self._read_instances()

    def kind(self, instance: str) -> str:
        """The engine kind of an instance, "" for none or one that is not known."""
        return self._kinds.get(instance, "")

    def queue_depth(self) -> int | None:
        """Requests that wait, if anyone says so."""
        return None if self._read_queue_depth is None else self._read_queue_depth()

    def desired_replicas(self) -> Mapping[str, int]:
        """Replicas wanted, by model."""
        return self._read_desired_replicas()

    def records(self) -> RecordCounts | None:
        """What the store counted, if it is watched."""
        return None if self._read_records is None else self._read_records()

    def all_series(self) -> Iterator[tuple[_Labels, _Series]]:
        """Everything counted so far."""
        yield from self._series.values()
        yield from self._overflow.values()


def _known(names: Iterable[str]) -> dict[str | None, str]:
    return {None: "", "": "", **{name: name for name in names}}


class _Families(Collector):
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

    def _gen_ai(self, series: list[tuple[_Labels, _Series]]) -> Iterator[Metric]:
        names = (
            "gen_ai_operation_name",
            "gen_ai_provider_name",
            "gen_ai_request_model",
            "gen_ai_response_model",
            "server_address",
            "error_type",
            "headway_policy",
        )

        def labels(each: _Labels) -> tuple[str, ...]:
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
    def _requests(series: list[tuple[_Labels, _Series]]) -> Iterator[Metric]:
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
    def _predictions(series: list[tuple[_Labels, _Series]]) -> Iterator[Metric]:
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
        health = GaugeMetricFamily("headway_instance_health", "1 healthy, 0 ejected.", labels=["instance"])
        draining = GaugeMetricFamily("headway_instance_draining", "1 while draining.", labels=["instance"])
        in_flight = GaugeMetricFamily(
            "headway_instance_in_flight", "Own requests at the instance.", labels=["instance"]
        )
        ejections = CounterMetricFamily(
            "headway_instance_ejections", "Times an instance was ejected.", labels=["instance"]
        )
        for instance in self._metrics.instances():
            labels = [instance.name]
            health.add_metric(labels, float(instance.healthy))
            draining.add_metric(labels, float(instance.draining))
            in_flight.add_metric(labels, instance.in_flight)
            ejections.add_metric(labels, instance.ejections)
        yield from (health, draining, in_flight, ejections)
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
            ("headway_records_dropped", "Records dropped since the buffer was full.", counts.dropped),
            ("headway_store_retries", "Writes that the database did not take at once.", counts.retries),
        ):
            yield CounterMetricFamily(name, text, value=value)
        yield GaugeMetricFamily("headway_records_pending", "Records not yet committed.", value=counts.pending)


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
