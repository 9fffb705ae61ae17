"""`slo`: best fit. Of the options that keep the SLO with the wanted confidence, the one cheapest to occupy.

Among options with P(an SLO is missed) <= epsilon, in this order:

1. the cheapest to occupy, so that dear and fast instances stay free for requests that need them: first what it
   costs others, in requests under way there that were promised a TPOT that they would lose (the predicted
   TPOT with this one among them, and a margin, against theirs; of replicas, the least of any); then the instance's
   price per hour where every one of these options tells it, else the expected price by tariff;
2. the slowest: the longest time of a lone decode step (engine profile; without one the predicted TPOT);
3. among equal instances the least E2E, what it adds to others' included (`policies.latency`), as wherever E2E is
   spoken of here, so that replicas share the load; then the least P(miss).

While nearly every request finds an option that keeps its SLO, keeping fast ones free is worth less risk: the
options that keep it with P(miss) <= r x epsilon come before the others, where r falls from 1 towards a tenth with
each request that finds one, and rises with each that does not (it holds where one in fifty does not).

Where more SLOs are missed than was expected (`policies.doubt`) nothing is packed: of the options that keep the SLO the
one with the least E2E is taken, and where that does not help either, the one with the fewest sequences, weighed by its
speed.

If none keeps the SLO: the least P(miss), then what it costs others, then the least E2E. Where even that is lost
(P(miss) > 1 - epsilon everywhere), all options are as good for it, so the one that costs others least; and if each
costs them something, or would keep another one waiting for its first token, the request is deferred: held back in
the queue behind those that can still be in time, until an instance has room. A request without an SLO has nothing
to fit: the least cost to others, then the least E2E. Ties break on instance, then model name. Deterministic.

Best fit under an SLO is the idea of PolyServe (arXiv 2507.17769) and of llm-d's least positive headroom;
both fill the most loaded server first. Here that holds between kinds of hardware, not between replicas:
filling one replica to the brim frees no better one, and costs attainment. What a placement costs others, the
risk that adapts, and deferring what is lost, are ours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from random import Random

from policies.doubt import Doubt
from policies.latency import AS_GOOD, DOUBTED, added_s, expected_s, least_busy, p_miss
from policies.picking import name_of, told_s
from router.core.interfaces import Choice, Option
from router.core.types import Candidate, Request

#: A TPOT target counts as lost where the predicted TPOT is above this share of it.
_TPOT_MARGIN = 1.0 / 1.2
#: The same for a request that is lost already: it can wait for more room than that.
_LOST_MARGIN = 1.0 / 1.5
#: Lost requests fill an engine's KV memory up to here.
_LOST_KV_USAGE = 0.8
#: How the risk that is taken moves with a request that finds an option that keeps its SLO, and one that finds none.
_RISK_DOWN, _RISK_UP = 0.995, 1.3
_LEAST_RISK = 0.1


class BestFit:
    """See the module's docstring. The score is P(miss), or the expected E2E for a request without an SLO."""

    name = "slo"
    predicts = True

    def __init__(self, epsilon: float = 0.1) -> None:
        self.epsilon = epsilon
        self._taken_risk = 1.0  # share of epsilon
        self._doubt = Doubt(epsilon, most=2)

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        times_s = [expected_s(option, 0.0) + added_s(request, option) for option in options]
        names = [name_of(option) for option in options]
        every = range(len(options))
        if request.slo is None:
            broken = [promises_broken(option) for option in options]
            index = min(every, key=lambda at: (broken[at], times_s[at], names[at]))
            reasons = [
                None if at == index else _why_slower(broken[at], broken[index], times_s[at]) for at in every
            ]
            return Choice(index, [None if time_s == inf else time_s for time_s in times_s], reasons)

        misses = [p_miss(option) for option in options]
        keeping = [at for at in every if misses[at] <= self.epsilon * self._taken_risk]
        if not keeping:
            keeping = [at for at in every if misses[at] <= self.epsilon]
        least = min(misses)
        if keeping:
            broken = [promises_broken(option) for option in options]
            if self._doubt.level:
                return self._fastest(options, keeping, misses, times_s)
            hourly = all(options[at].instance.usd_per_hour is not None for at in keeping)
            kinds = {at: _occupancy(options[at], hourly) for at in keeping}
            spared: dict[tuple[float, float], int] = {}  # by kind of instance: the least cost to others
            for at, kind in kinds.items():
                spared[kind] = min(broken[at], spared.get(kind, broken[at]))
            occupancy = {at: (spared[kind], *kind) for at, kind in kinds.items()}
            index = min(keeping, key=lambda at: (occupancy[at], times_s[at], misses[at], names[at]))
            reasons = [
                None if at == index else self._why(misses[at], occupancy.get(at), occupancy[index])
                for at in every
            ]
            bound_s = times_s[index] * (1.0 + AS_GOOD)
            alternatives = [
                at
                for at in keeping
                if at != index and occupancy[at] == occupancy[index] and times_s[at] <= bound_s
            ]
            return Choice(index, misses, reasons, alternatives=alternatives)

        lost = least > 1.0 - self.epsilon
        broken = [promises_broken(option, _LOST_MARGIN if lost else _TPOT_MARGIN) for option in options]
        if lost:
            index = min(
                every,
                key=lambda at: (
                    not _has_room(options[at], broken[at]),
                    broken[at],
                    misses[at],
                    times_s[at],
                    names[at],
                ),
            )
        else:
            index = min(every, key=lambda at: (misses[at], broken[at], times_s[at], names[at]))
        reasons = [
            None if at == index else f"would miss its SLO with probability {misses[at]:.2f}" for at in every
        ]
        return Choice(index, misses, reasons, defer=lost and not _has_room(options[index], broken[index]))

    def _fastest(
        self,
        options: Sequence[Option],
        keeping: Sequence[int],
        misses: Sequence[float],
        times_s: Sequence[float],
    ) -> Choice:
        """P(miss) has proved too hopeful to pack by: the least time, or the fewest sequences."""
        blind = self._doubt.level > 1
        if blind:
            index = least_busy(options, range(len(options)))
        else:
            index = min(keeping, key=lambda at: (times_s[at], name_of(options[at])))
        reasons = [
            None
            if at == index
            else DOUBTED
            if blind
            else f"would miss its SLO with probability {miss:.2f}"
            if miss > self.epsilon
            else f"slower: {told_s(times_s[at])} (not packed: more SLOs were missed than expected)"
            for at, miss in enumerate(misses)
        ]
        return Choice(index, misses, reasons)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Adapt the risk that is taken: see the module's docstring."""
        if request.slo is None:
            return
        miss = p_miss(options[choice.index])
        if miss > self.epsilon:
            self._taken_risk = min(1.0, self._taken_risk * _RISK_UP)
            return
        self._taken_risk = max(_LEAST_RISK, self._taken_risk * _RISK_DOWN)
        self._doubt.expects(request.id, miss)

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """Hear whether what was expected to keep its SLO did."""
        self._doubt.heard(request.id, met)

    def _why(self, miss: float, occupancy: tuple[float, ...] | None, taken: tuple[float, ...]) -> str:
        if occupancy is None:
            return f"would miss its SLO with probability {miss:.2f}"
        if occupancy[0] > taken[0]:
            return f"others there would lose their TPOT ({occupancy[0]:.0f})"
        if occupancy[1] > taken[1]:
            return "dearer to occupy, and a cheaper one keeps the SLO"
        if occupancy[2] > taken[2]:
            return "faster than needed: kept free for requests that need it"
        return "an equal, but no faster, others' delay included"


