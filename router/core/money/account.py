"""The money of one request: its cap, its reservation, and what its attempts cost."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from router.compiled import compiled_init
from router.core.money.reservation import SLACK_USD, Allowance, Funding, Reservation
from router.core.types import ROUNDING, Candidate, Request

#: Why a candidate is too expensive.
OVER_CAP = "too expensive for the money cap"
OVER_BUDGET = "too expensive for the rest of the key's budgets"


@compiled_init
class OutputBound(NamedTuple):
    """The bound on an answer's length. `max_tokens` bounds each choice (None: the engine's own bound); `by_money`:
    money sets this bound. `paid_tokens` are the output tokens of all choices together that the cap pays for (None: no
    cap, or no answer can reach it). `left_usd` is what the cap has left for this attempt (None: no cap)."""

    max_tokens: int | None = None
    by_money: bool = False
    paid_tokens: int | None = None
    left_usd: float | None = None

    @property
    def cap_is_least(self) -> bool:
        """Whether the cap pays for fewer tokens than the bound that is sent to the engine (for a request with one
        choice)."""
        return self.paid_tokens is not None and (
            self.max_tokens is None or self.paid_tokens < self.max_tokens
        )

    @property
    def total_tokens(self) -> int | None:
        """The number of tokens at which the router ends the answer of one choice; None: the engine ends it."""
        return self.paid_tokens if self.cap_is_least else self.max_tokens


class Wait(Enum):
    """The state of an attempt's wait for money: it is over, it continues, or the attempt gets nothing."""

    OVER = 1
    CONTINUES = 2
    REFUSED = 3


