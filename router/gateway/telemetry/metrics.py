"""Prometheus metrics: OpenTelemetry's GenAI names where they exist, `headway_*` for the rest.

The hot path writes into plain lists (`Metrics.record`, one call a request); they become metric families when
`/metrics` is read. Labels take values from the fleet and from our own enumerations only: a name that a client
made up becomes "other", an unknown one "".

Names, attributes and buckets: OpenTelemetry semantic conventions for generative AI metrics
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/), dots written as underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from predictors.online.predictor import OnlinePredictor
from router.core.state import Instance
from router.core.types import OUTSIDE_ATTAINMENT, Outcome
from router.gateway.telemetry.exposition import Family, Page
from router.gateway.telemetry.families import Families
from router.gateway.telemetry.histogram import Histogram
from router.gateway.telemetry.siblings import add_text
from router.gateway.telemetry.stalls import StallWatch
from router.store.queries import RecordCounts
from router.store.records import RequestRecord
from router.store.state import StateHealth

OTHER = "other"
#: Sets of label values kept; a fleet that changes all day must not grow the process without end.
MAX_SERIES = 2000

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
    "responses": "chat",
    "ollama.chat": "chat",
    "ollama.generate": "text_completion",
    "ollama.embed": "embeddings",
    "ollama.embeddings": "embeddings",
}
SUCCESS = frozenset({Outcome.OK, Outcome.LATE})


class Series:
    """All that is counted for one combination of labels."""

    __slots__ = (
        "attempts",
        "duration",
        "hedged",
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
        self.requests = self.offered = self.met = self.overruns = self.attempts = self.hedged = 0
        self.overrun_usd = 0.0
        self.ttft = Histogram(TTFT_BUCKETS)
        self.tpot = Histogram(TPOT_BUCKETS)
        self.duration = Histogram(DURATION_BUCKETS)
        self.input_tokens = Histogram(TOKEN_BUCKETS)
        self.output_tokens = Histogram(TOKEN_BUCKETS)
        self.ratio_ttft = Histogram(RATIO_BUCKETS)
        self.ratio_e2e = Histogram(RATIO_BUCKETS)
        self.ratio_output_tokens = Histogram(RATIO_BUCKETS)


@dataclass(frozen=True, slots=True)
class Labels:
    policy: str
    requested: str
    model: str
    instance: str
    operation: str
    outcome: str
    error: str


class BudgetLevel(NamedTuple):
    """How far one budget of a key is used: `period` is `day` or `total`, `limit_usd` None where it has no bound."""

    key: str
    period: str
    spent_usd: float
    limit_usd: float | None


class Metrics:
    """The metrics of one process, in a registry of their own. Used from the event loop's thread only."""

    def __init__(self) -> None:
        self._policies = _known(())
        self._models = _known(())
        self._requested = _known(())
        self._instances = _known(())
        self._keys = _known(())
        self.predictor: OnlinePredictor | None = None
        self._kinds: dict[str, str] = {}
        self._series: dict[tuple[object, ...], tuple[Labels, Series]] = {}
        self._overflow: dict[Outcome, tuple[Labels, Series]] = {}
        self._spend: dict[tuple[str, str, str], float] = {}  # by policy, model and key
        self.decisions: dict[str, Histogram] = {}
        self._read_instances: Callable[[], Iterable[Instance]] = tuple
        self._read_queue_depth: Callable[[], int] | None = None
        self._read_desired_replicas: Callable[[], Mapping[str, int]] = dict
        self._read_records: Callable[[], RecordCounts] | None = None
        self._read_live: Callable[[], int] | None = None
        self._read_state: Callable[[], StateHealth] | None = None
        self._read_budgets: Callable[[], Iterable[BudgetLevel]] = tuple
        self._read_connections: Callable[[], tuple[int, Mapping[str, int]]] | None = None
        self.stalls: StallWatch | None = None
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

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
        predictor: OnlinePredictor | None = None,
        live: Callable[[], int] | None = None,
        state: Callable[[], StateHealth] | None = None,
        budgets: Callable[[], Iterable[BudgetLevel]] | None = None,
        connections: Callable[[], tuple[int, Mapping[str, int]]] | None = None,
        stalls: StallWatch | None = None,
    ) -> None:
        """Where gauges are read from whenever `/metrics` is. `desired_replicas` is by model, `live` counts requests that
        are queued or under way, `connections` are those open and, by reason, those that the server ended."""
        self._read_instances = instances or self._read_instances
        self._read_queue_depth = queue_depth or self._read_queue_depth
        self._read_desired_replicas = desired_replicas or self._read_desired_replicas
        self._read_records = records or self._read_records
        self.predictor = predictor or self.predictor
        self._read_live = live or self._read_live
        self._read_state = state or self._read_state
        self._read_budgets = budgets or self._read_budgets
        self._read_connections = connections or self._read_connections
        self.stalls = stalls or self.stalls

    # --- the hot path -------------------------------------------------------------------------------
    def record(self, record: RequestRecord) -> None:
        """Count one finished request."""
        outcome = record.outcome
        policy = self._policies.get(record.policy, OTHER)
        requested = self._requested.get(record.model_requested) or self._asked_for(record.model_requested)
        model = self._models.get(record.model, OTHER)
        instance = self._instances.get(record.instance, OTHER)
        operation = _OPERATIONS.get(record.api, OTHER)
        found = self._series.get((policy, requested, model, instance, operation, outcome))
        series = found[1] if found else self._new(policy, requested, model, instance, operation, outcome)

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
            series.attempts += record.attempts
            series.hedged += record.hedged
            if record.prompt_tokens is not None:
                series.input_tokens.observe(record.prompt_tokens)
            if output_tokens is not None:
                series.output_tokens.observe(output_tokens)
        if outcome in SUCCESS:  # an answer that was cut short says nothing about these
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
            self._add_spend(policy, model, self._keys.get(record.key_name, OTHER), record.cost_usd)
        if record.budget_overrun_usd:
            series.overruns += 1
            series.overrun_usd += record.budget_overrun_usd

    def _add_spend(self, policy: str, model: str, key: str, cost_usd: float) -> None:
        spent = self._spend
        if (policy, model, key) not in spent and len(spent) >= MAX_SERIES:
            policy = model = key = OTHER
        spent[policy, model, key] = spent.get((policy, model, key), 0.0) + cost_usd

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
    ) -> Series:
        name = Outcome(outcome).value
        error = "" if outcome in SUCCESS else name
        if len(self._series) >= MAX_SERIES:
            labels = Labels(OTHER, OTHER, OTHER, OTHER, OTHER, name, error)
            return self._overflow.setdefault(outcome, (labels, Series()))[1]
        labels = Labels(policy, requested, model, instance, operation, name, error)
        series = Series()
        self._series[policy, requested, model, instance, operation, outcome] = (labels, series)
        return series

    # --- reading ------------------------------------------------------------------------------------
    async def page(self, more: str = "") -> Page:
        """The answer to a scrape, in Prometheus' text format 0.0.4, made while others are served. `more` is a label for
        all samples (`worker="0"`)."""
        page = await Page.of(self.families(), more)
        add_text(page, generate_latest(self._process).decode(), more)
        return page

    def exposition(self) -> bytes:
        """The same at once."""
        families = ["".join([each.head, *each.samples("")]) for each in self.families()]
        return "".join(families).encode() + generate_latest(self._process)

    def families(self) -> Iterable[Family]:
        """What was counted and what is so now, read as the samples are."""
        return Families(self)

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

    def live(self) -> int | None:
        """Requests that are queued or under way, if anyone says so."""
        return None if self._read_live is None else self._read_live()

    def state(self) -> StateHealth | None:
        """How the state that replicas share does, if it is watched."""
        return None if self._read_state is None else self._read_state()

    def budgets(self) -> Iterable[BudgetLevel]:
        """How far budgets of keys are used."""
        return self._read_budgets()

    def connections(self) -> tuple[int, Mapping[str, int]] | None:
        """Connections of clients, if they are watched: those open, and by reason those that the server ended."""
        return None if self._read_connections is None else self._read_connections()

    def spend(self) -> Iterable[tuple[tuple[str, str, str], float]]:
        """What was spent, by policy, model and key."""
        return list(self._spend.items())

    def all_series(self) -> Iterator[tuple[Labels, Series]]:
        """Everything counted so far."""
        yield from self._series.values()
        yield from self._overflow.values()


def _known(names: Iterable[str]) -> dict[str | None, str]:
    return {None: "", "": "", **{name: name for name in names}}
