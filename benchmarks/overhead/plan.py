"""The load generator's plan and result: JSON on its stdin and stdout."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter

from benchmarks.measures import Summary


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of load against 127.0.0.1. `mode` is "closed" (each connection sends the next request at once), "open"
    (`rate_per_s` requests at fixed instants, whatever the answers do) or "hold" (each connection opens one stream and keeps
    it). Connections take the `ports` in turn. The CPU time of the processes under test (`target_pids`) and of the engine
    (`bench_pids`) is read when the measured window opens and closes. `key` is the client's."""

    mode: str = "closed"
    ports: tuple[int, ...] = ()
    connections: int = 0
    duration_s: float = 0.0
    warmup_s: float = 0.5
    stream: bool = False
    chunks: int = 16
    pace_us: int = 0
    rate_per_s: float = 0.0
    target_pids: tuple[int, ...] = ()
    bench_pids: tuple[int, ...] = ()
    key: str | None = None

    @property
    def stream_s(self) -> float:
        """How long one answer takes by its pace."""
        return self.chunks * self.pace_us * 1e-6


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of times in microseconds; None where nothing was measured."""

    count: int = 0
    mean_us: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    max_us: float | None = None

    @classmethod
    def of_ns(cls, values_ns: list[int]) -> Spread:
        """From nanoseconds, in any order."""
        found = Summary.of(value / 1000 for value in values_ns)
        return cls(found.count, found.mean, found.p50, found.p99, found.max)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run measured. `answers` and `chunks` are those that arrived in the window of `window_s`; `started`,
    `completed`, `errors` (by kind) and `incomplete` (not ended when the run was) are over the whole run: started = completed
    + errors + incomplete + held. `latency` is of whole answers (from the scheduled instant in open loop), `ttft` from
    sending to the first content event, `relay` from an event's writing to its arrival, `lag` how late the generator itself
    sent. `held` are streams that had begun in "hold". CPU in seconds over the window; `foreign_cores` is what all else on
    the machine used, in cores."""

    window_s: float
    answers: int
    chunks: int
    started: int
    completed: int
    incomplete: int
    held: int
    target_cpu_s: float
    bench_cpu_s: float
    load_cpu_s: float
    foreign_cores: float | None
    rss_mib: float | None
    pss_mib: float | None
    errors: dict[str, int] = field(default_factory=dict)
    latency: Spread = Spread()
    ttft: Spread = Spread()
    relay: Spread = Spread()
    lag: Spread = Spread()

    @property
    def failed(self) -> int:
        """Answers that went wrong in any way."""
        return sum(self.errors.values()) + self.incomplete


#: What reads them.
PLANS, RESULTS = TypeAdapter(Plan), TypeAdapter(Result)
