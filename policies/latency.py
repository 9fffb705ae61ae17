"""`latency`: the least expected E2E among options that keep the SLO with the wanted confidence.

Among options with P(an SLO is missed) <= epsilon (all, for a request without an SLO): the least
(1 - w) x (E[E2E] + added) + w x median TTFT, w being `ttft_weight`. `added` is what the request adds to the E2E of
those that are there already: its prefill, and a little of each decode step (engine profile; 0 without one). A request
that looked at its own time alone would crowd the fastest instance and cost all others more than it gains. If no option
keeps the SLO: the least P(miss), then that same time. Where more SLOs are missed than was expected (`policies.doubt`) a
request with an SLO goes where the fewest sequences are, weighed by the instance's speed. Ties break on instance, then model name. Deterministic.

Headway's contract; predicting each instance's latency with the new request in it follows Block (arXiv 2508.03611),
routing by marginal instead of own cost is as old as Pigou (The Economics of Welfare, 1920).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from policies.doubt import Doubt
from policies.picking import name_of, told_s
from router.core.interfaces import Choice, Option
from router.core.types import Candidate, Request

#: Why an option was passed over while P(miss) is doubted.
DOUBTED = "busier (predictions are not believed: more SLOs were missed than expected)"
#: Exploration may take an option whose time is within this share of the least.
AS_GOOD = 0.05
#: Of a request's decode steps, so many fall into the rest of an answer that is there already: half of them.
_SHARED_STEPS = 0.5


class LeastLatency:
    """See the module's docstring. The score is the time in seconds that is least."""

    name = "latency"
    predicts = True

    def __init__(self, epsilon: float = 0.1, ttft_weight: float = 0.0) -> None:
        self.epsilon = epsilon
        self.ttft_weight = ttft_weight
        self._doubt = Doubt(epsilon, most=2)

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        times_s = [
            expected_s(option, self.ttft_weight) + (1.0 - self.ttft_weight) * added_s(request, option)
            for option in options
        ]
        misses = [p_miss(option) for option in options]
        every = range(len(options))
        keeping = [at for at in every if misses[at] <= self.epsilon]
        doubted = bool(self._doubt.level) and request.slo is not None
        if doubted:
            # At first among those that keep it all the same; if that does not help, P(miss) says nothing.
            index = least_busy(options, keeping if keeping and self._doubt.level == 1 else every)
            keeping = []
        elif keeping:
            index = min(keeping, key=lambda at: (times_s[at], name_of(options[at])))
        else:
            index = min(every, key=lambda at: (misses[at], times_s[at], name_of(options[at])))
        bound_s = times_s[index] * (1.0 + AS_GOOD)
        reasons = [None if at == index else self._why(at, index, times_s, misses, doubted) for at in every]
        return Choice(
            index,
            [None if time_s == inf else time_s for time_s in times_s],
            reasons,
            alternatives=[at for at in keeping if at != index and times_s[at] <= bound_s],
        )

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Remember what was expected."""
        if request.slo is not None:
            self._doubt.expects(request.id, p_miss(options[choice.index]))

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """Hear whether what was expected to keep its SLO did."""
        self._doubt.heard(request.id, met)

    def _why(
        self, at: int, index: int, times_s: Sequence[float], misses: Sequence[float], doubted: bool
    ) -> str:
        if doubted:
            return DOUBTED
        if misses[at] > self.epsilon:
            return f"would miss its SLO with probability {misses[at]:.2f}"
        return f"slower, others' delay included: {_told(times_s[at])} against {_told(times_s[index])}"


def expected_s(option: Option, ttft_weight: float) -> float:
    """Expected time of an option in seconds, TTFT weighted in; infinite when it is not known."""
    prediction = option.prediction
    if prediction is None or prediction.e2e_s_mean is None:
        return inf
    if not ttft_weight or prediction.ttft_s_p50 is None:
        return prediction.e2e_s_mean
    return (1.0 - ttft_weight) * prediction.e2e_s_mean + ttft_weight * prediction.ttft_s_p50


def added_s(request: Request, option: Option) -> float:
    """Expected seconds that the request adds to the E2E of all sequences at the option's instance together."""
    instance, prediction = option.instance, option.prediction
    profile = instance.profiles.get(option.candidate.model)
    if profile is None or prediction is None:
        return 0.0
    tokens = prediction.output_tokens_mean or 0.0
    step_s = profile.per_seq_s + (request.prompt_tokens + tokens / 2) * profile.per_kv_token_s
    prefill_s = profile.prefill_s(max(1, request.prompt_tokens))
    return instance.running * (prefill_s + _SHARED_STEPS * tokens * step_s) / instance.speed


def least_busy(options: Sequence[Option], among: Sequence[int]) -> int:
    """Index of the option with the fewest sequences, weighed by the time of a lone decode step where engine profiles
    tell it of all: what needs no prediction."""
    profiles = [option.instance.profiles.get(option.candidate.model) for option in options]
    known = all(profile is not None for profile in profiles)

    def load(at: int) -> tuple[float, tuple[str, str]]:
        instance, profile = options[at].instance, profiles[at]
        step_s = profile.step_s(0, 1, 0.0) / instance.speed if known and profile is not None else 1.0
        return (instance.running + 1) * step_s, name_of(options[at])

    return min(among, key=load)


def p_miss(option: Option) -> float:
    """Probability that the option misses the SLO; 0 without an SLO, 1 without a prediction."""
    prediction = option.prediction
    if prediction is None:
        return 1.0
    return 0.0 if prediction.p_miss is None else prediction.p_miss


def _told(time_s: float) -> str:
    return told_s(None if time_s == inf else time_s)
