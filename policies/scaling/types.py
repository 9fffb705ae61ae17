"""The vocabulary of scaling. A scaler gets the load at intervals, and says how many instances each pool needs.

A scaler is pure: time comes with the observation. The gateway and the simulator run the same one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from router.core.profile import EngineProfile
from router.core.types import Slo


@dataclass(frozen=True, slots=True)
class ScalingPool:
    """Instances that are alike: one model on one kind of hardware.

    `concurrency`: requests that one instance takes at a time. `cold_start_s`: from the decision until a new instance
    is ready; `warm_start_s` the same where its weights are in the machine's page cache. A pool with `min_instances` 0
    scales to zero: its requests wait until an instance is ready. For `cooldown_s` after it grew, a pool does not shrink.
    `slo` has the targets of the model's requests; None: an instance is to carry what it can.
    """

    name: str
    model: str
    profile: EngineProfile
    concurrency: int
    gpus: int = 1
    usd_per_hour: float = 0.0
    min_instances: int = 1
    max_instances: int = 1
    cold_start_s: float = 60.0
    warm_start_s: float = 20.0
    cooldown_s: float = 300.0
    slo: Slo | None = None


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The instances of one pool, and the requests that are under way at them. A draining instance takes no new ones."""

    ready: int
    starting: int = 0
    draining: int = 0
    in_flight: int = 0

    @property
    def current(self) -> int:
        """The instances that a decision counts."""
        return self.ready + self.starting


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The requests for one model. `queued` is now; all else is since the last observation. The tokens are those of the
    prompts that arrived and of the answers that ended (`answers` of them)."""

    arrivals: int = 0
    prompt_tokens: int = 0
    answers: int = 0
    output_tokens: int = 0
    slo_misses: int = 0
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What a scaler sees. `now_s` is time since the epoch, in UTC, so that the hour of the day is known; `seconds` is the
    time since the last observation. Pools and models by name."""

    now_s: float
    seconds: float
    pools: Mapping[str, PoolLoad]
    models: Mapping[str, ModelLoad]


class Scaler(ABC):
    """Decides for all pools at once. It may keep state; equal observations in equal order give equal decisions."""

    def learn(self, past: Observation) -> None:  # noqa: B027 (most methods do not forecast)
        """Learn from arrivals before the first decision, in order of time. The pools of `past` are ignored."""

    @abstractmethod
    def desired(self, observation: Observation) -> Mapping[str, int]:
        """The number of instances for each pool by name; starting ones count, draining ones do not. What a method wants
        may lie outside the pools' bounds: `bounds.Bounded` keeps these."""
