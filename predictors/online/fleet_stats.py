"""The data of all candidates of a fleet, and the parts that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from statistics import fmean
from typing import NamedTuple

from predictors.kernels import (
    Accuracy,
    Coverage,
    GroupCalibration,
    InstanceHistory,
    LearnedLengths,
    ModelWeight,
    Sources,
    stats_of,
)
from predictors.kernels.step_costs import PrefillRate
from predictors.learned.models import Models
from predictors.online.candidate_stats import CandidateStats, PendingTtft
from predictors.online.model_lengths import Lengths, ServedModels
from router.compiled import compiled_init
from router.core.interfaces import SentAttempt
from router.core.option_columns import models_of
from router.core.state import Instance
from router.core.types import Candidate

#: Prefill rates are averaged over about this long, in seconds at real speed.
_PREFILL_HORIZON_S = 10.0
#: The stats of so many rosters are kept.
_MOST_KEPT = 64


@compiled_init
class Served(NamedTuple):
    """Some candidates, their stats, and their models."""

    candidates: Sequence[Candidate]
    stats: Sources[CandidateStats]
    models: ServedModels


class FleetStats:
    """`CandidateStats` by (instance, model). Pure: no clock, no I/O."""

    def __init__(self, models: Models) -> None:
        self.models = models
        #: Called with each new candidate.
        self.on_new: Callable[[Candidate], None] = lambda _: None
        self.lengths = Lengths()
        self.candidates: dict[tuple[str, str], CandidateStats] = {}
        #: Attempts without a first token.
        self.attempts: dict[SentAttempt, PendingTtft] = {}
        self.histories: dict[str, InstanceHistory] = {}
        self._prefills: dict[str, PrefillRate] = {}
        self._coverage: dict[str, Coverage] = {}
        self._groups: dict[tuple[str, str], GroupCalibration] = {}
        #: By the identity of a roster's candidates. What is kept keeps its identity.
        self._kept: dict[int, Served] = {}
        self._alone: dict[CandidateStats, Served] = {}
        self._served: dict[tuple[tuple[str, str | None], ...], ServedModels] = {}

    def of(self, candidate: Candidate, instance: Instance) -> CandidateStats:
        """The stats of a candidate. They start anew for a new candidate, and when its profile or speed changes."""
        key = instance.name, candidate.model
        stats = self.candidates.get(key)
        profile = instance.profiles.get(candidate.model)
        if stats is None or stats.profile is not profile or stats.costs.speed != instance.speed:
            if stats is not None:
                stats.pending.clear()  # attempts that were predicted with the other profile are not used to learn TTFT
            stats = self.candidates[key] = self._new(key, candidate, instance)
            self.changed()
        return stats

    def of_one(self, candidate: Candidate, instance: Instance) -> Served:
        """`of` for this one, with its model."""
        stats = self.of(candidate, instance)
        served = self._alone.get(stats)
        if served is None or served.candidates[0] is not candidate:
            candidates = (candidate,)
            served = Served(candidates, Sources([stats], candidates), self.models_of(candidates))
            self._alone[stats] = served
        return served

    def of_all(self, candidates: Sequence[Candidate], instances: Sequence[Instance]) -> Served:
        """`of` for each of them, with their models. Those of a roster, which are tuples and hold as long as the fleet, are looked
        up once."""
        lasts = candidates.__class__ is tuple
        if lasts and (kept := self._kept.get(id(candidates))) is not None:
            return kept
        found, missing = stats_of(self.candidates, candidates, instances)
        for at in missing:
            found[at] = self.of(candidates[at], instances[at])
        served = Served(candidates, Sources(found, candidates), self.models_of(candidates))
        if lasts:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[id(candidates)] = served
        return served

    def models_of(self, candidates: Sequence[Candidate]) -> ServedModels:
        """The models of candidates."""
        models = tuple(models_of(candidates).items())
        found = self._served.get(models)
        if found is None:
            relevance = self.models.relevance
            lengths = [self.lengths.of(model, family) for model, family in models]
            rated = [model for model, _ in models if relevance is not None and relevance.knows(model)]
            if len(self._served) >= _MOST_KEPT:
                self._served.clear()
            found = self._served[models] = ServedModels(models, lengths, rated)
        return found

    def changed(self) -> None:
        """The stats of a candidate, or the objects of one, are replaced."""
        self._kept.clear()
        self._alone.clear()
        self._served.clear()

    def _new(self, key: tuple[str, str], candidate: Candidate, instance: Instance) -> CandidateStats:
        self.on_new(candidate)
        name, model = key
        group = model, instance.hardware or name
        return CandidateStats(
            key,
            instance,
            instance.profiles.get(model),
            self.lengths.of(model, candidate.family),
            self._prefills.setdefault(name, PrefillRate(_PREFILL_HORIZON_S / instance.speed)),
            self._coverage.setdefault(name, Coverage()),
            None if self.models.latency is None else self.history(name),
            group,
            self._groups.setdefault(group, GroupCalibration()),
        )

    def history(self, instance: str) -> InstanceHistory:
        """The history of an instance, for the latency model."""
        history, model = self.histories.get(instance), self.models.latency
        if history is None:
            history = self.histories[instance] = InstanceHistory(None if model is None else model.network)
        return history

    def coverage(self) -> dict[str, dict[str, float | None]]:
        """By instance: the share of actual values within predicted quantiles, and mean absolute log errors."""
        return {
            instance: coverage.as_dict()
            for instance, coverage in self._coverage.items()
            if coverage.ttfts or coverage.outputs
        }

    def groups(self) -> dict[tuple[str, str], Accuracy]:
        """By (model, hardware): the accuracy of what serves and of the physical estimate alone."""
        if self.models.latency is None:
            return {}
        return {stats.group_key: stats.group.accuracy for stats in self.candidates.values()}

    def length_weights(self) -> dict[str, float]:
        """By model: the weight of the length model against the model's own histogram, 0 to 1."""
        found = self.lengths.models if self.models.length is not None else {}
        return {model: entry.learned.weight for model, entry in found.items()}

    def latency_weights(self) -> dict[tuple[str, str], dict[str, float]]:
        """By (model, hardware): the weights of the latency model against the physical estimate, for `ttft` and `tpot`, 0 to 1.
        The mean over its instances."""
        found: dict[tuple[str, str], list[CandidateStats]] = {}
        if self.models.latency is not None:
            for stats in self.candidates.values():
                found.setdefault(stats.group_key, []).append(stats)
        return {
            group: {
                name: fmean(each.weights[time].value for each in of)
                for time, name in enumerate(("ttft", "tpot"))
            }
            for group, of in found.items()
        }

    def group_keys(self) -> set[tuple[str, str]]:
        """Every (model, hardware) that a candidate has."""
        return {stats.group_key for stats in self.candidates.values()}

    def use(self, models: Models) -> None:
        """Use these models from now on. What was learned about the earlier ones is dropped. The physical estimate's
        errors and the lengths stay."""
        self.models = models
        self.histories.clear()
        self._groups.clear()
        for (instance, _), stats in self.candidates.items():
            stats.history = None if models.latency is None else self.history(instance)
            stats.group = self._groups.setdefault(stats.group_key, GroupCalibration())
            stats.weights = ModelWeight(), ModelWeight()
        for lengths in self.lengths.models.values():
            lengths.learned = LearnedLengths()
        self.changed()

    def forget(self, instances: Collection[str]) -> None:
        """Drop what was learned of instances that left the fleet. Lengths belong to models and stay."""
        for instance in instances:
            self._prefills.pop(instance, None)
            self._coverage.pop(instance, None)
            self.histories.pop(instance, None)
        for key in [key for key in self.candidates if key[0] in instances]:
            del self.candidates[key]
        self.changed()
        for attempt in [attempt for attempt in self.attempts if attempt.candidate.instance in instances]:
            del self.attempts[attempt]
        used = self.group_keys()
        for group in [group for group in self._groups if group not in used]:
            del self._groups[group]
