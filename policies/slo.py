"""`slo`: best fit. Of the options that meet the SLO with the required confidence, the one that is cheapest to occupy.

Among options with P(an SLO is missed) <= epsilon, in this order:

1. The cheapest to occupy, so that expensive and fast instances stay free for requests that need them. First counts what
   it costs others: the running requests there whose promised TPOT it would break (the predicted TPOT with this request,
   plus a margin, is above theirs; for replicas, the least of any). Then the instance's price per hour if all of these
   options state one, otherwise the expected price by tariff.
2. The slowest: the longest decode step of one sequence (from the engine profile; without one the predicted TPOT).
3. Among equal instances the least E2E, so that replicas share the load; then the least P(miss). E2E on this page
   includes the delay that the request adds to others (`policies.latency`).

The accepted risk adapts. While nearly every request finds an option that meets its SLO, keeping fast instances free is
worth less risk: options with P(miss) <= r x epsilon come before the others. r falls from 1 towards 0.1 with each request
that finds such an option, and rises with each that finds none (it is stable where one in fifty finds none).

If more SLOs are missed than predicted (`policies.calibration_guard`), best fit is off. At level 1 the policy takes the
least E2E among the options that meet the SLO; at level 2 the fewest sequences, weighted by the instance's speed.

If no option meets the SLO: the least P(miss), then what it costs others, then the least E2E. If the SLO is lost
everywhere (P(miss) > 1 - epsilon for all options), all options are equal for this request, so it goes where it costs
others least. If it costs others something everywhere, or would delay another request's first token, it is deferred: it
waits in the queue behind requests that can still be in time, until an instance has room. A request without an SLO goes
where it costs others least, then to the least E2E. Ties: instance, then model name. Deterministic.

Best fit under an SLO is the idea of PolyServe (arXiv 2507.17769) and of llm-d's least positive headroom; both fill the
most loaded server first. Here it holds between kinds of hardware and not between replicas: filling one replica frees no
better one, and costs attainment. Counting the cost to others, the adaptive risk and deferring are Headway's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from random import Random

from policies.calibration_guard import CalibrationGuard
from policies.latency import BUSIER, SIMILAR, added_s, expected_s, least_busy, p_miss
from policies.picking import format_s, name_of
from router.core.interfaces import Choice, Option
from router.core.types import Candidate, Request

#: A promised TPOT counts as broken if the predicted TPOT is above this share of it.
_TPOT_MARGIN = 1.0 / 1.2
#: The same for a request whose SLO is lost: it can wait for more room.
_LOST_MARGIN = 1.0 / 1.5
#: Lost requests fill an engine's KV memory up to this share.
_LOST_KV_USAGE = 0.8
#: Factors of the accepted risk for a request that finds an option that meets its SLO, and for one that finds none.
_RISK_DOWN, _RISK_UP = 0.995, 1.3
_LEAST_RISK = 0.1


class BestFit:
    """See the module's docstring. The score is P(miss), or the expected E2E for a request without an SLO."""

    name = "slo"
    predicts = True

    def __init__(self, epsilon: float = 0.1) -> None:
        self.epsilon = epsilon
        self._risk = 1.0  # share of epsilon
        self._guard = CalibrationGuard(epsilon, max_level=2)

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        times_s = [
            expected_s(option, 0.0) + added
            for option, added in zip(options, added_s(request, options), strict=True)
        ]
        if request.slo is None:
            return self._without_slo(options, times_s)
        misses = [p_miss(option) for option in options]
        meeting = [at for at, miss in enumerate(misses) if miss <= self.epsilon * self._risk]
        if not meeting:
            meeting = [at for at, miss in enumerate(misses) if miss <= self.epsilon]
        if not meeting:
            return self._least_miss(options, misses, times_s)
        if self._guard.level:
            return self._without_packing(options, meeting, misses, times_s)
        return self._best_fit(options, meeting, misses, times_s)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Adapt the accepted risk, and record P(miss) to compare it with the outcome."""
        if request.slo is None:
            return
        miss = p_miss(options[choice.index])
        if miss > self.epsilon:
            self._risk = min(1.0, self._risk * _RISK_UP)
            return
        self._risk = max(_LEAST_RISK, self._risk * _RISK_DOWN)
        self._guard.predicted(request.id, miss)

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """Compare the outcome with P(miss)."""
        self._guard.observed(request.id, met)

    def _without_slo(self, options: Sequence[Option], times_s: Sequence[float]) -> Choice:
        broken = [promises_broken(option) for option in options]
        every = range(len(options))
        index = min(every, key=lambda at: (broken[at], times_s[at], name_of(options[at])))
        reasons = [
            None if at == index else _why_slower(broken[at], broken[index], times_s[at]) for at in every
        ]
        return Choice(index, [None if time_s == inf else time_s for time_s in times_s], reasons)

    def _best_fit(
        self,
        options: Sequence[Option],
        meeting: Sequence[int],
        misses: Sequence[float],
        times_s: Sequence[float],
    ) -> Choice:
        broken = {at: promises_broken(options[at]) for at in meeting}
        kinds = dict(zip(meeting, _occupancies([options[at] for at in meeting]), strict=True))
        least_broken: dict[tuple[float, float], int] = {}  # by kind of instance
        for at, kind in kinds.items():
            least_broken[kind] = min(broken[at], least_broken.get(kind, broken[at]))
        occupancy = {at: (least_broken[kind], *kind) for at, kind in kinds.items()}
        index = min(meeting, key=lambda at: (occupancy[at], times_s[at], misses[at], name_of(options[at])))
        reasons = [
            None if at == index else _why_not_best(miss, occupancy.get(at), occupancy[index])
            for at, miss in enumerate(misses)
        ]
        bound_s = times_s[index] * (1.0 + SIMILAR)
        alternatives = [
            at
            for at in meeting
            if at != index and occupancy[at] == occupancy[index] and times_s[at] <= bound_s
        ]
        return Choice(index, misses, reasons, alternatives=alternatives)

    def _without_packing(
        self,
        options: Sequence[Option],
        meeting: Sequence[int],
        misses: Sequence[float],
        times_s: Sequence[float],
    ) -> Choice:
        """P(miss) has been too optimistic for best fit: the least time, or the fewest sequences."""
        blind = self._guard.level > 1
        if blind:
            index = least_busy(options, range(len(options)))
        else:
            index = min(meeting, key=lambda at: (times_s[at], name_of(options[at])))
        reasons = [
            None
            if at == index
            else BUSIER
            if blind
            else f"would miss its SLO with probability {miss:.2f}"
            if miss > self.epsilon
            else f"slower: {format_s(times_s[at])} (no best fit: more SLOs were missed than predicted)"
            for at, miss in enumerate(misses)
        ]
        return Choice(index, misses, reasons)

    def _least_miss(
        self, options: Sequence[Option], misses: Sequence[float], times_s: Sequence[float]
    ) -> Choice:
        """No option meets the SLO."""
        lost = min(misses) > 1.0 - self.epsilon
        broken = [promises_broken(option, _LOST_MARGIN if lost else _TPOT_MARGIN) for option in options]

        def rank(at: int) -> tuple[float | tuple[str, str], ...]:
            last = times_s[at], name_of(options[at])
            if lost:
                return not _has_room(options[at], broken[at]), broken[at], misses[at], *last
            return misses[at], broken[at], *last

        index = min(range(len(options)), key=rank)
        reasons = [
            None if at == index else f"would miss its SLO with probability {miss:.2f}"
            for at, miss in enumerate(misses)
        ]
        return Choice(index, misses, reasons, defer=lost and not _has_room(options[index], broken[index]))


def promises_broken(option: Option, margin: float = _TPOT_MARGIN) -> int:
    """Requests running at the option's instance whose promised TPOT breaks if this request joins them."""
    prediction = option.prediction
    if prediction is None or prediction.tpot_s is None:
        return 0
    return bisect_left(option.instance.promised_tpot_s, prediction.tpot_s / margin)


