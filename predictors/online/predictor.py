"""The predictor that serves: physical estimate x learned error x output length, as good as is known.

    TTFT = waited + physical TTFT x exp(r1)          r1, r2: log errors, each a distribution,
    TPOT = physical TPOT x exp(r2)                           taken as independent
    E2E  = TTFT + TPOT x (min(Y, cap) - 1)           Y: the length of this answer, a distribution

Without trained models r1 and r2 are the physical estimate's errors of this instance and model, and Y what the
model's answers were like (`residuals`, `length`). A latency model tells r1 and r2 from the instance's history
(`latency`), corrected online (`calibration`); a length model tells Y from the prompt, a relevance model the
quality (`outlook`). Each falls back to what needs no training.

`p_miss` is 1 - P(all targets met). With an E2E target it is summed over a few equally likely values of
TTFT and TPOT, each conditioned on keeping its own target, and the length's distribution function; so the
three targets are judged jointly, not each for itself.

One candidate is a decision over one: there is no second way. What branches (`physical`, `sketch`) goes candidate by
candidate, which up to some 40 of them costs less than arrays would; networks and `misses` take all at once.
What happened is told to `observations`, which learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import NamedTuple

import numpy as np

from predictors.analytic.answer_length import AnswerLength, answer_length, output_cap
from predictors.analytic.log_errors import LogErrors
from predictors.analytic.misses import p_miss, p_miss_without_decode
from predictors.learned.latency.conformal import calibrated, factors_of
from predictors.learned.latency.features import TAUS, target_rows
from predictors.learned.memory import feature_rows
from predictors.learned.models import UNTRAINED, Models
from predictors.online.calibration import Trust
from predictors.online.model_lengths import Lengths, served_tables
from predictors.online.observations import Observations
from predictors.online.outlook import Outlook
from predictors.online.pair import Pair
from predictors.online.prediction import PhysicalPrediction, Quantiles
from predictors.online.residuals import ResidualWindow
from predictors.online.sharing import Sharing
from predictors.online.sketch import Sketch, sketch
from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, Prediction, Request, Slo

#: The latency model is asked of this many candidates, those that the physical estimate ranks first; of the rest the
#: physical prediction, calibrated by itself, serves.
_MOST_ASKED = 64


class _Told(NamedTuple):
    """What the models say of candidates: by place among all of them, ascending, the row; by row, the quantiles of log errors as
    they serve and as the latency model told them (2, TAUS), the factors that the former stand for (2, 3: median, 95 %
    quantile, mean), and the mean share of KV memory in use."""

    rows: dict[int, int]
    quantiles: list[Quantiles]
    raw: np.ndarray
    factors: list[list[list[float]]]
    memory_ratios: list[float]


_NOTHING_TOLD = _Told({}, [], np.empty((0, 2, len(TAUS))), [], [])


class OnlinePredictor:
    """Implements `router.core.interfaces.Predictor`. Pure: no clock, no I/O; one object for a fleet."""

    def __init__(self, models: Models = UNTRAINED, prefix_blocks: int = 8192) -> None:
        self._seen = seen = Observations(models, prefix_blocks)
        #: What other replicas of the router are told of this, and tell it.
        self.sharing = Sharing(seen)
        # What is observed is learned there, and described there.
        self.use = seen.use
        self.observe_dispatch = seen.observe_dispatch
        self.observe_ttft = seen.observe_ttft
        self.observe_end = seen.observe_end
        self.observe_loss = seen.observe_loss
        self.observe_report = seen.observe_report
        self.observe_quality = seen.observe_quality
        self.forget = seen.forget
        self.receive = self.sharing.hear

    @property
    def models(self) -> Models:
        """The trained models in use; `use` changes them."""
        return self._seen.models

    @property
    def lengths(self) -> Lengths:
        """What is known of each model's answers."""
        return self._seen.lengths

    @property
    def name(self) -> str:
        """The artifacts in use, "physical" without any."""
        return self.models.name

    # --- the Predictor protocol ------------------------------------------------------------------
    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        """Expectation if the request were dispatched to `candidate` at `now`; changes nothing learned."""
        (prediction,) = self._predictions(request, (candidate,), (instance,), now)
        return prediction

    def predict_all(self, request: Request, options: Sequence[Option], now: float) -> None:
        """Give every option its prediction; the models are asked once for all."""
        candidates = [option.candidate for option in options]
        instances = [option.instance for option in options]
        predictions = self._predictions(request, candidates, instances, now)
        for option, prediction in zip(options, predictions, strict=True):
            option.prediction = prediction

    def qualities(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """Expected quality by candidate, as `predict_all` would say."""
        outlook = self._outlook(request, candidates)
        return [self._seen.qualities.of(each, outlook)[0] for each in candidates]

    def ttft_floor_s(self, request: Request, candidate: Candidate, instance: Instance) -> float:
        """Least time to a first token on an idle instance: its own prefill at the least error factor that
        the light-load window makes credible (the prior is wide, so early on this is a low bound)."""
        pair = self._pair(candidate, instance)
        cached_tokens = self.cached_tokens(request, instance.name)
        idle_s = pair.costs.idle_ttft_s(request.prompt_tokens, cached_tokens)
        return idle_s * min(pair.ttft.window(0).least_factor(), 1.0)

    # --- how it is made ----------------------------------------------------------------------------
    def _predictions(
        self, request: Request, candidates: Sequence[Candidate], instances: Sequence[Instance], now: float
    ) -> list[PhysicalPrediction]:
        """One for each candidate at its instance."""
        outlook = self._outlook(request, candidates)
        sketches = self._sketches(request, candidates, instances, now, outlook)
        told = self._ask(request, sketches, instances, now)
        waited_s = max(now - request.arrived_at, 0.0)
        ttft_heard, tpot_heard = _heard(sketches, told)
        misses: Sequence[float | None] = [None] * len(sketches)
        if request.slo is not None:
            misses = _misses(request.slo, request.decodes, waited_s, sketches, told, ttft_heard, tpot_heard)
        quality_of, decodes = self._seen.qualities.of, request.decodes
        rows, quantiles, raw, factors, memory_ratios = told
        row: int | None
        predictions = []
        for at, (_, known, raw_tpot_s, memory_ratio, answer, ttft_errors, tpot_errors) in enumerate(sketches):
            row = rows.get(at)
            price = candidates[at].price
            cost_usd = known.prompt_tokens * price.input_usd_per_mtok * 1e-6
            if decodes:
                cost_usd += answer.mean * answer.choices * price.output_usd_per_mtok * 1e-6
            predictions.append(
                PhysicalPrediction(
                    known,
                    answer if decodes else None,
                    factors[row][0] if row is not None and ttft_heard[at] else ttft_errors.factors,
                    factors[row][1] if row is not None and tpot_heard[at] else tpot_errors.factors,
                    waited_s,
                    cost_usd,
                    quality_of(candidates[at], outlook),
                    misses[at],
                    memory_ratio if row is None else memory_ratios[row],
                    raw_tpot_s,
                    None if row is None else quantiles[row],
                    None if row is None else raw[row],
                    now,
                )
            )
        return predictions

    def _outlook(self, request: Request, candidates: Sequence[Candidate]) -> Outlook | None:
        """What the prompt lets expect of the candidates' models, worked out once a request."""
        features, models = request.features, self.models
        if features is None or not request.decodes or (models.length is None and models.relevance is None):
            return None
        outlook: Outlook | None = request.outlook
        if outlook is None:
            outlook = request.outlook = Outlook()
        fresh = {each.model: each.family for each in candidates if each.model not in outlook.tables}
        if not fresh:
            return outlook
        lengths = [self.lengths.of(model, family) for model, family in fresh.items()]
        online = [each.output for each in lengths]
        if models.length is None:
            outlook.tables.update(zip(fresh, online, strict=True))
        else:
            shares = models.length.shares(features, list(fresh.items()))
            tables = served_tables([each.learned for each in lengths], shares, online)
            outlook.predicted.update(zip(fresh, shares, strict=True))
            outlook.tables.update(zip(fresh, tables, strict=True))
        self._seen.qualities.look(outlook, features, list(fresh))
        return outlook

    def _sketches(
        self,
        request: Request,
        candidates: Sequence[Candidate],
        instances: Sequence[Instance],
        now: float,
        outlook: Outlook | None,
    ) -> list[Sketch]:
        answers: dict[tuple[str, int | None], AnswerLength] = {}  # once for all instances of a model
        may_be_cached = bool(request.prefix) or request.session is not None
        found = []
        for candidate, instance in zip(candidates, instances, strict=True):
            pair = self._pair(candidate, instance)
            cap = output_cap(request, candidate)
            answer = answers.get((candidate.model, cap))
            if answer is None:
                usual = pair.lengths.output
                table = usual if outlook is None else outlook.tables[candidate.model]
                answer = answers[candidate.model, cap] = answer_length(table, cap, request.choices, usual)
            cached_tokens = self.cached_tokens(request, instance.name) if may_be_cached else 0.0
            found.append(sketch(pair, request, candidate, instance, cached_tokens, answer, now))
        return found

    def _ask(
        self, request: Request, sketches: Sequence[Sketch], instances: Sequence[Instance], now: float
    ) -> _Told:
        """What the latency and the memory model say of the candidates that are ranked first."""
        model, memory = self.models.latency, self.models.memory
        if model is None or not request.decodes:
            return _NOTHING_TOLD
        asked: Sequence[int] = range(len(sketches))
        if len(sketches) > _MOST_ASKED:
            ranks = [each.e2e_s for each in sketches]
            asked = sorted(nsmallest(_MOST_ASKED, asked, key=ranks.__getitem__))
            sketches, instances = [sketches[at] for at in asked], [instances[at] for at in asked]
        tracks = [self._seen.track(instance.name) for instance in instances]
        rows = target_rows(tracks, instances, [each.estimate for each in sketches], now)
        raw = model.quantiles(np.array([track.encoding for track in tracks]), rows)
        groups = [each.pair.group for each in sketches]
        quantiles = calibrated(raw, np.array([(each.ttft.values, each.tpot.values) for each in groups]))
        biases = [(each.estimate.ttft_bias, each.estimate.tpot_bias) for each in sketches]
        quantiles += np.array(biases)[:, :, None]
        ratios = [each.memory_ratio for each in sketches]
        if memory is not None:
            reported = [instance.report.kv_usage for instance in instances]
            ratios = memory.predict(feature_rows(ratios, reported, rows)).tolist()
        places = {at: row for row, at in enumerate(asked)}
        return _Told(places, quantiles.tolist(), raw, factors_of(quantiles).tolist(), ratios)

    def _pair(self, candidate: Candidate, instance: Instance) -> Pair:
        return self._seen.pair(candidate, instance)

    # --- beside the protocol ---------------------------------------------------------------------
    def cached_tokens(self, request: Request, instance: str) -> float:
        """Prompt tokens (as estimated) that the instance should hold in its prefix cache."""
        return self._seen.cached_tokens(request, instance)

    def tree_times(self, request: Request, options: Sequence[Option]) -> Sequence[tuple[float, float]] | None:
        """By option, p90 of TTFT from the arrival and of TPOT in seconds, from boosted trees (`predictors.learned.trees`);
        None without their artifact or without predictions."""
        return self._seen.trees.times(request, options, self._pair)

    def coverage(self) -> dict[str, dict[str, float | None]]:
        """By instance: share of actual values within predicted quantiles and mean absolute log errors."""
        return self._seen.coverage()

    def groups(self) -> dict[tuple[str, str], Trust]:
        """How the latency model does beside the physical estimate, by (model, hardware)."""
        return self._seen.groups()

    def length_weights(self) -> dict[str, float]:
        """By model: how far the length model is believed beside the model's own histogram, 0 to 1."""
        return self.lengths.weights() if self.models.length is not None else {}

    def feedback_counts(self) -> dict[str, int]:
        """By model: judgements that correct its quality."""
        return self._seen.qualities.counts()


def _heard(sketches: Sequence[Sketch], told: _Told) -> tuple[list[bool], list[bool]]:
    """Of which candidates the latency model is heard on TTFT, and on TPOT."""
    ttft, tpot = [False] * len(sketches), [False] * len(sketches)
    for at in told.rows:
        pair, known = sketches[at][:2]
        if pair.group.trust.believed:
            ttft[at], tpot[at] = pair.ttft_told(known), pair.tpot_told(known)
    return ttft, tpot


def _misses(
    slo: Slo,
    decodes: bool,
    waited_s: float,
    sketches: Sequence[Sketch],
    told: _Told,
    ttft_heard: Sequence[bool],
    tpot_heard: Sequence[bool],
) -> list[float]:
    """`p_miss` by candidate."""
    if not decodes:
        return [
            p_miss_without_decode(slo, waited_s, each.estimate.ttft_s, each.ttft_errors) for each in sketches
        ]
    windows: list[ResidualWindow | None] = [each.ttft_errors for each in sketches]
    windows += [each.tpot_errors for each in sketches]
    quantiles = []
    for time, heard in enumerate((ttft_heard, tpot_heard)):
        for at, row in told.rows.items():
            if heard[at]:
                windows[time * len(sketches) + at] = None
                quantiles.append(told.quantiles[row][time])
    errors = LogErrors(windows, np.array(quantiles).reshape(-1, len(TAUS)))
    times_s = np.array([each.estimate[:2] for each in sketches]).T
    missed = p_miss(slo, waited_s, times_s, errors, [each.answer for each in sketches])
    found: list[float] = missed.tolist()
    return found
