"""What the scheduler keeps of a request that is queued or under way: its limits in time and money."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.core.state import Instance
from router.core.types import Candidate, Prediction, Request


@dataclass(slots=True)
class Attempt:
    """One attempt under way. Times are on the runner's clock in seconds."""

    number: int
    candidate: Candidate
    instance: Instance
    prediction: Prediction
    dispatched_at: float
    prompt_tokens: int
    expected_output_tokens: int
    max_tokens: int | None = None  # the bound that was sent, for each choice
    paid_tokens: int | None = None  # output tokens that the money cap pays for; None: no cap
    promised_tpot_s: float | None = None  # its TPOT target, where it should be kept
    first_token_at: float | None = None


@dataclass(slots=True)
class Live:
    """A request that is queued or under way. `under_way` are its attempts at this moment: one, or two while a
    hedge runs; `attempts` counts all it has had. `tried` are the (instance, model) pairs it has been to,
    `spent_usd` what its ended attempts cost, `deferred` says that its policy holds it back. `placed` is where it was
    sent last (None: nowhere yet), `charged_tokens` what its key's turn in the queue was counted for. `failed_at` are the
    instances at which it failed, until it is known who is to blame."""

    request: Request
    seq: int
    under_way: list[Attempt] = field(default_factory=list)
    attempts: int = 0
    spent_usd: float = 0.0
    tried: set[tuple[str, str]] = field(default_factory=set)
    deferred: bool = False
    placed: Candidate | None = None
    charged_tokens: float | None = None
    failed_at: dict[str, Instance] = field(default_factory=dict)

    def attempt(self, number: int) -> Attempt | None:
        """The attempt of this number, if it is under way."""
        return next((each for each in self.under_way if each.number == number), None)

    @property
    def decoding(self) -> bool:
        """Whether it has its first token."""
        return any(each.first_token_at is not None for each in self.under_way)

    def reserved_usd(self) -> float:
        """What the attempts under way can cost at most; only asked of requests with a money cap."""
        return sum(
            each.candidate.price.cost_usd(
                self.request.bound_tokens(each.candidate.model), each.paid_tokens or 0
            )
            for each in self.under_way
        )

    def charged_usd(self) -> float:
        """What of its key's money is spent, or held for the prompts of attempts under way: how long an answer may
        become is the lease's business, which grows with it."""
        return self.spent_usd + sum(
            each.candidate.price.cost_usd(self.request.bound_tokens(each.candidate.model), 0)
            for each in self.under_way
        )

    def slack_deadline(self, decode_s: float = 0.0) -> float:
        """When the first token is due, if decoding takes `decode_s` at least; the queue is in this order inside a
        key."""
        request, slo = self.request, self.request.slo
        if slo is None:
            return request.expires_at
        targets = [] if slo.ttft_s is None else [slo.ttft_s]
        if slo.e2e_s is not None:
            targets.append(slo.e2e_s - decode_s)
        return request.arrived_at + min(targets) if targets else request.expires_at

    def hard_deadline(self) -> float | None:
        """When a hard SLO ends this request: its TTFT until the first token, its E2E always."""
        request = self.request
        if not request.hard or request.slo is None:
            return None
        targets = [request.slo.e2e_s, None if self.decoding else request.slo.ttft_s]
        due = min((t for t in targets if t is not None), default=None)
        return None if due is None else request.arrived_at + due

    def output_bound(self, candidate: Candidate) -> tuple[int | None, bool, int | None]:
        """Output tokens (for each choice) that the client's cap and its money allow (None: the engine's own
        bound), whether it is money that sets it, and the tokens of all choices that its money cap pays for (None: no
        money cap, or one that no answer reaches)."""
        request = self.request
        if not request.decodes:
            return None, False, None
        wished, choices = request.max_tokens, request.choices
        if request.max_cost_usd is None and request.left_usd is None:
            return wished, False, None
        bound, by_money, paid = wished, False, None
        prompt_tokens = request.bound_tokens(candidate.model)
        if request.max_cost_usd is not None:
            affordable = candidate.price.affordable_output_tokens(
                prompt_tokens, request.max_cost_usd - self.spent_usd - self.reserved_usd()
            )
            if affordable is not None:
                bound, by_money = self._within(candidate, wished, affordable // choices)
                paid = affordable if wished is None else min(affordable, wished * choices)
        if request.left_usd is not None:
            affordable = candidate.price.affordable_output_tokens(
                prompt_tokens, request.left_usd - self.charged_usd()
            )
            if affordable is not None:
                # One token less: with it an engine that goes on shows itself, and is paid for that.
                each = max(1, (affordable - 1) // choices)
                bound, by_key = self._within(candidate, bound, each)
                by_money = by_money or by_key
        return bound, by_money, paid

    def _within(self, candidate: Candidate, wished: int | None, affordable: int) -> tuple[int | None, bool]:
        """The bound for each choice when money pays for so many tokens of each, and whether it is the money's."""
        by_money = True
        context = candidate.context_tokens
        if context is not None:
            if affordable >= context:
                return wished, False  # no answer outgrows the context
            room = max(1, context - self.request.prompt_tokens)
            if affordable > room:  # engines refuse a bound that the context cannot hold
                affordable, by_money = room, False
        if wished is not None and wished <= affordable:
            return wished, False
        return affordable, by_money
