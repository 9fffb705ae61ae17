"""What the instances of a simulated fleet took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Change(NamedTuple):
    """A decision: how many instances a pool is to have, and how many are ready then."""

    at_s: float
    pool: str
    desired: int
    ready: int


@dataclass(slots=True)
class Usage:
    """What a run's instances took. `instance_s` by pool; `drained` counts instances that were given up while requests
    were under way there."""

    gpu_hours: float = 0.0
    usd: float = 0.0
    instance_s: dict[str, float] = field(default_factory=dict)
    warm_starts: int = 0
    cold_starts: int = 0
    drained: int = 0
    changes: list[Change] = field(default_factory=list)

    def decided(self, change: Change) -> None:
        """Keep a decision that differs from the pool's last one."""
        last = next((each for each in reversed(self.changes) if each.pool == change.pool), None)
        if last is None or last[2:] != change[2:]:
            self.changes.append(change)

    def pay(self, name: str, seconds: float, gpus: int, usd_per_hour: float) -> None:
        """Add the time of one instance."""
        self.gpu_hours += seconds / 3600 * gpus
        self.usd += seconds / 3600 * usd_per_hour
        self.instance_s[name] = self.instance_s.get(name, 0.0) + seconds
