"""The predictor that serves: physical estimate x learned error x learned output length.

    TTFT = waited + physical TTFT x exp(r1)          r1, r2: learned log errors of this instance and model,
    TPOT = physical TPOT x exp(r2)                           taken as independent
    E2E  = TTFT + TPOT x (min(Y, cap) - 1)           Y: the model's length distribution

`p_miss` is 1 - P(all targets met). With an E2E target it is summed over a few equally likely values of
TTFT and TPOT, each conditioned on keeping its own target, and the length's distribution function; so the
three targets are judged jointly, not each for itself.
"""

# A branch costs half of a call of max() or min(), and this runs for each candidate of each request.
# ruff: noqa: PLR1730
from __future__ import annotations

from math import exp, log, sqrt
from typing import Any

from predictors.coverage import Coverage
from predictors.length import LengthDistribution, Lengths, ModelLengths
from predictors.physical import (
    GENERIC_PROFILE,
    TPOT_STRATA,
    TTFT_STRATA,
    PrefillRate,
    StepCosts,
    estimate,
    is_unloaded,
)
from predictors.prefix_index import PrefixIndex
from predictors.residuals import ResidualWindow, Shrinkage, StratifiedResiduals
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import PREFIX_TOKENS, Candidate, Prediction, Request, Slo

#: Log standard deviations before anything is seen: of a profiled estimate's bias, of the generic one's,
#: and of single observations. A choice, wide on purpose: P(miss) shall not be sure of what nobody has seen.
_PROFILED_SD = 0.35
_GENERIC_SD = 1.2
_TTFT_NOISE_SD = 0.5
_TPOT_NOISE_SD = 0.25
#: Observations over which a bias averages. Errors of TPOT come in spells (answers that decode together see
#: the same arrivals) and are known seconds late, so following them closely would chase the last spell.
_TTFT_MEMORY = 64
_TPOT_MEMORY = 256

#: Prefill rates are averaged over about this long, in seconds at real speed.
_PREFILL_HORIZON_S = 10.0

#: Equally likely values of TTFT and TPOT that stand for their distributions under an E2E target.
_TTFT_POINTS = (1 / 6, 1 / 2, 5 / 6)
_TPOT_POINTS = (1 / 6, 1 / 2, 5 / 6)


class PhysicalPrediction(Prediction):
    """A `Prediction` that remembers the physical estimate, so that its error can be learned:
    (TTFT in seconds, TPOT in seconds, stratum of either, prompt tokens to prefill, time of the prediction,
    TPOT before shrinking).

    It is made for each candidate of each request, and to fill a frozen dataclass takes longer than all of
    the arithmetic; so this one can be written to, which nobody does once it is made.
    """

    __slots__ = ("physical",)

    physical: tuple[float, float, int, int, float, float, float]

    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __init__(
        self: Any,  # the fields are read-only in the base
        output_tokens_p50: float,
        output_tokens_p90: float,
        output_tokens_mean: float,
        ttft_s_p50: float,
        ttft_s_p95: float,
        tpot_s: float | None,
        e2e_s_mean: float,
        e2e_s_p50: float,
        e2e_s_p95: float,
        quality: float | None,
        cost_usd: float,
        p_miss: float | None,
        engine_ttft_s: float,
        physical: tuple[float, float, int, int, float, float, float],
    ) -> None:
        self.output_tokens_p50 = output_tokens_p50
        self.output_tokens_p90 = output_tokens_p90
        self.output_tokens_mean = output_tokens_mean
        self.ttft_s_p50 = ttft_s_p50
        self.ttft_s_p95 = ttft_s_p95
        self.tpot_s = tpot_s
        self.e2e_s_mean = e2e_s_mean
        self.e2e_s_p50 = e2e_s_p50
        self.e2e_s_p95 = e2e_s_p95
        self.quality = quality
        self.cost_usd = cost_usd
        self.p_miss = p_miss
        self.engine_ttft_s = engine_ttft_s
        self.physical = physical


