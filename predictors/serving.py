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
"""

# A branch costs half of a call of max() or min(), and this runs for each candidate of each request.
# ruff: noqa: PLR1730
from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from predictors.answer_length import AnswerLength, answer_length, output_cap
from predictors.calibration import GroupCalibration, Trust
from predictors.coverage import Coverage
from predictors.latency.conformal import calibrated, factors_of
from predictors.latency.features import Estimate, Track
from predictors.length import LengthTable
from predictors.memory import feature_rows
from predictors.misses import p_miss as p_miss_of
from predictors.misses import p_miss_without_decode
from predictors.model_lengths import LearnedLengths, Lengths
from predictors.models import UNTRAINED, Models
from predictors.outlook import Outlook, QualityFeedback
from predictors.pair import P50, P95, Open, Pair
from predictors.physical import PrefillRate, estimate, is_unloaded
from predictors.prediction import PhysicalPrediction, Quantiles
from predictors.prefix_index import PrefixIndex
from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import PREFIX_TOKENS, Candidate, Prediction, PromptFeatures, Request

#: Prefill rates are averaged over about this long, in seconds at real speed.
_PREFILL_HORIZON_S = 10.0

#: What the models say of one sketch: quantiles of log errors as they serve and as the latency model told them
#: (2, TAUS), median, 95 % quantile and mean of the factors that they stand for, and the mean share of KV memory in use.
_Told = tuple[Quantiles, np.ndarray, list[list[float]], float]
#: The latency model is asked of this many candidates, those that the physical estimate ranks first; of the rest the
#: physical prediction, calibrated by itself, serves.
_MOST_ASKED = 64
#: Two events at one moment are this far apart.
_LEAST_S = 1e-6


class _Sketch(NamedTuple):
    """A prediction before the latency model has been asked."""

    pair: Pair
    estimate: Estimate
    raw_tpot_s: float
    memory_ratio: float
    answer: AnswerLength


#: Lengths by model and cap: worked out once for all instances of a model.
_Answers = dict[tuple[str, int | None], AnswerLength]


def _rank(sketch: _Sketch) -> float:
    """Expected E2E by the physical estimate, in seconds."""
    known = sketch.estimate
    return known.ttft_s * exp(known.ttft_bias) + known.tpot_s * exp(known.tpot_bias) * sketch.answer.long_mean


class PhysicalPredictor:
    """Implements `router.core.interfaces.Predictor`. Pure: no clock, no I/O; one object for a fleet."""

    def __init__(self, models: Models = UNTRAINED, prefix_blocks: int = 8192) -> None:
        self.models = models
        self.lengths = Lengths()
        self.prefixes = PrefixIndex(prefix_blocks)
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._prefills: dict[str, PrefillRate] = {}
        self._coverage: dict[str, Coverage] = {}
        self._tracks: dict[str, Track] = {}
        self._groups: dict[tuple[str, str], GroupCalibration] = {}
        self._open: dict[tuple[str, str], tuple[Pair, Open]] = {}  # by request and instance
        self._feedback: dict[str, QualityFeedback] = {}

    @property
    def name(self) -> str:
        """The artifacts in use, "physical" without any."""
        return self.models.name

    def use(self, models: Models) -> None:
        """Take these models from now on. What was learned of the ones before is dropped, feedback too;
        the physical estimate's errors and lengths stay."""
        self.models = models
        self._tracks.clear()
        self._groups.clear()
        self._feedback.clear()  # its clusters were those of the relevance model before
        for (instance, _), pair in list(self._pairs.items()):
            pair.track = None if models.latency is None else self._track(instance)
            pair.group = self._groups.setdefault(pair.group_name, GroupCalibration())
        for lengths in self.lengths.all():
            lengths.learned = LearnedLengths()

    # --- the Predictor protocol ------------------------------------------------------------------
    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        """Expectation if the request were dispatched to `candidate` at `now`; changes nothing learned."""
        outlook = self._outlook(request, (candidate,))
        sketch = self._sketch(request, candidate, instance, now, outlook, {})
        (told,) = self._ask(request, [sketch], [instance], now)
        return self._predicted(request, candidate, sketch, told, now, outlook)

    def predict_all(self, request: Request, options: Sequence[Option], now: float) -> None:
        """Give every option its prediction; the latency model is asked once for all."""
        outlook = self._outlook(request, [option.candidate for option in options])
        sketch = self._sketch
        answers: _Answers = {}
        sketches = [sketch(request, each.candidate, each.instance, now, outlook, answers) for each in options]
        told: Sequence[_Told | None]
        if len(options) <= _MOST_ASKED:
            told = self._ask(request, sketches, [option.instance for option in options], now)
        else:
            first = nsmallest(
                _MOST_ASKED, range(len(options)), key=[_rank(each) for each in sketches].__getitem__
            )
            asked = self._ask(
                request, [sketches[at] for at in first], [options[at].instance for at in first], now
            )
            by_place = dict(zip(first, asked, strict=True))
            told = [by_place.get(at) for at in range(len(options))]
        for option, each, of_each in zip(options, sketches, told, strict=True):
            option.prediction = self._predicted(request, option.candidate, each, of_each, now, outlook)

    def _outlook(self, request: Request, candidates: Sequence[Candidate]) -> Outlook | None:
        """What the prompt lets expect of the candidates' models, worked out once a request."""
        features, models = request.features, self.models
        if features is None or (models.length is None and models.relevance is None):
            return None
        outlook: Outlook | None = request.outlook
        if outlook is None:
            outlook = request.outlook = Outlook()
        fresh = {each.model: each.family for each in candidates if each.model not in outlook.tables}
        if not fresh:
            return outlook
        if models.length is not None and request.decodes:
            shares = models.length.shares(features, list(fresh.items()))
            for (model, family), predicted in zip(fresh.items(), shares, strict=True):
                lengths = self.lengths.of(model, family)
                outlook.predicted[model] = predicted
                outlook.tables[model] = lengths.learned.table(predicted, lengths.output)
        else:
            for model, family in fresh.items():
                outlook.tables[model] = self.lengths.of(model, family).output
        if models.relevance is not None and request.decodes:
            names = [model for model in fresh if models.relevance.knows(model)]
            if names:
                means, deviations, outlook.cluster = models.relevance.quality(features, names)
                for model, mean, deviation in zip(names, means.tolist(), deviations.tolist(), strict=True):
                    feedback = self._feedback.get(model)
                    corrected = mean if feedback is None else feedback.corrected(mean, outlook.cluster)
                    outlook.quality[model] = corrected, deviation
        return outlook

    def _sketch(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        now: float,
        outlook: Outlook | None,
        answers: _Answers,
    ) -> _Sketch:
        model = candidate.model
        pair = self._pairs.get((instance.name, model))
        if (
            pair is None
            or pair.profile is not instance.profiles.get(model)
            or pair.costs.speed != instance.speed
        ):
            pair = self._new_pair(candidate, instance)
        costs = pair.costs
        lengths = pair.lengths
        ratio = lengths.prompt_ratio
        prompt_tokens = request.prompt_tokens * ratio
        cached_tokens = self.cached_tokens(request, instance.name) * ratio if request.prefix else 0.0

        cap = output_cap(request, candidate)
        answer = answers.get((model, cap))
        if answer is None:
            usual = lengths.output
            table: LengthTable = usual if outlook is None else outlook.tables[model]
            answer = answers[model, cap] = answer_length(table, cap, request.choices, usual)
        pending_tokens = instance.pending_prefill_tokens * ratio
        ttft_s, raw_tpot_s, ttft_stratum, tpot_stratum, step_s, memory_ratio = estimate(
            costs,
            instance,
            prompt_tokens,
            cached_tokens,
            pending_tokens,
            answer.mean,
            answer.usual_mean,
            lengths.mean_prompt_tokens,
            pair.prefills.tokens_per_s(now),
        )
        if instance.report.loaded_models is not None and is_unloaded(instance, candidate.upstream_model):
            ttft_s += costs.load_s
            ttft_stratum = 2
        tpot_s = pair.shrinkage.shrunk(raw_tpot_s)
        ttft_window = pair.ttft.window(ttft_stratum)
        tpot_window = pair.tpot.window(tpot_stratum)
        return _Sketch(
            pair,
            Estimate(
                ttft_s,
                tpot_s,
                ttft_stratum,
                tpot_stratum,
                ttft_window.median,
                tpot_window.median,
                ttft_window.count,
                tpot_window.count,
                prompt_tokens,
                cached_tokens,
                answer.usual_capped,
                pending_tokens,
                step_s,
            ),
            raw_tpot_s,
            memory_ratio,
            answer,
        )

    def _ask(
        self, request: Request, sketches: Sequence[_Sketch], instances: Sequence[Instance], now: float
    ) -> Sequence[_Told | None]:
        """What the latency and the memory model say of every sketch; None for each without a model."""
        model, memory = self.models.latency, self.models.memory
        if model is None or not request.decodes:
            return [None] * len(sketches)
        tracks = [self._track(instance.name) for instance in instances]
        rows = np.array(
            [
                track.target(instance, sketch.estimate, now)
                for track, instance, sketch in zip(tracks, instances, sketches, strict=True)
            ]
        )
        encodings = np.array([track.encoding for track in tracks])
        raw = model.quantiles(encodings, rows)
        offsets = [(each.pair.group.ttft.values, each.pair.group.tpot.values) for each in sketches]
        bases = [(each.estimate.ttft_bias, each.estimate.tpot_bias) for each in sketches]
        served = calibrated(raw, np.array(offsets))
        served += np.array(bases)[:, :, None]
        ratios = [sketch.memory_ratio for sketch in sketches]
        if memory is not None:
            reported = [instance.report.kv_usage for instance in instances]
            ratios = memory.predict(feature_rows(ratios, reported, rows)).tolist()
        return list(zip(served.tolist(), raw, factors_of(served).tolist(), ratios, strict=True))

    def _predicted(
        self,
        request: Request,
        candidate: Candidate,
        sketch: _Sketch,
        told: _Told | None,
        now: float,
        outlook: Outlook | None,
    ) -> PhysicalPrediction:
        pair, known, raw_tpot_s, memory_ratio, answer = sketch
        quantiles = raw_quantiles = None
        believed: Quantiles | None = None
        of_ttft: Sequence[float] = pair.ttft.window(known.ttft_stratum).factors
        of_tpot: Sequence[float] = pair.tpot.window(known.tpot_stratum).factors
        if told is not None:
            quantiles, raw_quantiles, factors, memory_ratio = told
            if pair.group.trust.believed:
                believed = quantiles
                if pair.ttft_told(known):
                    of_ttft = factors[0]
                if pair.tpot_told(known):
                    of_tpot = factors[1]
        ttft_s, tpot_s = known.ttft_s, known.tpot_s
        waited_s = now - request.arrived_at
        if waited_s < 0.0:
            waited_s = 0.0
        ttft_median, ttft_p95, ttft_mean = of_ttft
        engine_ttft_s = ttft_s * ttft_median
        ttft_p50_s = waited_s + engine_ttft_s
        ttft_p95_s = waited_s + ttft_s * ttft_p95
        ttft_mean_s = waited_s + ttft_s * ttft_mean
        slo = request.slo
        price = candidate.price

        if not request.decodes:
            p_miss = None
            if slo is not None:
                p_miss = p_miss_without_decode(slo, waited_s, ttft_s, pair.ttft_error(known, believed))
            return PhysicalPrediction(
                0.0,
                0.0,
                0.0,
                ttft_p50_s,
                ttft_p95_s,
                None,
                ttft_mean_s,
                ttft_p50_s,
                ttft_p95_s,
                candidate.quality,
                known.prompt_tokens * price.input_usd_per_mtok * 1e-6,
                p_miss,
                engine_ttft_s,
                None,
                memory_ratio,
                known,
                raw_tpot_s,
                quantiles,
                raw_quantiles,
                now,
            )

        tpot_median, tpot_p95, tpot_mean = of_tpot
        tpot_p50_s = tpot_s * tpot_median
        choices, mean = answer.choices, answer.mean
        long_p50, long_mean = answer.long_p50, answer.long_mean
        decode_p50_s = tpot_p50_s * (long_p50 - 1.0) if long_p50 > 1.0 else 0.0
        e2e_p50_s = ttft_p50_s + decode_p50_s
        # Upper deviations of independent parts add as squares.
        by_ttft_s = ttft_p95_s - ttft_p50_s
        by_tpot_s = (tpot_p95 / tpot_median - 1.0) * decode_p50_s
        by_length_s = (answer.long_p95 - long_p50) * tpot_p50_s
        e2e_p95_s = e2e_p50_s + sqrt(
            by_ttft_s * by_ttft_s + by_tpot_s * by_tpot_s + by_length_s * by_length_s
        )
        e2e_mean_s = ttft_mean_s
        if long_mean > 1.0:
            e2e_mean_s += tpot_s * tpot_mean * (long_mean - 1.0)
        p_miss = None
        if slo is not None:
            errors = pair.ttft_error(known, believed), pair.tpot_error(known, believed)
            p_miss = p_miss_of(slo, waited_s, ttft_s, tpot_s, *errors, answer)
        quality, quality_sd = candidate.quality, None
        if outlook is not None and candidate.model in outlook.quality:
            quality, quality_sd = outlook.quality[candidate.model]
        return PhysicalPrediction(
            answer.p50 * choices,
            answer.p90 * choices,
            mean * choices,
            ttft_p50_s,
            ttft_p95_s,
            tpot_p50_s,
            e2e_mean_s,
            e2e_p50_s,
            e2e_p95_s,
            quality,
            (known.prompt_tokens * price.input_usd_per_mtok + mean * choices * price.output_usd_per_mtok)
            * 1e-6,
            p_miss,
            engine_ttft_s,
            quality_sd,
            memory_ratio,
            known,
            raw_tpot_s,
            quantiles,
            raw_quantiles,
            now,
        )

    # --- what happened ---------------------------------------------------------------------------
    def observe_dispatch(
        self, request: Request, candidate: Candidate, instance: Instance, prediction: Prediction, now: float
    ) -> None:
        """An attempt is on its way: from here on its lateness is known, too."""
        pair = self._pairs.get((candidate.instance, candidate.model))
        if pair is None or not isinstance(prediction, PhysicalPrediction):
            return
        known = prediction.estimate
        window = pair.ttft.window(known.ttft_stratum)
        entry = Open(prediction, now, (window.median, window.p95))
        self._open[request.id, candidate.instance] = pair, entry
        pair.open.append(entry)
        if pair.track is not None:
            pair.track.dispatched(instance, known, now)
        self._settle(pair, now)

    def observe_ttft(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        engine_ttft_s: float,
        now: float,
    ) -> None:
        """The first token came `engine_ttft_s` after the dispatch for which `prediction` was made."""
        opened = self._open.pop((request.id, candidate.instance), None)
        if opened is None:  # another predictor's, or the instance has been forgotten
            return
        if request.prefix:
            self.prefixes.add(candidate.instance, request.prefix)
        pair, entry = opened
        known = entry.prediction.estimate
        engine_ttft_s = max(engine_ttft_s, _LEAST_S)
        entry.actual = residual = log(engine_ttft_s / known.ttft_s)
        pair.prefills.add(known.prompt_tokens - known.cached_tokens, now)
        if pair.track is not None:
            pair.track.first_token(instance, known, engine_ttft_s, now)
        if entry.taken is not None:
            pair.ttft.correct(known.ttft_stratum, entry.taken, residual)
        self._settle(pair, now)

    def observe_end(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        output_tokens: int,
        prompt_tokens: int | None,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """The attempt ended on its own: the engine's token counts and its mean time per output token."""
        opened = self._open.pop((request.id, candidate.instance), None)
        pair = self._pairs.get((candidate.instance, candidate.model))
        lengths = self.lengths.of(candidate.model, candidate.family) if pair is None else pair.lengths
        mine = prediction if isinstance(prediction, PhysicalPrediction) else None
        error = None
        if mine is not None and tpot_s is not None and tpot_s > 0.0:
            error = log(tpot_s / mine.estimate.tpot_s)
        if opened is not None:  # an answer without a first token
            opened[1].void = True
            if opened[0].track is not None:
                opened[0].track.lost(instance, now - opened[1].dispatched_at, False, now)
            self._settle(opened[0], now)
        elif pair is not None and pair.track is not None and mine is not None:
            pair.track.ended(instance, mine.estimate, output_tokens, tpot_s, now)
        if prompt_tokens is not None:
            lengths.observe_prompt(request.prompt_tokens, prompt_tokens)
        if not request.decodes or output_tokens < 1:
            return
        outlook: Outlook | None = request.outlook
        predicted = None if outlook is None else outlook.predicted.get(candidate.model)
        lengths.observe_output(output_tokens, request.max_tokens, request.choices, predicted)
        if pair is None:
            return
        if prediction.output_tokens_p90 is not None:
            pair.coverage.saw_output(output_tokens <= prediction.output_tokens_p90)
        if mine is None or tpot_s is None or error is None:
            return
        stratum = mine.estimate.tpot_stratum
        if mine.quantiles is not None and pair.tpot_told(mine.estimate):
            pair.group.tpot.learn(mine.quantiles[1], error)
        pair.tpot.observe(stratum, error)
        pair.shrinkage.observe(mine.raw_tpot_s, tpot_s)
        if prediction.tpot_s is not None:
            pair.coverage.saw_tpot(log(tpot_s / prediction.tpot_s))

    def observe_loss(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        waited_s: float,
        decoding: bool,
        now: float,
    ) -> None:
        """An attempt gave no whole answer. Without a first token after `waited_s` its TTFT would have been
        longer, which is learned in its turn."""
        opened = self._open.pop((request.id, candidate.instance), None)
        pair = opened[0] if opened is not None else self._pairs.get((candidate.instance, candidate.model))
        if pair is None:
            return
        if pair.track is not None:
            pair.track.lost(instance, waited_s, decoding, now)
        if opened is not None:
            entry = opened[1]
            entry.lost = True
            entry.overdue_at = min(now, entry.overdue_at)
            self._settle(pair, now)

    def observe_report(self, instance: Instance, now: float) -> None:
        """The engine's own view of its load has come."""
        if self.models.latency is not None:
            self._track(instance.name).reported(instance, now)
        for model in instance.candidates:
            pair = self._pairs.get((instance.name, model))
            if pair is not None:
                self._settle(pair, now)

    def observe_quality(self, model: str, features: PromptFeatures, quality: float) -> None:
        """Feedback: an answer of `model` to such a prompt was judged `quality`, 0 to 1."""
        relevance = self.models.relevance
        if relevance is None or not relevance.knows(model):
            return
        means, _, cluster = relevance.quality(features, [model])
        self._feedback.setdefault(model, QualityFeedback()).observe(float(means[0]), cluster, quality)

    def _settle(self, pair: Pair, now: float) -> None:
        """Learn from attempts in order of dispatch: those with a first token, and those that are overdue, which
        are taken as if it came now and corrected when it comes."""
        waiting = pair.open
        while waiting:
            entry = waiting[0]
            if entry.void:
                waiting.popleft()
            elif entry.actual is not None:
                waiting.popleft()
                self._learn(pair, entry, entry.actual, within=True)
            elif now >= entry.overdue_at:
                waiting.popleft()
                known = entry.prediction.estimate
                until = entry.overdue_at if entry.lost else now
                waited_s = max(until - entry.dispatched_at, _LEAST_S)
                if entry.lost and waited_s < known.ttft_s * exp(entry.physical[0]):
                    continue  # given up before anything could be expected: it tells nothing
                # The least that it can still become: to guess at more would feed on itself.
                entry.taken = log(waited_s / known.ttft_s)
                self._learn(pair, entry, entry.taken, within=False)
            else:
                return

    def _learn(self, pair: Pair, entry: Open, residual: float, *, within: bool) -> None:
        stratum = entry.prediction.estimate.ttft_stratum
        pair.ttft.observe(stratum, residual)
        served = entry.physical
        quantiles = entry.prediction.quantiles
        if quantiles is not None and pair.ttft_told(entry.prediction.estimate):
            pair.group.ttft.learn(quantiles[0], residual)
            learned = quantiles[0][P50], quantiles[0][P95]
            if pair.group.trust.believed:
                served = learned
            pair.group.trust.saw(residual, learned, entry.physical)
        pair.coverage.saw_ttft(residual <= served[0], residual <= served[1], residual - served[0])

    def ttft_floor_s(self, request: Request, candidate: Candidate, instance: Instance) -> float:
        """Least time to a first token on an idle instance: its own prefill at the least error factor that
        the light-load window makes credible (the prior is wide, so early on this is a low bound)."""
        pair = self._pair(candidate, instance)
        cached_tokens = self.cached_tokens(request, instance.name) if request.prefix else 0.0
        idle_s = pair.costs.idle_ttft_s(request.prompt_tokens, cached_tokens)
        return idle_s * min(pair.ttft.window(0).least_factor(), 1.0)

    # --- beside the protocol ---------------------------------------------------------------------
    def cached_tokens(self, request: Request, instance: str) -> float:
        """Prompt tokens (as estimated) that the instance should hold in its prefix cache."""
        prefix = request.prefix
        if not prefix:
            return 0.0
        matched = self.prefixes.matched_blocks(instance, prefix)
        return min(request.prompt_tokens, PREFIX_TOKENS) * matched / len(prefix) if matched else 0.0

    def coverage(self) -> dict[str, dict[str, float | None]]:
        """By instance: share of actual values within predicted quantiles and mean absolute log errors."""
        return {
            instance: coverage.as_dict()
            for instance, coverage in self._coverage.items()
            if coverage.ttfts or coverage.outputs
        }

    def groups(self) -> dict[tuple[str, str], Trust]:
        """How the latency model does beside the physical estimate, by (model, hardware)."""
        if self.models.latency is None:
            return {}
        return {group: calibration.trust for group, calibration in self._groups.items()}

    def length_weights(self) -> dict[str, float]:
        """By model: how far the length model is believed beside the model's own histogram, 0 to 1."""
        return self.lengths.weights() if self.models.length is not None else {}

    def feedback_counts(self) -> dict[str, int]:
        """By model: judgements that corrected its quality."""
        return {model: feedback.count for model, feedback in self._feedback.items()}

    def forget(self, instance: str) -> None:
        """Drop what was learned of an instance that left the fleet (lengths belong to models: they stay)."""
        self.prefixes.forget(instance)
        self._prefills.pop(instance, None)
        self._coverage.pop(instance, None)
        self._tracks.pop(instance, None)
        for key in [key for key in self._pairs if key[0] == instance]:
            del self._pairs[key]
        for attempt in [attempt for attempt in self._open if attempt[1] == instance]:
            del self._open[attempt]
        used = {pair.group_name for pair in self._pairs.values()}
        for group in [group for group in self._groups if group not in used]:
            del self._groups[group]

    def _track(self, instance: str) -> Track:
        track = self._tracks.get(instance)
        if track is None:
            track = self._tracks[instance] = Track(self.models.latency)
        return track

    def _pair(self, candidate: Candidate, instance: Instance) -> Pair:
        pair = self._pairs.get((instance.name, candidate.model))
        profile = instance.profiles.get(candidate.model)
        if pair is None or pair.profile is not profile or pair.costs.speed != instance.speed:
            pair = self._new_pair(candidate, instance)
        return pair

    def _new_pair(self, candidate: Candidate, instance: Instance) -> Pair:
        """Start afresh: a new pair, or one whose profile or speed has changed."""
        group = candidate.model, instance.hardware or instance.name
        pair = Pair(
            instance.profiles.get(candidate.model),
            instance.kind,
            instance.speed,
            self.lengths.of(candidate.model, candidate.family),
            self._prefills.setdefault(instance.name, PrefillRate(_PREFILL_HORIZON_S / instance.speed)),
            self._coverage.setdefault(instance.name, Coverage()),
            None if self.models.latency is None else self._track(instance.name),
            group,
            self._groups.setdefault(group, GroupCalibration()),
        )
        self._pairs[instance.name, candidate.model] = pair
        return pair
