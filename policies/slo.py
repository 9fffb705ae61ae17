"""`slo`: best fit. Of the options that meet the SLO with the required confidence, the one that is cheapest to occupy.

Among options with P(an SLO is missed) <= epsilon, in this order:

1. What costs others least: the fewest running requests there whose promised TPOT it would break (the predicted TPOT with
   this request, plus a margin, is above theirs). Then the cheapest to occupy, so that expensive and fast instances stay
   free for requests that need them: the least price per hour if all of these options state one, otherwise the least
   expected price by tariff.
2. The slowest: the longest decode step of one sequence (from the engine profile; without one the predicted TPOT).
3. Among equal instances the least time (`policies.expected.ExpectedTime`, without the risk of a miss), so that replicas share
   the load; then the least P(miss).

The cost of packing is limited, and the limit adapts to r, the scarcity of instances that meet SLOs (`policies.giving_up`; for
packing it falls from 1 at first). While nearly every request finds such an instance, nobody needs the fast ones that packing
keeps free. Of the options that break the fewest promises, only the ones count whose time is at most 1 / (1 - r^2) times the least.
So the policy takes the least time in light load, and under load it packs for at most half of the least time more. Without this
limit packing feeds itself: long prompts occupy the slow instances for so long that more requests find no option.

If more SLOs are missed than predicted (`policies.calibration_guard`), best fit is off. At level 1 the policy takes the
least time among the options that meet the SLO; at level 2 the fewest sequences, weighted by the instance's speed.

If no option meets the SLO: the least P(miss), to within 0.1, then the least time.

If the SLO is given up (`policies.giving_up`), all options are equal for the request, so it goes where it costs others least. If
it costs others something everywhere, or would delay another request's first token, it is deferred: it waits in the queue behind
requests that can still be in time, until an instance has room.

A request without an SLO goes where it costs others least: the fewest broken promises, and while r > 0.3 the option that is cheapest
to occupy, then the slowest. Then the least time. Ties: instance, then model name. Deterministic.

Best fit under an SLO is the idea of PolyServe (arXiv 2507.17769) and of llm-d's least positive headroom; both fill the
most loaded server first. Here it holds between kinds of hardware and not between replicas: filling one replica frees no
better one, and costs attainment. Counting the cost to others, the adaptive limit and deferring are Headway's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from random import Random
from typing import TypeVar

from policies.calibration_guard import CalibrationGuard
from policies.expected import CachedTokens, ExpectedTime, none_cached, p_miss, p_misses
from policies.giving_up import FREE_SCARCITY, GIVEN_UP, SCARCITY_DOWN, GivingUp, has_room, promises_broken
from policies.kinds import KEPT_FREE, Kind, kinds_of, least_kind
from policies.latency import BUSIER, SIMILAR, least_busy
from policies.picking import Reasons, at_most, format_s, known, least, name_of, would_miss
from router.core.interfaces import Choice, Option, Policy
from router.core.option_columns import any_promised
from router.core.types import Candidate, Request

#: Chances that differ by less than this are equal if none is enough.
_MISS_STEP = 0.1

_T = TypeVar("_T")


class BestFit(Policy):
    """See the module's docstring. The score is P(miss), or the time in seconds for a request without an SLO."""

    name = "slo"
    predicts = True

    def __init__(self, epsilon: float, time: ExpectedTime, cached_tokens: CachedTokens = none_cached) -> None:
        self.epsilon = epsilon
        self.time = time
        self._giving_up = GivingUp(epsilon, cached_tokens)
        self._first_scarcity = 1.0  # for packing, while little is known
        self._guard = CalibrationGuard(epsilon)

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        times_s = self.time.of(request, options)
        if request.slo is None:
            return self._without_slo(options, times_s)
        misses = p_misses(options)
        work = self._giving_up.work(request, options[times_s.index(min(times_s))])
        given_up = 1.0 - min(misses) < self._giving_up.least_chance(request, work)
        meeting = [] if given_up else at_most(misses, self.epsilon)
        if not meeting:
            choice = self._least_miss(options, misses, times_s, given_up=given_up)
        elif self._guard.level:
            choice = self._without_packing(options, meeting, misses, times_s)
        else:
            choice = self._best_fit(options, meeting, misses, times_s)
        choice.memo = work
        return choice

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Count the prompt, adapt the scarcity, and record P(miss) to compare it with the outcome."""
        option = options[choice.index]
        self.time.placed(request, option)
        if request.slo is None:
            return
        miss = p_miss(option)
        self._giving_up.decided(request, choice.memo, miss)
        if miss <= self.epsilon:
            self._first_scarcity *= SCARCITY_DOWN
            self._guard.predicted(request.id, miss)

    def refused(self, request: Request, options: Sequence[Option]) -> None:
        """Adapt the scarcity."""
        times_s = self.time.of(request, options)
        work = self._giving_up.work(request, options[times_s.index(min(times_s))])
        self._giving_up.decided(request, work, 1.0)

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """Compare the outcome with P(miss)."""
        self._guard.observed(request.id, met)

    def _without_slo(self, options: Sequence[Option], times_s: Sequence[float]) -> Choice:
        broken = [promises_broken(option) for option in options]
        fewest = min(broken)
        among = [at for at, each in enumerate(broken) if each == fewest]
        scarce = self._giving_up.scarcity > FREE_SCARCITY
        if scarce:
            among = least_kind(options, among)
        index = min(among, key=lambda at: (times_s[at], name_of(options[at])))

        def why(at: int) -> str:
            if broken[at] > broken[index]:
                return _would_break(broken[at])
            if scarce and times_s[at] < times_s[index]:
                return KEPT_FREE
            return _slower(times_s[at], times_s[index])

        return Choice(index, known(times_s), Reasons(len(times_s), index, why))

    def _best_fit(
        self, options: Sequence[Option], meeting: list[int], misses: Sequence[float], times_s: Sequence[float]
    ) -> Choice:
        among, broken = meeting, [0] * len(meeting)
        if any_promised(options):
            broken = [promises_broken(options[at]) for at in meeting]
            fewest = min(broken)
            if fewest != max(broken):
                among = [at for at, each in zip(meeting, broken, strict=True) if each == fewest]
        found, first = self._giving_up.scarcity, self._first_scarcity
        spare = 1.0 - (found if found > first else first) ** 2
        if spare > 0.0:
            most_s = min([times_s[at] for at in among]) / spare
            among = [at for at in among if times_s[at] <= most_s]
        kinds = kinds_of(options, among)
        taken = min(kinds)
        alike = [at for at, kind in zip(among, kinds, strict=True) if kind is taken]
        least_s = min([times_s[at] for at in alike])
        index = min(
            [at for at in alike if times_s[at] == least_s], key=lambda at: (misses[at], name_of(options[at]))
        )
        bound_s = times_s[index] * (1.0 + SIMILAR)
        alternatives = [at for at in alike if at != index and times_s[at] <= bound_s]
        reasons = _why_not_best(index, misses, times_s, (meeting, broken), (among, kinds))
        return Choice(index, misses, reasons, alternatives=alternatives)

    def _without_packing(
        self,
        options: Sequence[Option],
        meeting: Sequence[int],
        misses: Sequence[float],
        times_s: Sequence[float],
    ) -> Choice:
        """P(miss) has been too optimistic for best fit: the least time, or the fewest sequences."""
        blind, epsilon = self._guard.level > 1, self.epsilon
        index = least_busy(options, range(len(options))) if blind else least(options, meeting, times_s)

        def why(at: int) -> str:
            if blind:
                return BUSIER
            if misses[at] > epsilon:
                return would_miss(misses[at])
            return f"slower: {format_s(times_s[at])} (no best fit: more SLOs were missed than predicted)"

        return Choice(index, misses, Reasons(len(misses), index, why))

    def _least_miss(
        self, options: Sequence[Option], misses: Sequence[float], times_s: Sequence[float], *, given_up: bool
    ) -> Choice:
        """No option meets the SLO, or it is given up."""
        every = range(len(options))
        if not given_up:
            index = min(every, key=lambda at: (misses[at] // _MISS_STEP, times_s[at], name_of(options[at])))
            return Choice(index, misses, Reasons(len(misses), index, lambda at: would_miss(misses[at])))
        room = [has_room(option) for option in options]
        broken = [promises_broken(option, lost=True) for option in options]
        index = min(
            every, key=lambda at: (not room[at], broken[at], misses[at], times_s[at], name_of(options[at]))
        )

        def why(at: int) -> str:
            return would_miss(misses[at]) if room[at] else GIVEN_UP

        return Choice(index, misses, Reasons(len(misses), index, why), defer=not room[index])


# --- reasons ----------------------------------------------------
def _why_not_best(
    index: int,
    misses: Sequence[float],
    times_s: Sequence[float],
    broken: tuple[Sequence[int], Sequence[int]],
    kinds: tuple[Sequence[int], Sequence[Kind]],
) -> Sequence[str | None]:
    """`broken` has the options that meet the SLO and the promises that break there, `kinds` the fast enough ones of these
    with the fewest, and their kinds. Both are ordered by option."""

    def why(at: int) -> str:
        breaks, kind = _of(broken, at), _of(kinds, at)
        taken = _of(kinds, index)
        if breaks is None:
            return would_miss(misses[at])
        if breaks > (_of(broken, index) or 0):
            return _would_break(breaks)
        if kind is None or taken is None:
            return _slower(times_s[at], times_s[index])
        if kind[0] > taken[0]:
            return "a cheaper instance meets the SLO"
        if kind[1] > taken[1]:
            return "faster than needed: kept free for requests that need it"
        return "equivalent but not faster, including the delay to other requests"

    return Reasons(len(misses), index, why)


def _of(known: tuple[Sequence[int], Sequence[_T]], at: int) -> _T | None:
    """The value of an option; None if it has none."""
    options, values = known
    place = bisect_left(options, at)
    return values[place] if place < len(options) and options[place] == at else None


def _slower(time_s: float, taken_s: float) -> str:
    return f"more time in all (TTFT, E2E, the delay to other requests): {format_s(time_s)}, against {format_s(taken_s)}"


def _would_break(broken: int) -> str:
    return f"would break the promised TPOT of running requests ({broken})"
