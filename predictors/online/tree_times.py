"""The predictions for `predicted_latency`: forests of boosted trees, corrected online by their errors.

The forests stay as they were trained (`predictors.learned.trees`); `predictors.online.tree_offsets` corrects them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Annotated

import numpy as np
from pydantic import Field

from predictors.kernels.reference.estimates import is_unloaded
from predictors.learned.models import Models
from predictors.learned.trees import tree_row
from predictors.online.candidate_stats import CandidateStats, PendingTtft
from predictors.online.fleet_stats import FleetStats
from predictors.online.learner import EndEvent, Learner, LossEvent
from predictors.online.observation import CandidateKey, Log
from predictors.online.prediction import OnlinePrediction
from predictors.online.tree_offsets import TreeForecast, TreeGroup
from router.core.interfaces import Option
from router.core.types import Request

#: The times of `TreeError.time`.
_TTFT, _TPOT = 0, 1


@dataclass(slots=True)
class TreeError:
    """A log error of a forest: of TTFT (`time` 0) or of TPOT (1)."""

    candidate: CandidateKey
    time: Annotated[int, Field(ge=0, le=1)]
    queued: bool
    error: Log

    def for_other_models(self) -> None:
        return None


class TreeTimes(Learner[TreeError]):
    """The forests, and the offsets of each (model, hardware)."""

    observations = (TreeError,)

    def __init__(self, stats: FleetStats) -> None:
        super().__init__(stats)
        self._groups: defaultdict[tuple[str, str], TreeGroup] = defaultdict(TreeGroup)

    def times(self, request: Request, options: Sequence[Option]) -> list[tuple[float, float]] | None:
        """By option the p90 of TTFT from the request's arrival and of TPOT, in seconds. None without the forests, and
        for options without predictions of this predictor. Each prediction keeps its `TreeForecast`, from which its
        outcome is learned."""
        model = self.stats.models.trees
        predictions = [
            option.prediction for option in options if isinstance(option.prediction, OnlinePrediction)
        ]
        if model is None or len(predictions) < len(options):
            return None
        stats = [self.stats.of(option.candidate, option.instance) for option in options]
        rows = [
            tree_row(option.instance, of.costs, prediction.estimate)
            for option, of, prediction in zip(options, stats, predictions, strict=True)
        ]
        features, bases = zip(*rows, strict=True)
        logs = model.predict(np.array(features)) + np.array(bases)
        times = []
        for option, prediction, of, (ttft, tpot) in zip(
            options, predictions, stats, logs.tolist(), strict=True
        ):
            instance = option.instance
            group = self._groups[of.group_key]
            queued = instance.awaiting_first_token > 0
            ttft_s = exp(ttft + group.value(_TTFT, queued))
            if is_unloaded(instance, option.candidate.upstream_model):
                # The forests have not seen models being loaded, and this TTFT shows nothing about others.
                ttft_s += of.costs.load_s
            else:
                prediction.trees = TreeForecast(ttft, tpot, group, queued)
            waited_s = max(prediction.made_at - request.arrived_at, 0.0)
            times.append((waited_s + ttft_s, exp(tpot + group.value(_TPOT, queued))))
        return times

    def observe_first_token(self, attempt: PendingTtft) -> TreeError | None:
        forecast = attempt.prediction.trees
        if forecast is None or self._is_stale(forecast, attempt.stats):
            return None
        error = log(attempt.ttft_s) - forecast.ttft
        return TreeError(attempt.stats.key, _TTFT, forecast.queued, error)

    def observe_loss(self, event: LossEvent) -> TreeError | None:
        if event.pending is None:
            return self.observe_end(event)
        forecast = event.pending.prediction.trees
        if forecast is None or event.waited_s <= 0.0 or self._is_stale(forecast, event.stats):
            return None
        error = log(event.waited_s) - forecast.ttft
        # A missing first token shows something only if one was predicted by then.
        return TreeError(event.stats.key, _TTFT, forecast.queued, error) if error > 0.0 else None

    def observe_end(self, event: EndEvent | LossEvent) -> TreeError | None:
        stats, tpot_s = event.stats, event.tpot_s
        forecast = None if event.prediction is None else event.prediction.trees
        if forecast is None or stats is None or tpot_s is None or tpot_s <= 0.0:
            return None
        if self._is_stale(forecast, stats):
            return None
        return TreeError(stats.key, _TPOT, forecast.queued, log(tpot_s) - forecast.tpot)

    def apply(self, observation: TreeError, now: float) -> None:
        group = self._groups[self.stats.candidates[observation.candidate].group_key]
        group.observe(observation.time, observation.queued, observation.error)

    def forget(self, instances: Collection[str]) -> None:
        for name in self._groups.keys() - self.stats.group_keys():
            del self._groups[name]

    def use(self, models: Models) -> None:
        self._groups.clear()

    def _is_stale(self, forecast: TreeForecast, stats: CandidateStats) -> bool:
        """Whether earlier forests made it."""
        return self._groups.get(stats.group_key) is not forecast.group
