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
    first_token_at: float | None = None


@dataclass(slots=True)
class Live:
    """A request that is queued or under way. `tried` are the (instance, model) pairs it has been to,
    `spent_usd` what its failed attempts cost, `queued_as` its place in the queue (None: not queued)."""

    request: Request
    seq: int
    attempt: Attempt | None = None
    attempts: int = 0
    spent_usd: float = 0.0
    tried: set[tuple[str, str]] = field(default_factory=set)
    queued_as: tuple[float, float, int] | None = None

    def slack_deadline(self) -> float:
        """When the first token is due; the queue is in this order inside a priority."""
        request, slo = self.request, self.request.slo
        if slo is None:
            return request.expires_at
        targets = [s for s in (slo.ttft_s, slo.e2e_s) if s is not None]
        return request.arrived_at + min(targets) if targets else request.expires_at

    def hard_deadline(self) -> float | None:
        """When a hard SLO ends this request: its TTFT until the first token, its E2E always."""
        request = self.request
        if not request.hard or request.slo is None:
            return None
        decoding = self.attempt is not None and self.attempt.first_token_at is not None
        targets = [request.slo.e2e_s, None if decoding else request.slo.ttft_s]
        due = min((t for t in targets if t is not None), default=None)
        return None if due is None else request.arrived_at + due

    def output_bound(self, candidate: Candidate) -> tuple[int | None, bool]:
        """Output tokens (for each choice) that the client's cap and its money allow (None: the engine's own
        bound), and whether it is the money that sets it."""
        request = self.request
        if not request.decodes or request.max_cost_usd is None:
            return (request.max_tokens if request.decodes else None), False
        affordable = candidate.price.affordable_output_tokens(
            request.prompt_tokens_bound, request.max_cost_usd - self.spent_usd
        )
        if affordable is None:
            return request.max_tokens, False
        affordable //= request.choices
        by_money = True
        context = candidate.context_tokens
        if context is not None:
            if affordable >= context:
                return request.max_tokens, False  # no answer outgrows the context
            room = max(1, context - request.prompt_tokens)
            if affordable > room:  # engines refuse a bound that the context cannot hold
                affordable, by_money = room, False
        if request.max_tokens is not None and request.max_tokens <= affordable:
            return request.max_tokens, False
        return affordable, by_money
