"""Predictions that keep their inputs, so that their errors can be learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from struct import Struct
from typing import Any

from predictors.kernels import Estimate, Estimates, ModelOutputs, each_with
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.lengths import AnswerLength
from predictors.kernels.reference.quantiles import PREDICTIONS
from predictors.online.forecast import Quality
from predictors.online.tree_offsets import TreeForecast
from router.core.types import Candidate, Prediction

#: The quantiles of one time, read at once.
_QUANTILES = Struct(f"{len(PREDICTIONS) * len(TAUS)}d")


class Predictions:
    """Those of one request, for all of its candidates at once (`router.core.interfaces.PredictionColumns`). The lists have
    one value for each candidate, in their order, and are made when they are first read."""

    __slots__ = (
        "_candidates", "_costs", "_e2es", "_ttfts", "answers", "estimates", "made_at", "outputs", "p_miss", "qualities", "waited_s",
    )  # fmt: skip

    def __init__(
        self,
        candidates: Sequence[Candidate],
        estimates: Estimates,
        answers: list[AnswerLength] | list[None],
        outputs: ModelOutputs,
        qualities: Sequence[Quality],
        p_miss: list[float] | list[None],
        waited_s: float,
        made_at: float,
    ) -> None:
        self._candidates = candidates
        self.estimates = estimates
        self.answers = answers  # None where nothing is decoded
        self.outputs = outputs
        self.qualities = qualities  # with their standard deviations
        self.p_miss = p_miss
        self.waited_s = waited_s  # since the request's arrival
        self.made_at = made_at
        self._ttfts: list[float] | None = None
        self._e2es: list[float] | None = None
        self._costs: list[float] | None = None

    @property
    def ttft_s_p50(self) -> list[float]:
        """Median TTFT."""
        if self._ttfts is None:
            of = self.outputs
            self._ttfts, _ = self.estimates.times(
                self.answers, self.waited_s, of.rows, of.factors, 0, len(self.answers)
            )
        return self._ttfts

    @property
    def e2e_s_mean(self) -> list[float]:
        """Mean E2E."""
        if self._e2es is None:
            of = self.outputs
            self._e2es = self.estimates.means(
                self.answers, self.waited_s, of.rows, of.factors, of.decides_ttft, of.decides_tpot
            )
        return self._e2es

    @property
    def cost_usd(self) -> list[float]:
        """Expected price of the attempt."""
        if self._costs is None:
            self._costs = self.estimates.costs(self.answers, self._candidates, 0, len(self.answers))
        return self._costs

    @property
    def output_tokens_mean(self) -> list[float]:
        """Expected tokens of the answer."""
        return self.estimates.lengths(self.answers)

    def each(self, first: int, end: int) -> list[OnlinePrediction]:
        """Those of the candidates from `first` until before `end`."""
        estimates, of, costs, size = self.estimates, self.outputs, self._costs, end - first
        answers, e2es, missed = self.answers, self._e2es or self.e2e_s_mean, self.p_miss
        ttfts, tpots = estimates.times(answers, self.waited_s, of.rows, of.factors, first, end)
        if costs is None:
            costs = estimates.costs(answers, self._candidates, first, end)
        elif size < len(answers):
            costs = costs[first:end]
        if size < len(answers):
            answers, e2es, missed = answers[first:end], e2es[first:end], missed[first:end]
        columns: list[Any] = [answers, ttfts, tpots, e2es, costs, missed, [self] * size, [None] * size]
        return each_with(_Unread, _NAMES, columns, first, end)


#: What a prediction is given, and what it reads when it is needed.
_LATER = frozenset((
    "e2e_s_p50", "e2e_s_p95", "engine_ttft_s", "estimate", "made_at", "memory_ratio", "of_tpot", "of_ttft", "quality", "quality_sd", "outputs", "raw_tpot_s", "ttft_s_p95", "waited_s",
))  # fmt: skip
_fields_of = attrgetter(*[each.name for each in fields(Prediction)])
_NAMES = "answer", "ttft_s_p50", "tpot_s", "e2e_s_mean", "cost_usd", "p_miss", "_of", "trees"


class OnlinePrediction(Prediction):
    """The prediction of `predictors.online.predictor.OnlinePredictor` for one candidate.

    It keeps the `estimate`, the time at which it was made (`made_at`), TPOT before shrinking (`raw_tpot_s`) and the
    answer's length (None: nothing is decoded). `of_ttft` and `of_tpot` are the factors (median, 95 % quantile, mean) of
    actual to physical times.

    One is made for each candidate of each request, so it holds the few values that policies read; the others are read from
    `Predictions` when they are needed.
    """

    __slots__ = (
        "_at", "_of", "answer", "estimate", "made_at", "of_tpot", "of_ttft", "outputs", "raw_tpot_s", "trees",
        "waited_s",
    )  # fmt: skip

    _at: int
    _of: Predictions
    answer: AnswerLength | None
    estimate: Estimate
    made_at: float
    of_tpot: Sequence[float]
    of_ttft: Sequence[float]
    outputs: ModelOutputs
    raw_tpot_s: float
    trees: TreeForecast | None  # set if the policy is `predicted_latency`
    waited_s: float  # since the request's arrival

    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__
    __hash__ = Prediction.__hash__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OnlinePrediction):
            return NotImplemented
        return _fields_of(self) == _fields_of(other)

    def complete(self: Any) -> None:
        """Read the values that few predictions need at once, before they are read singly."""
        if type(self) is OnlinePrediction:
            return
        self.__class__ = OnlinePrediction  # first, because each read of a class with `__getattr__` is slow
        of, at = self._of, self._at
        del self._of  # most of it is needed no more
        self.outputs = outputs = of.outputs
        row, memory, answer, self.waited_s = outputs.rows[at], outputs.memory, self.answer, of.waited_s
        (
            self.estimate, self.raw_tpot_s, self.memory_ratio, self.of_ttft, self.of_tpot, self.engine_ttft_s, self.ttft_s_p95,
            self.e2e_s_p50, self.e2e_s_p95,
        ) = of.estimates.details(at, answer, of.waited_s, row, outputs.factors)  # fmt: skip
        if row >= 0 and memory is not None:
            self.memory_ratio = memory.predict_one(outputs.memory_rows, row)
        self.quality, self.quality_sd = of.qualities[at]
        self.made_at = of.made_at
        if answer is None:
            self.output_tokens_p50 = self.output_tokens_p90 = self.output_tokens_mean = 0.0
        else:
            choices = answer.choices
            self.output_tokens_p50, self.output_tokens_p90 = answer.p50 * choices, answer.p90 * choices
            self.output_tokens_mean = answer.mean * choices

    def quantiles(self, time: int) -> tuple[float, ...]:
        """Those of log errors to the physical TTFT (`time` 0) or TPOT (1) at TAUS, of each of PREDICTIONS one after another.
        Empty if the latency model did not predict."""
        row = self.outputs.rows[self._at]
        if row < 0:
            return ()
        begin = (2 * row + time) * _QUANTILES.size
        return _QUANTILES.unpack_from(self.outputs.quantiles, begin)


class _Unread(OnlinePrediction):
    """One of which only the values are there that policies read. It becomes an `OnlinePrediction` when it has all, because
    Python reads each attribute of a class with `__getattr__` in a slow way."""

    __slots__ = ()

    @property
    def output_tokens_p50(self) -> float:
        return 0.0 if self.answer is None else self.answer.p50 * self.answer.choices

    @property
    def output_tokens_p90(self) -> float:
        return 0.0 if self.answer is None else self.answer.p90 * self.answer.choices

    @property
    def output_tokens_mean(self) -> float:
        return 0.0 if self.answer is None else self.answer.mean * self.answer.choices

    def __getattr__(self: Any, name: str) -> Any:
        """The first read of one of the values that few predictions need."""
        if name not in _LATER:
            raise AttributeError(name)
        OnlinePrediction.complete(self)
        return getattr(self, name)
