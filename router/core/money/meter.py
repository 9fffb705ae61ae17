"""Meters one attempt's answer, and decides where it ends because its money ends.

There are two bounds. The number of tokens that the request's cap pays for is known from the start. The amount that the
key's budgets allow (`Allowance`) grows with the answer; an event that is not covered by it waits for a larger one. The
next event must be covered too, assumed to be as large as the largest so far, so that the answer can end before it
exceeds a budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from router.core.money.account import OutputBound
from router.core.money.reservation import Allowance
from router.core.types import Candidate, Request


class Verdict(Enum):
    """What happens to an event: it passes, it passes as the last one, the answer stops before it, or it waits for
    money."""

    PASS = 1
    PASS_LAST = 2
    STOP = 3
    WAIT = 4


class TokenMeter:
    """`tokens` are the output tokens so far (of all choices), `prompt_tokens` is the engine's own count of the prompt
    (None until it is known). `tokens` may be too high an estimate; `_certain_tokens` of them have surely come. Money bounds the
    first, the client's own bound the second. `allowance` is what the attempt may cost for now. `report_usd` is a cost that
    must be reported (`Metered`); the reporter then sets it to None."""

    __slots__ = (
        "_bound_tokens",
        "_capped",
        "_certain_tokens",
        "_engine_stops",
        "_left_usd",
        "_out_of_budget",
        "_paid_tokens",
        "_price",
        "_report_at_usd",
        "_wanted_tokens",
        "_widest",
        "allowance",
        "prompt_tokens",
        "report_usd",
        "tokens",
    )

    def __init__(
        self, request: Request, candidate: Candidate, bound: OutputBound, allowance: Allowance | None
    ) -> None:
        self._wanted_tokens = math.inf if request.max_tokens is None else request.max_tokens * request.choices
        self._capped = bound.paid_tokens is not None
        self._paid_tokens: float = math.inf if bound.paid_tokens is None else bound.paid_tokens
        #: An engine that respects its bound stops by itself. Only one token more shows that it does not.
        self._engine_stops = (
            bound.max_tokens is not None and bound.max_tokens * request.choices <= self._paid_tokens
        )
        self._price = candidate.price
        self._bound_tokens = request.bound_tokens(candidate.model)
        self._left_usd = bound.left_usd
        self.allowance = allowance
        self._report_at_usd = math.inf if allowance is None else allowance.report_at_usd
        self._out_of_budget = False
        self._widest = 1  # the most tokens in one event so far
        self.tokens = self._certain_tokens = 0
        self.prompt_tokens: int | None = None
        self.report_usd: float | None = None

    def allow(self, allowance: Allowance) -> None:
        """Use another allowance."""
        self.allowance = allowance
        self._report_at_usd = allowance.report_at_usd

    @property
    def by_money(self) -> bool:
        """Whether money ends the answer here, and not the client's own bound."""
        return self._certain_tokens <= self._wanted_tokens

    def count(self, tokens: int, prompt_tokens: int | None, certain_tokens: int | None = None) -> None:
        """With its next event the answer has `tokens` tokens, of which `certain_tokens` are no estimate (None: all).
        `prompt_tokens`: the engine's count in that event, if any."""
        self._widest = max(self._widest, tokens - self.tokens)
        self.tokens = tokens
        self._certain_tokens = tokens if certain_tokens is None else certain_tokens
        if prompt_tokens is not None:
            self.prompt_tokens = prompt_tokens

    def passing(self, made: Sequence[int], *, exact: bool) -> int:
        """Count those of the next events that pass without a report, as `judge` would decide, and return their number. None of
        them may end a choice. `made` are the tokens of each event (at least one event). If they are not `exact`, each event has
        at least one."""
        limit, most_usd = self._limit(), self._report_at_usd
        if self.allowance is not None:
            most_usd = min(most_usd, self.allowance.covered_usd)
        if self._engine_stops and limit == self._paid_tokens:
            limit += 1  # an answer may end there
        # Both sums only grow from one event to the next, so it is mostly enough to check the last one.
        passing = len(made) if min(made) >= 0 else next(at for at, each in enumerate(made) if each < 0)
        while passing:
            total = self.tokens + sum(made[:passing])
            certain = total if exact else self._certain_tokens + passing
            widest = max(self._widest, *made[:passing])
            if (
                total < limit
                and certain <= self._wanted_tokens
                and self._cost_usd(total + widest) <= most_usd
            ):
                self.tokens, self._certain_tokens, self._widest = total, certain, widest
                break
            passing -= 1
        return passing

    def judge(self, *, complete: bool, finished: bool) -> Verdict:
        """Decide about the event that was counted last. `complete`: it ends all choices, so no further event must be
        covered. `finished`: the engine itself ends the answer with it."""
        limit = self._limit()
        if self.tokens > limit:
            # Of what the event has beyond the cap, one token counts, if it has surely come.
            self.tokens = int(limit) + (self._certain_tokens > limit)
            return Verdict.STOP
        if self._certain_tokens > self._wanted_tokens:
            return Verdict.STOP
        if self.allowance is not None:
            verdict = self._afford(self._cost_usd(self.tokens + (0 if complete else self._widest)))
            if verdict is not Verdict.PASS:
                return verdict
        if self.tokens >= limit and not (finished or (self._engine_stops and limit == self._paid_tokens)):
            return Verdict.PASS_LAST
        return Verdict.PASS

    def judge_total(self, prompt_tokens: int | None, output_tokens: int | None) -> Verdict:
        """Decide about the engine's count of the complete answer, which may be more than its events contained."""
        if self.allowance is None or self._out_of_budget:
            return Verdict.PASS
        cost_usd = self._price.cost_usd(prompt_tokens or self._bound_tokens, output_tokens or self.tokens)
        return self._afford(cost_usd)

    def _afford(self, cost_usd: float) -> Verdict:
        allowance = self.allowance
        assert allowance is not None  # noqa: S101 (checked by both callers)
        if cost_usd > allowance.covered_usd:
            if not allowance.final:
                self.report_usd = cost_usd
                return Verdict.WAIT
            self._out_of_budget = True
            covered = self._cost_usd(self.tokens) <= allowance.covered_usd
            return Verdict.PASS_LAST if covered else Verdict.STOP
        if cost_usd > self._report_at_usd:
            self.report_usd = cost_usd
            self._report_at_usd = math.inf  # once for each allowance
        return Verdict.PASS

    def _cost_usd(self, tokens: int) -> float:
        prompt_tokens = self._bound_tokens if self.prompt_tokens is None else self.prompt_tokens
        return self._price.cost_usd(prompt_tokens, tokens)

    def _limit(self) -> float:
        """The tokens that the cap pays for: fewer than planned if the engine counts a longer prompt than the bound
        assumed."""
        prompt_tokens = self.prompt_tokens
        if not self._capped or prompt_tokens is None or prompt_tokens <= self._bound_tokens:
            return self._paid_tokens
        affordable = self._price.affordable_output_tokens(prompt_tokens, self._left_usd or 0.0)
        return self._paid_tokens if affordable is None else min(self._paid_tokens, affordable)
