"""Requests under way in a simulation, and their attempts at engines."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.simulator.arrivals import Arrival
from router.core.events import Dispatch


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request under way: its place in the workload, its truth, and its attempts under way by number."""

    index: int
    arrival: Arrival
    attempts: dict[int, SimulatedAttempt] = field(default_factory=dict)


class SimulatedAttempt:
    """An attempt at an engine. `id` names it there, `tokens` are those that the engine gave, `prompt_tokens` its count of
    the prompt, `full_tokens` the answer's length if nothing bounds it, `wanted_tokens` those that the engine gives before
    it stops."""

    __slots__ = (
        "dispatch",
        "first_at",
        "full_tokens",
        "id",
        "prompt_tokens",
        "request",
        "running",
        "tokens",
        "wanted_tokens",
    )

    def __init__(self, request: SimulatedRequest, dispatch: Dispatch) -> None:
        self.request = request
        self.dispatch = dispatch
        self.id = f"{dispatch.request_id}#{dispatch.attempt}"
        self.running = True
        self.first_at: float | None = None
        self.tokens = self.prompt_tokens = 0
        bound_tokens = dispatch.bound.total_tokens
        self.full_tokens = full_tokens = request.arrival.output_tokens[dispatch.candidate.model]
        self.wanted_tokens = full_tokens if bound_tokens is None else min(full_tokens, bound_tokens)

    @property
    def truncated(self) -> bool:
        """Whether the answer ended at a bound, and not where it would have."""
        return self.wanted_tokens <= self.tokens < self.full_tokens
