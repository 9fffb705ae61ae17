"""Counts requests for Prometheus: OpenTelemetry's GenAI names where they exist, `headway_*` for the rest.

The hot path makes one call a request (`Metrics.record`). Records are counted in plain lists, many together
(`_COUNTED_AT_ONCE`), so code and data stay in the processor's caches. A scrape turns the lists into metric families
(`router.gateway.scraping`). Label values come from the fleet and from our own enumerations only: a
name that a client made up becomes "other", an unknown one "".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from router.background import failed
from router.compiled import reader
from router.core.histogram import Histogram
from router.core.types import OUTSIDE_ATTAINMENT, Outcome
from router.gateway.telemetry.series import DECISION_BUCKETS, Labels, Series
from router.store.records import RequestRecord

OTHER = "other"
#: The most label sets kept: a fleet that changes all day must not grow the process without bound.
MAX_SERIES = 2000
#: The most further ones, of model and outcome only: scaling counts by model.
MAX_BY_MODEL = 500
#: The counts of `Series` that are published by policy alone.
_BY_POLICY = ("offered", "met", "attempts", "hedged", "overruns", "overrun_usd")
#: Records are counted together when so many have come, or when somebody reads.
_COUNTED_AT_ONCE = 16

#: By API: the operation, as OpenTelemetry names it.
OPERATIONS = {
    "chat": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    "responses": "chat",
    "ollama.chat": "chat",
    "ollama.generate": "text_completion",
    "ollama.embed": "embeddings",
    "ollama.embeddings": "embeddings",
}
SUCCESS = frozenset({Outcome.OK, Outcome.LATE})

_names = reader(RequestRecord, "policy", "model_requested", "model", "instance", "api", "outcome")


class Metrics:
    """The metrics of one process. Used from the event loop's thread only."""

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []  # not yet counted
        self.decisions: dict[str, Histogram] = {}  # by policy
        self._policies = _known(())
        self._models = _known(())
        self._requested = _known(())
        self._instances = _known(())
        self._keys = _known(())
        self._kinds: dict[str, str] = {}
        self._series: dict[Labels, Series] = {}
        self._found: dict[tuple[Any, ...], Series] = {}  # by the names in records
        self._spend: dict[tuple[str, str, str], float] = {}  # by policy, model and key
        #: By policy: what was counted at instances that have left the fleet, of `_BY_POLICY`. A counter never decreases.
        self.dropped: dict[str, Series] = {}

    def set_fleet(
        self,
        *,
        policies: Iterable[str],
        models: Iterable[str],
        aliases: Iterable[str] = (),
        instances: Mapping[str, str],
        keys: Iterable[str] = (),
    ) -> None:
        """Add the names that labels may take, at the start and after each change of the fleet.

        `instances` maps each name to its engine kind. Counts under older names stay, but those of instances that have left
        the fleet are dropped when half of the label sets are used: new instances need them. Counts by policy stay.
        """
        self._count_records()
        self._found.clear()
        models = list(models)
        if instances and max(len(self._series), len(self._instances)) > MAX_SERIES // 2:
            self._drop_gone(instances)
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

    def _drop_gone(self, instances: Mapping[str, str]) -> None:
        """Drop the counts and the names of all but these instances."""
        kept = {*instances, OTHER, ""}
        for key, each in self._series.items():
            if key.instance not in kept:
                sums = self.dropped.setdefault(key.policy, Series())
                for name in _BY_POLICY:
                    setattr(sums, name, getattr(sums, name) + getattr(each, name))
        self._series = {key: each for key, each in self._series.items() if key.instance in kept}
        self._instances, self._kinds = _known(()), {}

    def record(self, record: RequestRecord) -> None:
        """Count one finished request, whose record the caller must not change afterwards."""
        records = self._records
        records.append(record)
        if len(records) >= _COUNTED_AT_ONCE:
            self._count_records()

    def _count_records(self) -> None:
        records, self._records = self._records, []
        for record in records:
            try:
                self._count(record)
            except Exception as error:  # noqa: BLE001 (one record's fault must not reach the request that has just ended)
                failed("metrics", error)

    def _count(self, record: RequestRecord) -> None:
        record.complete()
        names, outcome = _names(record), record.outcome
        series = self._found.get(names) or self._find(names)

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
        if outcome in SUCCESS:  # an answer that was cut short tells nothing about these
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
            self._add_spend(record, record.cost_usd)
        if record.budget_overrun_usd:
            series.overruns += 1
            series.overrun_usd += record.budget_overrun_usd

    def _add_spend(self, record: RequestRecord, cost_usd: float) -> None:
        key = (
            self._policies.get(record.policy, OTHER),
            self._models.get(record.model, OTHER),
            self._keys.get(record.key_name, OTHER),
        )
        spent = self._spend
        if key not in spent and len(spent) >= MAX_SERIES:
            key = (*key[:2], OTHER)
        spent[key] = spent.get(key, 0.0) + cost_usd

    def observe_decision(self, policy: str, seconds: float) -> None:
        """Count how long the scheduler took to decide one request."""
        histogram = self.decisions.get(policy)
        if histogram is not None:
            histogram.observe(seconds)

    def _requested_label(self, name: str | None) -> str:
        """The label of a model name that is not in the fleet: NAME:policy counts as NAME."""
        if not name:
            return ""
        return self._requested.get(name.rpartition(":")[0]) or OTHER

    def _find(self, names: tuple[Any, ...]) -> Series:
        """The series of a record with these names, a new one if there is none."""
        policy, requested, model, instance, api, outcome = names
        key = Labels(
            self._policies.get(policy, OTHER),
            self._requested.get(requested) or self._requested_label(requested),
            self._models.get(model, OTHER),
            self._instances.get(instance, OTHER),
            OPERATIONS.get(api, OTHER) if api else "",
            outcome,
        )
        if key not in self._series and len(self._series) >= MAX_SERIES:
            key = Labels(OTHER, key.requested, key.model, OTHER, OTHER, outcome)
            if key not in self._series and len(self._series) >= MAX_SERIES + MAX_BY_MODEL:
                key = Labels(OTHER, OTHER, OTHER, OTHER, OTHER, outcome)
        series = self._series.setdefault(key, Series())
        if policy in self._policies and requested in self._requested and len(self._found) < MAX_SERIES:
            self._found[names] = series  # no name that a client made up
        return series

    # --- reading ------------------------------------------------------------------------------------
    def kind(self, instance: str) -> str:
        """The engine kind of an instance, "" if it is unknown."""
        return self._kinds.get(instance, "")

    def spend(self) -> Iterable[tuple[tuple[str, str, str], float]]:
        """Cost in USD by policy, model and key."""
        self._count_records()
        return list(self._spend.items())

    def all_series(self) -> Iterable[tuple[Labels, Series]]:
        """Everything counted so far."""
        self._count_records()
        return self._series.items()


def _known(names: Iterable[str]) -> dict[str | None, str]:
    return {None: "", "": "", **{name: name for name in names}}