class _Pair:
    """What is kept for one (instance, model)."""

    __slots__ = ("costs", "coverage", "lengths", "prefills", "profile", "shrinkage", "tpot", "ttft")

    def __init__(
        self,
        profile: EngineProfile | None,
        kind: str,
        speed: float,
        lengths: ModelLengths,
        prefills: PrefillRate,
        coverage: Coverage,
    ) -> None:
        self.profile = profile
        self.costs = StepCosts(profile or GENERIC_PROFILE, kind, speed)
        self.lengths = lengths
        self.prefills = prefills  # of the instance, whatever the model
        self.coverage = coverage  # likewise
        bias_sd = _GENERIC_SD if profile is None else _PROFILED_SD
        self.ttft = StratifiedResiduals(TTFT_STRATA, bias_sd, _TTFT_NOISE_SD, _TTFT_MEMORY)
        self.shrinkage = Shrinkage()
        self.tpot = StratifiedResiduals(TPOT_STRATA, bias_sd, _TPOT_NOISE_SD, _TPOT_MEMORY)


class PhysicalPredictor:
    """Implements `router.core.interfaces.Predictor`. Pure: no clock, no I/O; one object for a fleet."""

    name = "physical"

    def __init__(self, prefix_blocks: int = 8192) -> None:
        self.lengths = Lengths()
        self.prefixes = PrefixIndex(prefix_blocks)
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._prefills: dict[str, PrefillRate] = {}
        self._coverage: dict[str, Coverage] = {}

    # --- the Predictor protocol ------------------------------------------------------------------
    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        """Expectation if the request were dispatched to `candidate` at `now`; changes nothing learned."""
        pair = self._pairs.get((instance.name, candidate.model))
        if (
            pair is None
            or pair.profile is not instance.profiles.get(candidate.model)
            or pair.costs.speed != instance.speed
        ):
            pair = self._new_pair(candidate, instance)
        costs = pair.costs
        lengths = pair.lengths
        output = lengths.output
        ratio = lengths.prompt_ratio
        prompt_tokens = request.prompt_tokens * ratio
        cached_tokens = self.cached_tokens(request, instance.name) * ratio if request.prefix else 0.0

        # Output length: min(Y, cap), for each of the choices.
        cap = request.max_tokens
        if candidate.context_tokens is not None:
            room = max(candidate.context_tokens - (request.longest_prompt_tokens or request.prompt_tokens), 1)
            cap = room if cap is None or cap > room else cap
        p50, p90, mean = output.p50, output.p90, output.mean
        if cap is not None:
            mean = output.mean_below(cap)
            if p90 > cap:
                p90 = cap
                if p50 > cap:
                    p50 = cap

        ttft_s, tpot_s, ttft_stratum, tpot_stratum = estimate(
            costs,
            instance,
            prompt_tokens,
            cached_tokens,
            instance.pending_prefill_tokens * ratio,
            mean,
            output.mean,
            lengths.mean_prompt_tokens,
            pair.prefills.tokens_per_s(now),
        )
        if instance.report.loaded_models is not None and is_unloaded(instance, candidate.upstream_model):
            ttft_s += costs.load_s
            ttft_stratum = 2
        raw_tpot_s = tpot_s
        tpot_s = pair.shrinkage.shrunk(tpot_s)
        physical = (
            ttft_s,
            tpot_s,
            ttft_stratum,
            tpot_stratum,
            prompt_tokens - cached_tokens,
            now,
            raw_tpot_s,
        )
        ttft_error = pair.ttft.window(ttft_stratum)
        waited_s = now - request.arrived_at
        if waited_s < 0.0:
            waited_s = 0.0
        engine_ttft_s = ttft_s * ttft_error.median_factor
        ttft_p50_s = waited_s + engine_ttft_s
        ttft_p95_s = waited_s + ttft_s * ttft_error.p95_factor
        ttft_mean_s = waited_s + ttft_s * ttft_error.mean_factor
        slo = request.slo
        price = candidate.price

        if not request.decodes:
            p_miss = None
            if slo is not None:
                p_miss = self._p_miss_without_decode(slo, waited_s, ttft_s, ttft_error)
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
                prompt_tokens * price.input_usd_per_mtok * 1e-6,
                p_miss,
                engine_ttft_s,
                physical,
            )

        tpot_error = pair.tpot.window(tpot_stratum)
        tpot_p50_s = tpot_s * tpot_error.median_factor
        choices = request.choices
        # Of several choices the longest sets the end: its quantile at u is Y's at u ** (1 / n).
        long_p50, long_p95, long_mean = p50, output.p95, mean
        if choices > 1:
            long_p50 = output.quantile(0.5 ** (1 / choices))
            long_p95 = output.quantile(0.95 ** (1 / choices))
            if cap is not None and long_p50 > cap:
                long_p50 = cap
            if long_mean < long_p50:
                long_mean = long_p50
        if cap is not None and long_p95 > cap:
            long_p95 = cap
        decode_p50_s = tpot_p50_s * (long_p50 - 1.0) if long_p50 > 1.0 else 0.0
        e2e_p50_s = ttft_p50_s + decode_p50_s
        # Upper deviations of independent parts add as squares.
        by_ttft_s = ttft_p95_s - ttft_p50_s
        by_tpot_s = tpot_error.p95_excess * decode_p50_s
        by_length_s = (long_p95 - long_p50) * tpot_p50_s
        e2e_p95_s = e2e_p50_s + sqrt(
            by_ttft_s * by_ttft_s + by_tpot_s * by_tpot_s + by_length_s * by_length_s
        )
        e2e_mean_s = ttft_mean_s
        if long_mean > 1.0:
            e2e_mean_s += tpot_s * tpot_error.mean_factor * (long_mean - 1.0)
        p_miss = None
        if slo is not None:
            p_miss = self._p_miss(slo, waited_s, ttft_s, tpot_s, ttft_error, tpot_error, output, cap, choices)
        return PhysicalPrediction(
            p50 * choices,
            p90 * choices,
            mean * choices,
            ttft_p50_s,
            ttft_p95_s,
            tpot_p50_s,
            e2e_mean_s,
            e2e_p50_s,
            e2e_p95_s,
            candidate.quality,
            (prompt_tokens * price.input_usd_per_mtok + mean * choices * price.output_usd_per_mtok) * 1e-6,
            p_miss,
            engine_ttft_s,
            physical,
        )

    def observe_ttft(
        self, request: Request, candidate: Candidate, prediction: Prediction, engine_ttft_s: float
    ) -> None:
        """The first token came `engine_ttft_s` after the dispatch for which `prediction` was made."""
        if request.prefix:
            self.prefixes.add(candidate.instance, request.prefix)
        pair = self._pairs.get((candidate.instance, candidate.model))
        # Another predictor's predictions say nothing of this one's errors.
        if pair is None or not isinstance(prediction, PhysicalPrediction) or engine_ttft_s <= 0.0:
            return
        physical_s, _, stratum, _, prefill_tokens, predicted_at, _ = prediction.physical
        pair.ttft.observe(stratum, log(engine_ttft_s / physical_s))
        pair.prefills.add(prefill_tokens, predicted_at + engine_ttft_s)
        expected_s, p50_s, p95_s = prediction.engine_ttft_s, prediction.ttft_s_p50, prediction.ttft_s_p95
        if expected_s is not None and p50_s is not None and p95_s is not None:
            pair.coverage.saw_ttft(
                engine_ttft_s <= expected_s,
                engine_ttft_s - expected_s <= p95_s - p50_s,
                log(engine_ttft_s / expected_s),
            )

    def observe_end(
        self,
        request: Request,
        candidate: Candidate,
        prediction: Prediction,
        output_tokens: int,
        prompt_tokens: int | None,
        tpot_s: float | None,
    ) -> None:
        """The attempt ended on its own: the engine's token counts and its mean time per output token."""
        pair = self._pairs.get((candidate.instance, candidate.model))
        lengths = self.lengths.of(candidate.model, candidate.family) if pair is None else pair.lengths
        if prompt_tokens is not None:
            lengths.observe_prompt(request.prompt_tokens, prompt_tokens)
        if not request.decodes or output_tokens < 1:
            return
        lengths.observe_output(output_tokens, request.max_tokens, request.choices)
        if pair is None:
            return
        if prediction.output_tokens_p90 is not None:
            pair.coverage.saw_output(output_tokens <= prediction.output_tokens_p90)
        if tpot_s is None or tpot_s <= 0.0 or not isinstance(prediction, PhysicalPrediction):
            return
        _, physical_s, _, stratum, _, _, raw_s = prediction.physical
        pair.tpot.observe(stratum, log(tpot_s / physical_s))
        pair.shrinkage.observe(raw_s, tpot_s)
        if prediction.tpot_s is not None:
            pair.coverage.saw_tpot(log(tpot_s / prediction.tpot_s))

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

    def forget(self, instance: str) -> None:
        """Drop what was learned of an instance that left the fleet (lengths belong to models: they stay)."""
        self.prefixes.forget(instance)
        self._prefills.pop(instance, None)
        self._coverage.pop(instance, None)
        for key in [key for key in self._pairs if key[0] == instance]:
            del self._pairs[key]

    def _pair(self, candidate: Candidate, instance: Instance) -> _Pair:
        pair = self._pairs.get((instance.name, candidate.model))
        profile = instance.profiles.get(candidate.model)
        if pair is None or pair.profile is not profile or pair.costs.speed != instance.speed:
            pair = self._new_pair(candidate, instance)
        return pair

    def _new_pair(self, candidate: Candidate, instance: Instance) -> _Pair:
        """Start afresh: a new pair, or one whose profile or speed has changed."""
        pair = _Pair(
            instance.profiles.get(candidate.model),
            instance.kind,
            instance.speed,
            self.lengths.of(candidate.model, candidate.family),
            self._prefills.setdefault(instance.name, PrefillRate(_PREFILL_HORIZON_S / instance.speed)),
            self._coverage.setdefault(instance.name, Coverage()),
        )
        self._pairs[instance.name, candidate.model] = pair
        return pair

    @staticmethod
    def _p_miss_without_decode(slo: Slo, waited_s: float, ttft_s: float, ttft_error: ResidualWindow) -> float:
        targets = [target for target in (slo.ttft_s, slo.e2e_s) if target is not None]
        if not targets:
            return 0.0
        left_s = min(targets) - waited_s
        return ttft_error.exceed(log(left_s / ttft_s)) if left_s > 0.0 else 1.0

    @staticmethod
    def _p_miss(
        slo: Slo,
        waited_s: float,
        ttft_s: float,
        tpot_s: float,
        ttft_error: ResidualWindow,
        tpot_error: ResidualWindow,
        output: LengthDistribution,
        cap: int | None,
        choices: int,
    ) -> float:
        ttft_met = tpot_met = 1.0
        if slo.ttft_s is not None:
            left_s = slo.ttft_s - waited_s
            if left_s <= 0.0:
                return 1.0
            ttft_met = 1.0 - ttft_error.exceed(log(left_s / ttft_s))
        if slo.tpot_s is not None and (cap is None or cap > 1):
            tpot_met = 1.0 - tpot_error.exceed(log(slo.tpot_s / tpot_s)) if slo.tpot_s > 0.0 else 0.0
        if slo.e2e_s is None:
            return 1.0 - ttft_met * tpot_met
        left_s = slo.e2e_s - waited_s
        if left_s <= 0.0:
            return 1.0
        tpots = [tpot_s * exp(tpot_error.quantile(share * tpot_met)) for share in _TPOT_POINTS]
        in_time = 0.0
        below = output.below
        for share in _TTFT_POINTS:
            decode_s = left_s - ttft_s * exp(ttft_error.quantile(share * ttft_met))
            if decode_s <= 0.0:
                break
            for point_s in tpots:
                tokens = 1.0 + decode_s / point_s
                if cap is not None and tokens >= cap:
                    in_time += 1.0
                elif choices == 1:
                    in_time += below(tokens)
                else:
                    in_time += below(tokens) ** choices
        return 1.0 - ttft_met * tpot_met * in_time / (len(_TTFT_POINTS) * len(_TPOT_POINTS))