def _has_room(option: Option, broken: int) -> bool:
    """Whether a request whose SLO is lost disturbs nobody there."""
    instance = option.instance
    usage = instance.report.kv_usage
    return not broken and not instance.awaiting_first_token and (usage is None or usage < _LOST_KV_USAGE)


def _occupancies(options: Sequence[Option]) -> list[tuple[float, float]]:
    """How expensive it is to occupy each option: its price in USD (rounded to three digits: predictions are no more
    precise), then its speed (step time in seconds, negated)."""
    hourly = all(option.instance.usd_per_hour is not None for option in options)
    prices: dict[float | None, float] = {None: 0.0}
    steps_s: dict[tuple[int, float], float] = {}  # by profile and speed: many instances share them
    found = []
    for option in options:
        instance, prediction = option.instance, option.prediction
        cost_usd = instance.usd_per_hour if hourly else (prediction.cost_usd if prediction else None)
        price = prices.get(cost_usd)
        if price is None:
            price = prices[cost_usd] = float(f"{cost_usd:.3g}")
        profile = instance.profiles.get(option.candidate.model)
        if profile is None:
            found.append((price, -((prediction.tpot_s if prediction else None) or 0.0)))
            continue
        key = id(profile), instance.speed
        step_s = steps_s.get(key)
        if step_s is None:
            step_s = steps_s[key] = profile.step_s(0, 1, 0.0) / instance.speed
        found.append((price, -step_s))
    return found


def _why_not_best(miss: float, occupancy: tuple[float, ...] | None, taken: tuple[float, ...]) -> str:
    if occupancy is None:
        return f"would miss its SLO with probability {miss:.2f}"
    if occupancy[0] > taken[0]:
        return _why_broken(int(occupancy[0]))
    if occupancy[1] > taken[1]:
        return "a cheaper instance meets the SLO"
    if occupancy[2] > taken[2]:
        return "faster than needed: kept free for requests that need it"
    return "equivalent but not faster, including the delay to other requests"


def _why_slower(broken: int, taken: int, time_s: float) -> str:
    if broken > taken:
        return _why_broken(broken)
    return "slower" if time_s == inf else f"slower: {time_s:.3g} s expected"


def _why_broken(broken: int) -> str:
    return f"would break the promised TPOT of running requests ({broken})"
