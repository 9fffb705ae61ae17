"""Predictors that are wrong on purpose: what they say is bent on its way to the policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from predictors.kernels.levels import TAUS
from predictors.kernels.reference.estimates import answer_times
from predictors.learned.latency import LatencyModel
from predictors.learned.models import UNTRAINED, Models
from predictors.online.prediction import OnlinePrediction
from predictors.online.predictor import OnlinePredictor
from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, Prediction, Request, Slo

#: Place of the median among the latency model's quantiles.
MEDIAN = TAUS.index(0.5)
#: Bends the predictions of one request's options in place.
Bend = Callable[[Sequence[OnlinePrediction]], None]


class Wrong(OnlinePredictor):
    """A predictor that learns as the real one does, and says something else. `times` multiplies every time that it
    tells, and p_miss is that of these times; `bend` changes what is left."""

    def __init__(self, models: Models = UNTRAINED, *, times: float = 1.0, bend: Bend | None = None) -> None:
        super().__init__(models)
        self._times = times
        self._bend = bend

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        option = Option(candidate, instance)
        self.predict_all(request, [option], now)
        assert option.prediction is not None
        return option.prediction

    def predict_all(self, request: Request, options: Sequence[Option], now: float) -> None:
        super().predict_all(self._asked(request, now), options, now)
        found = [cast("OnlinePrediction", option.prediction) for option in options]
        for each in found:
            retell(each, ttft=self._times, tpot=self._times)
        if self._bend is not None:
            self._bend(found)

    def _asked(self, request: Request, now: float) -> Request:
        """Times `k` times as long miss a target as often as the true ones miss 1/k of it (what was waited is told
        right)."""
        slo, times = request.slo, self._times
        if slo is None or times == 1.0:
            return request
        waited_s = now - request.arrived_at

        def target(limit_s: float | None, past_s: float) -> float | None:
            return None if limit_s is None else past_s + (limit_s - past_s) / times

        bent = Slo(target(slo.ttft_s, waited_s), target(slo.tpot_s, 0.0), target(slo.e2e_s, waited_s))
        return replace(request, slo=bent)


def retell(told: OnlinePrediction, *, ttft: float = 1.0, tpot: float = 1.0, tokens: float = 1.0) -> None:
    """Multiply what a prediction says of its times and its answer's length."""
    answer = told.answer
    told.of_ttft = [factor * ttft for factor in told.of_ttft]
    told.of_tpot = [factor * tpot for factor in told.of_tpot]
    told.ttft_s_p50 = told.waited_s + told.estimate.ttft_s * told.of_ttft[0]
    told.e2e_s_mean = told.waited_s + told.estimate.ttft_s * told.of_ttft[2]
    if answer is None:
        retell_times(told)
        return
    told.tpot_s = told.estimate.tpot_s * told.of_tpot[0]
    told.answer = answer = answer._replace(
        p50=answer.p50 * tokens,
        p90=answer.p90 * tokens,
        mean=answer.mean * tokens,
        long_p50=answer.long_p50 * tokens,
        long_p95=answer.long_p95 * tokens,
        long_mean=answer.long_mean * tokens,
    )
    told.e2e_s_mean += told.estimate.tpot_s * told.of_tpot[2] * max(0.0, answer.long_mean - 1.0)
    if told.cost_usd is not None:
        told.cost_usd *= tokens  # nearly all of it is for output
    retell_times(told)


def retell_times(told: OnlinePrediction) -> None:
    """Say the times that follow from the factors and the answer's length."""
    told.engine_ttft_s, told.ttft_s_p95, told.e2e_s_p50, told.e2e_s_p95 = answer_times(
        told.estimate, told.answer, told.waited_s, told.of_ttft, told.of_tpot
    )


def lengths(by: float) -> Bend:
    """Answers `by` times as long."""

    def bend(found: Sequence[OnlinePrediction]) -> None:
        for each in found:
            retell(each, tokens=by)

    return bend


def overconfident(found: Sequence[OnlinePrediction]) -> None:
    """Nothing will be missed."""
    for each in found:
        if each.p_miss is not None:
            each.p_miss *= 0.02


def constant(found: Sequence[OnlinePrediction]) -> None:
    """All options are told alike: a second, 30 ms a token, one miss in ten."""
    for each in found:
        retell(each, ttft=1.0 / each.engine_ttft_s)
        if each.tpot_s:
            retell(each, tpot=0.03 / each.tpot_s)
        each.p_miss = None if each.p_miss is None else 0.1


def shuffled(found: Sequence[OnlinePrediction]) -> None:
    """What is true of an option is told of the next one."""
    told = [(each.engine_ttft_s, each.tpot_s, each.p_miss) for each in found]
    for each, (ttft_s, tpot_s, p_miss) in zip(found, told[1:] + told[:1], strict=True):
        retell(each, ttft=ttft_s / each.engine_ttft_s)
        if each.tpot_s and tpot_s:
            retell(each, tpot=tpot_s / each.tpot_s)
        each.p_miss = p_miss


def reversed_qualities(found: Sequence[OnlinePrediction]) -> None:
    """The best is told as the worst."""
    for each in found:
        each.quality = None if each.quality is None else 1.0 - each.quality


def mistaken_profiles(instances: Iterable[Instance], by: float | Mapping[str, float]) -> None:
    """Let the predictor believe in engines whose every step takes `by` times as long (a number for all, or one by
    instance), as with constants fitted to other hardware: what is calibrated online comes after."""
    for instance in instances:
        factor = by if isinstance(by, float) else by[instance.name]
        instance.profiles = {
            model: replace(profile, **{name: getattr(profile, name) * factor for name in _STEP_TIMES})
            for model, profile in instance.profiles.items()
        }


_STEP_TIMES = ("overhead_s", "floor_s", "per_token_s", "per_kv_token_s", "per_pair_s")


class MistakenLatency:
    """A latency model trained on something else: its log errors are `by` too high, or its spread is `narrow` times
    the true one."""

    def __init__(self, model: LatencyModel, *, by: float = 0.0, narrow: float = 1.0) -> None:
        self._model = model
        self.head = self
        self._by = by
        self._narrow = narrow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def quantiles(self, states: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
        told = self._model.quantiles(states, rows)
        medians = told[:, :, MEDIAN, None]
        return medians + (told - medians) * self._narrow + self._by


def hasty(found: Sequence[OnlinePrediction]) -> None:
    """First tokens are promised much too early, and targets are missed now and then: many attempts seem stuck."""
    for each in found:
        retell(each, ttft=0.3)
        each.p_miss = None if each.p_miss is None else 0.3