def promises_broken(option: Option, margin: float = _TPOT_MARGIN) -> int:
    """Requests under way at the option's instance whose TPOT target is lost with this one among them."""
    prediction = option.prediction
    if prediction is None or prediction.tpot_s is None:
        return 0
    return bisect_left(option.instance.promised_tpot_s, prediction.tpot_s / margin)


def _has_room(option: Option, broken: int) -> bool:
    """Whether a request that is lost already disturbs nobody there."""
    instance = option.instance
    usage = instance.report.kv_usage
    return not broken and not instance.awaiting_first_token and (usage is None or usage < _LOST_KV_USAGE)


def _why_slower(broken: int, taken: int, time_s: float) -> str:
    if broken > taken:
        return f"others there would lose their TPOT ({broken})"
    return "slower" if time_s == inf else f"slower: {time_s:.3g} s expected"


def _occupancy(option: Option, hourly: bool) -> tuple[float, float]:
    """How dear it is to occupy an option: its price (to three digits: less is no difference
    that a prediction can tell), then its speed (negated step time in seconds)."""
    instance, prediction = option.instance, option.prediction
    cost_usd = instance.usd_per_hour if hourly else (prediction.cost_usd if prediction else None)
    profile = instance.profiles.get(option.candidate.model)
    if profile is not None:
        step_s = profile.step_s(0, 1, 0.0) / instance.speed
    else:
        step_s = (prediction.tpot_s if prediction else None) or 0.0
    return (0.0 if cost_usd is None else float(f"{cost_usd:.3g}")), -step_s
