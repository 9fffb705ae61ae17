"""The predictor that serves: physical estimate x learned error x output length (docs/predictions.md has the formulas).

The errors of TTFT and TPOT are taken as independent. Without trained models they are the physical estimate's own for this
instance and model, and the length is that of the model's answers (`residuals`, `length`). A latency model predicts the errors
from the instance's history, and is calibrated online (`predictors.kernels.reference.model_outputs`). A length model predicts
the length from the prompt, a relevance model the quality (`forecast`). Each of them falls back to what needs no training.

One candidate is a decision over one; there is no second way. All arithmetic takes all candidates at once
(`predictors.kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from predictors.kernels import (
    Estimates,
    ModelOutputs,
    Sources,
    analytic_estimates,
    answer_length,
    by_model,
    model_outputs,
    p_miss,
    served_tables,
)
from predictors.kernels.reference.lengths import AnswerLength, output_cap
from predictors.kernels.reference.model_outputs import NO_ROWS
from predictors.learned.models import UNTRAINED, Models
from predictors.online.candidate_stats import CandidateStats
from predictors.online.fleet_stats import Served
from predictors.online.forecast import PromptForecast, Quality
from predictors.online.learning import Learning
from predictors.online.model_lengths import ServedModels
from predictors.online.prediction import Predictions
from predictors.online.prompt_caches import PromptCaches
from predictors.online.qualities import Qualities
from predictors.online.sharing import Sharing
from predictors.online.tree_times import TreeTimes
from router.core.interfaces import Option
from router.core.option_columns import parts_of, set_predictions
from router.core.state import Instance
from router.core.types import Candidate, Prediction, Request, Slo


class OnlinePredictor(Learning):
    """Implements `router.core.interfaces.Predictor`: predicts from what it learns. Pure: no clock, no I/O; one object for a
    fleet."""

    def __init__(self, models: Models = UNTRAINED) -> None:
        super().__init__(models)
        self._qualities = self.learner(Qualities)
        self._caches = self.learner(PromptCaches)
        #: Sends observations to other replicas and receives theirs.
        self.sharing = Sharing(self)
        self.receive = self.sharing.receive
        self.coverage = self.stats.coverage
        self.groups = self.stats.groups
        self.latency_weights = self.stats.latency_weights
        self.length_weights = self.stats.length_weights
        self.feedback_counts = self._qualities.counts
        #: By option, p90 of TTFT and TPOT from boosted trees.
        self.tree_times = self.learner(TreeTimes).times

    @property
    def models(self) -> Models:
        """The trained models in use; `use` changes them."""
        return self.stats.models

    @property
    def name(self) -> str:
        """The artifacts in use, "physical" without any."""
        return self.models.name

    # --- the Predictor protocol ------------------------------------------------------------------
    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        """The prediction if the request were dispatched to `candidate` at `now`. Changes nothing that is learned."""
        served = self.stats.of_one(candidate, instance)
        (prediction,) = self._predictions(request, served, (instance,), now).each(0, 1)
        return prediction

    def predict_all(self, request: Request, options: Sequence[Option], now: float) -> Predictions:
        """Give every option its prediction. Each model runs once for all of them. The same values by column are returned."""
        candidates, instances = parts_of(options)
        served = self.stats.of_all(candidates, instances)
        found = self._predictions(request, served, instances, now)
        set_predictions(options, found)
        return found

    def qualities(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """Expected quality by candidate, the same as that of `predict_all`."""
        forecast = self._forecast(request, self.stats.models_of(candidates))
        return [self._qualities.of(each, forecast)[0] for each in candidates]

    def ttft_floor_s(self, request: Request, candidate: Candidate, instance: Instance) -> float:
        """The least time to a first token on an idle instance: its own prefill, at the least error factor that the
        light-load window makes credible (the prior is wide, so early on this is a low bound)."""
        stats = self.stats.of(candidate, instance)
        cached_tokens = self.cached_tokens(request, instance.name)
        idle_s = stats.costs.idle_ttft_s(request.prompt_tokens, cached_tokens)
        return idle_s * min(stats.ttft.windows[0].least_factor(), 1.0)

    # --- the prediction ----------------------------------------------------------------------------
    def _predictions(
        self, request: Request, served: Served, instances: Sequence[Instance], now: float
    ) -> Predictions:
        """One for each candidate at its instance."""
        candidates, stats, models = served
        forecast = self._forecast(request, models)
        answers, qualities = self._by_model(request, candidates, stats, forecast)
        cached = [0.0] * len(stats)
        if request.prefix or request.session is not None:
            cached = [self.cached_tokens(request, instance.name) for instance in instances]
        estimates = analytic_estimates(
            stats, candidates, instances, request.prompt_tokens, cached, answers, now
        )
        outputs = _outputs(self.stats.models, request, stats, estimates, instances, now)
        waited_s = max(now - request.arrived_at, 0.0)
        missed: list[float] | list[None] = [None] * len(stats)
        if request.slo is not None:
            missed = _misses(request.slo, request.decodes, waited_s, estimates, answers, outputs)
        decoded: list[AnswerLength] | list[None] = answers if request.decodes else [None] * len(stats)
        return Predictions(candidates, estimates, decoded, outputs, qualities, missed, waited_s, now)

    def _by_model(
        self,
        request: Request,
        candidates: Sequence[Candidate],
        stats: Sources[CandidateStats],
        forecast: PromptForecast | None,
    ) -> tuple[list[AnswerLength], list[Quality]]:
        """The answer's length and its quality at each candidate."""

        def both(candidate: Candidate, of: CandidateStats) -> tuple[AnswerLength, Quality]:
            usual = of.lengths.output
            table = usual if forecast is None else forecast.tables[candidate.model]
            length = answer_length(table, output_cap(request, candidate), request.choices, usual)
            return length, self._qualities.of(candidate, forecast)

        return by_model(candidates, stats, both)

    def _forecast(self, request: Request, served: ServedModels) -> PromptForecast | None:
        """The forecast for these models, computed once a request."""
        features, models = request.features, self.stats.models
        if features is None or not request.decodes or (models.length is None and models.relevance is None):
            return None
        forecast: PromptForecast | None = request.forecast
        if forecast is None:
            forecast = request.forecast = PromptForecast()
        elif forecast.tables.keys() >= served.names:
            return forecast
        else:
            served = served.without(forecast.tables)
        tables = served.output
        if models.length is not None:
            shares = models.length.shares(features, served.models)
            tables = served_tables(served.learned, shares, tables)
        for at, (model, _) in enumerate(served.models):
            forecast.tables[model] = tables[at]
            if models.length is not None:
                forecast.predicted[model] = shares[at]
        if served.rated:
            self._qualities.predict(forecast, features, served.rated)
        return forecast

    # --- beside the protocol ---------------------------------------------------------------------
    def cached_tokens(self, request: Request, instance: str) -> float:
        """Prompt tokens, in the router's estimate, that are probably in the instance's prefix cache."""
        return self._caches.cached_tokens(request, instance)