class RequestMoney:
    """One request's money. `spent_usd` is the cost of its ended attempts. Against the request's bounds, a prompt that
    the engine did not count is charged by its upper bound (`_charged_usd`)."""

    __slots__ = (
        "_charged_usd",
        "_costs_usd",
        "_request",
        "_under_way",
        "_waiting",
        "reservation",
        "spent_usd",
    )

    def __init__(self, request: Request, funding: Funding | None = None) -> None:
        self._request = request
        self.reservation = None if funding is None else Reservation(funding)
        self.spent_usd = self._charged_usd = 0.0
        # By attempt under way: the cost of its prompt, and the highest cost within the cap.
        self._under_way: dict[int, tuple[float, float]] = {}
        self._costs_usd: dict[int, float] = {}  # by attempt under way: its cost so far, as reported
        # Attempts that wait for money: whether more was requested since then.
        self._waiting: dict[int, bool] = {}

    # --- before an attempt ---------------------------------------------------------------------------
    @property
    def is_bounded(self) -> bool:
        """Whether a cap or a budget bounds what the request may cost."""
        return self._request.max_cost_usd is not None or (
            self.reservation is not None and self.reservation.left_usd is not None
        )

    def too_expensive(self, candidate: Candidate) -> str | None:
        """Why the money does not pay the prompt and one token of each choice at this candidate; None if it does."""
        request = self._request
        prompt_tokens = request.bound_tokens(candidate.model)
        least = request.choices if request.decodes else 0
        for left_usd, why in (
            (self._left_of_cap_usd(), OVER_CAP),
            (self._left_of_budgets_usd(), OVER_BUDGET),
        ):
            if left_usd is not None:
                affordable = candidate.price.affordable_output_tokens(prompt_tokens, left_usd)
                if affordable is not None and affordable < least:
                    return why
        return None

    def output_bound(self, candidate: Candidate) -> OutputBound:
        """The bound on the length of this candidate's answer."""
        request = self._request
        if request.max_cost_usd is None and self.reservation is None:
            return OutputBound(request.max_tokens if request.decodes else None)
        left_of_cap_usd, left_of_budgets_usd = self._left_of_cap_usd(), self._left_of_budgets_usd()
        if not request.decodes:
            return OutputBound(left_usd=left_of_cap_usd)
        wanted, choices = request.max_tokens, request.choices
        bound, by_money, paid = wanted, False, None
        prompt_tokens = request.bound_tokens(candidate.model)
        if left_of_cap_usd is not None:
            affordable = candidate.price.affordable_output_tokens(prompt_tokens, left_of_cap_usd)
            if affordable is not None:
                bound, by_money = self._within(candidate, wanted, affordable // choices)
                paid = affordable
        if left_of_budgets_usd is not None:
            affordable = candidate.price.affordable_output_tokens(prompt_tokens, left_of_budgets_usd)
            if affordable is not None:
                # One token is kept back. If the engine ignores its bound, one more token shows it, and that token is
                # paid.
                bound, by_budget = self._within(candidate, bound, max(1, (affordable - 1) // choices))
                by_money = by_money or by_budget
        return OutputBound(bound, by_money, paid, left_of_cap_usd)

    def _within(self, candidate: Candidate, wanted: int | None, affordable: int) -> tuple[int | None, bool]:
        """The bound of each choice if money pays for `affordable` tokens of each, and whether money sets it."""
        by_money = True
        context = candidate.context_tokens
        if context is not None:
            if affordable >= context:
                return wanted, False  # no answer outgrows the context
            prompt_tokens = self._request.longest_prompt_tokens or self._request.prompt_tokens
            room = max(1, context - prompt_tokens)
            if affordable > room:  # engines refuse a bound that the context cannot hold
                affordable, by_money = room, False
        if wanted is not None and wanted <= affordable:
            return wanted, False
        return affordable, by_money

    def _left_of_cap_usd(self) -> float | None:
        cap_usd = self._request.max_cost_usd
        if cap_usd is None:
            return None
        return cap_usd - self._charged_usd - sum(most_usd for _, most_usd in self._under_way.values())

    def _left_of_budgets_usd(self) -> float | None:
        """What the budgets have left for a new attempt. The answers under way do not count yet, because the reservation
        grows with them."""
        if self.reservation is None or self.reservation.left_usd is None:
            return None
        prompts_usd = sum(prompt_usd for prompt_usd, _ in self._under_way.values())
        return self.reservation.left_usd - self._charged_usd - prompts_usd

    # --- attempts ------------------------------------------------------------------------------------
    def begin(self, attempt: int, candidate: Candidate, bound: OutputBound) -> bool:
        """Count an attempt from now on; returns whether it may start now. It needs money for its prompt and one token
        of each choice, or for the complete answer if the engine cannot stream it."""
        request, price = self._request, candidate.price
        if self.reservation is None and request.max_cost_usd is None:
            return True
        prompt_tokens, most_tokens = request.bound_tokens(candidate.model), bound.paid_tokens or 0
        if request.max_tokens is not None:
            most_tokens = min(most_tokens, request.max_tokens * request.choices)
        self._under_way[attempt] = (
            price.cost_usd(prompt_tokens, 0),
            price.cost_usd(prompt_tokens, most_tokens),
        )
        if self.reservation is None:
            return True
        tokens = request.choices if request.decodes else 0
        if not request.engine_streams:
            tokens *= (candidate.context_tokens or 1) if bound.max_tokens is None else bound.max_tokens
        return self.metered(attempt, price.cost_usd(prompt_tokens, tokens))

    def metered(self, attempt: int, cost_usd: float) -> bool:
        """An attempt has this cost, or will have it with its next event; returns whether the cost is reserved. If not,
        the attempt waits (`wait_of`)."""
        self._costs_usd[attempt] = cost_usd
        reservation = self.reservation
        if reservation is None or reservation.covers(self._total_usd()):
            return True
        self._waiting[attempt] = False
        return False

    def request_more(self) -> float | None:
        """USD to reserve in addition now; None for nothing. More than the reserved amount is only requested if an
        attempt waits for it: an attempt with a final allowance ends instead."""
        reservation = self.reservation
        if reservation is None:
            return None
        cost_usd = self._total_usd()
        if not self._waiting and not reservation.covers(cost_usd):
            return None
        requested_usd = reservation.request_more(cost_usd)
        if requested_usd is not None:
            self._waiting = dict.fromkeys(self._waiting, True)
        return requested_usd

    def granted(self, reserved_usd: float, left_usd: float | None) -> None:
        """The budgets' answer to `request_more`. Afterwards the caller checks each waiting attempt (`wait_of`)."""
        if self.reservation is not None:
            self.reservation.granted(reserved_usd, left_usd)

    def wait_of(self, attempt: int) -> Wait:
        """The state of an attempt's wait after an answer of the budgets."""
        reservation = self.reservation
        if reservation is None or attempt not in self._waiting:
            return Wait.OVER
        if reservation.covers(self._total_usd()):
            del self._waiting[attempt]
            return Wait.OVER
        if self._waiting[attempt] and reservation.refused:
            del self._waiting[attempt]
            return Wait.REFUSED
        return Wait.CONTINUES

    def allowance(self, attempt: int, *, final: bool = False) -> Allowance | None:
        """What an attempt may cost now; None: no budget bounds it."""
        if self.reservation is None:
            return None
        return self.reservation.allowance(self._total_usd() - self._costs_usd.get(attempt, 0.0), final=final)

    def end(
        self,
        attempt: int,
        candidate: Candidate,
        cost_usd: float,
        prompt_tokens: int | None,
        output_tokens: int,
    ) -> None:
        """An attempt has ended with this cost. `prompt_tokens` is the engine's count."""
        self.spent_usd += cost_usd
        if self.reservation is None and self._request.max_cost_usd is None:
            return
        self._under_way.pop(attempt, None)
        self._costs_usd.pop(attempt, None)
        self._waiting.pop(attempt, None)
        if cost_usd:
            bound_tokens = prompt_tokens or self._request.bound_tokens(candidate.model)
            self._charged_usd += candidate.price.cost_usd(bound_tokens, output_tokens)

    # --- its end -------------------------------------------------------------------------------------
    @property
    def reserved_usd(self) -> float:
        """The amount reserved in each of the key's budgets."""
        return 0.0 if self.reservation is None else self.reservation.reserved_usd

    @property
    def overrun_usd(self) -> float | None:
        """The cost of the request beyond its cap or its key's budgets; None without a bound."""
        if self.reservation is None and self._request.max_cost_usd is None:
            return None
        bounds_usd = [] if self._request.max_cost_usd is None else [self._request.max_cost_usd]
        left_usd = None if self.reservation is None else self.reservation.left_usd
        if left_usd is not None and self.spent_usd > left_usd + SLACK_USD:
            bounds_usd.append(left_usd)
        if not bounds_usd:
            return None
        overrun_usd = self.spent_usd - min(bounds_usd)
        return overrun_usd if overrun_usd > ROUNDING * self.spent_usd else 0.0

    def _total_usd(self) -> float:
        return self.spent_usd + sum(self._costs_usd.values())
