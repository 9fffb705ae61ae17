"""Everything that shapes a workload, as the builder takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.workloads.mixes import RoutingMix
from benchmarks.workloads.restrict import Bounds
from benchmarks.workloads.sources.generators import Lengths
from benchmarks.workloads.sources.source import Choices


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of one build. Times in seconds of the trace's own clock, before any scaling."""

    seed: int = 0
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)  # by source name
    choices: Choices = Choices()
    mix: Mapping[str, float] = field(default_factory=dict)  # further workloads and their shares
    rate_per_s: float | None = None
    rate_scale: float | None = None
    start_s: float = 0.0
    duration_s: float | None = None
    limit: int | None = None
    arrivals: str | None = None  # a process or a timed source
    cv: float = 4.0
    period_s: float = 86400.0
    depth: float = 0.6
    turns: float = 1.0  # of a generated conversation, on average
    prompts: str | None = None  # a source with texts
    lengths: str | None = None  # a source whose lengths are taken
    generator_lengths: Lengths = Lengths()
    length_wins: Literal["workload", "prompts"] = "workload"
    bounds: Bounds = Bounds()
    max_tokens: int | Literal["auto", "exact"] = "auto"
    routing: RoutingMix = RoutingMix()

    @property
    def end_s(self) -> float:
        """Where the slice ends on the trace's clock; infinite without a duration."""
        return float("inf") if self.duration_s is None else self.start_s + self.duration_s