def _outputs(
    models: Models,
    request: Request,
    stats: Sources[CandidateStats],
    estimates: Estimates,
    instances: Sequence[Instance],
    now: float,
) -> ModelOutputs:
    """The latency model's and the memory model's predictions for each candidate."""
    latency, size = models.latency, len(estimates)
    if latency is None or not request.decodes:
        return ModelOutputs([-1] * size, NO_ROWS, NO_ROWS, None, NO_ROWS, [False] * size, [False] * size)
    memory = None if models.memory is None else models.memory.network
    return model_outputs(latency.head, memory, stats, estimates, instances, now)


def _misses(
    slo: Slo,
    decodes: bool,
    waited_s: float,
    estimates: Estimates,
    answers: Sequence[AnswerLength],
    outputs: ModelOutputs,
) -> list[float]:
    """P(an SLO is missed) by candidate."""
    if decodes:
        by_ttft, by_tpot, quantiles = outputs.decides_ttft, outputs.decides_tpot, outputs.quantiles
        return p_miss(slo, waited_s, estimates, answers, by_ttft, by_tpot, quantiles, outputs.rows)
    targets_s = [target_s for target_s in (slo.ttft_s, slo.e2e_s) if target_s is not None]
    if not targets_s:
        return [0.0] * len(estimates)
    left_s = min(targets_s) - waited_s
    shares = [left_s / each.estimate.ttft_s for each in estimates]
    return [
        each.ttft_errors.exceed(log(share)) if share > 0.0 else 1.0
        for each, share in zip(estimates, shares, strict=True)
    ]
