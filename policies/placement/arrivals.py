"""The requests for which a placement is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in order of arrival: the time (s), the model, and the time that each may take (s)."""

    arrival_s: Sequence[float]
    model: Sequence[int]
    deadline_s: Sequence[float]
    models: int
    #: The number of requests for each model.
    counts: tuple[int, ...] = field(init=False, repr=False)
    _parts: dict[tuple[int, ...], Arrivals] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __post_init__(self) -> None:
        counts = [0] * self.models
        for each in self.model:
            counts[each] += 1
        object.__setattr__(self, "counts", tuple(counts))

    def of(self, chosen: tuple[int, ...]) -> Arrivals:
        """Only the requests for these models (sorted)."""
        if chosen not in self._parts:
            wanted = set(chosen)
            rows = [
                row
                for row in zip(self.arrival_s, self.model, self.deadline_s, strict=True)
                if row[1] in wanted
            ]
            self._parts[chosen] = Arrivals(
                [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], self.models
            )
        return self._parts[chosen]
