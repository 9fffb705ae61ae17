"""The router's state of one instance: health, work in flight, and the engine's last load report.

The counts change as attempts start and end, so they are current between two load reports, and two decisions in a row do
not both see the same instance as idle. If several router replicas share a fleet, the counts include the work that the
others reported (`Instance.elsewhere`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple

from router.core.profile import EngineProfile
from router.core.rounding import rounded
from router.core.types import Candidate, Capability, LoadReport

#: The load features of an instance at a decision, in the order of `Decision.loads` and of the records.
LOAD_FEATURES = (
    "in_flight",
    "awaiting_first_token",
    "pending_prefill_tokens",
    "context_tokens",
    "running",
    "waiting",
    "kv_usage",
    "report_age_s",
)

#: What `LOAD_FEATURES` are made of: the counts, the report and its time.
Load = tuple[int, int, int, int, LoadReport, float | None]
load_of: Callable[[Instance], Load] = attrgetter(
    "in_flight",
    "awaiting_first_token",
    "pending_prefill_tokens",
    "context_tokens",
    "report",
    "reported_at",
)


def load_features(load: Load, now: float) -> tuple[float | None, ...]:
    """The values of `LOAD_FEATURES` at `now`."""
    in_flight, awaiting_first_token, pending_prefill_tokens, context_tokens, report, reported_at = load
    return (
        in_flight,
        awaiting_first_token,
        pending_prefill_tokens,
        context_tokens,
        report.running,
        report.waiting,
        report.kv_usage,
        None if reported_at is None else rounded(now - reported_at, 4),
    )


class Work(NamedTuple):
    """The work of one router replica at an instance, with the meanings of the `Instance` fields."""

    in_flight: int = 0
    awaiting_first_token: int = 0
    pending_prefill_tokens: int = 0
    context_tokens: int = 0


#: How many requests may wait in an engine's own queue: enough to fill each of its steps, few enough that the router
#: keeps control of the order.
ENGINE_QUEUE = 4
#: Step of the running mean of the gap between ends.
_GAP_STEP = 0.05


@dataclass(slots=True)
class Instance:
    """One running engine. `profiles` maps a model's fleet name to its engine profile, if known. `speed` is the time
    compression of an emulated instance (profile seconds / wall seconds). `unsupported` has the capabilities that the
    engine is known to lack. `tokenizes`: it can count a prompt's tokens. `fixed_slots`: it decodes in a fixed number of
    parallel slots instead of batching."""

    name: str
    kind: str
    candidates: dict[str, Candidate]  # by fleet model name
    max_concurrency: int | None = None
    hardware: str | None = None
    speed: float = 1.0
    profiles: dict[str, EngineProfile] = field(default_factory=dict)
    usd_per_hour: float | None = None
    unsupported: frozenset[Capability] = frozenset()
    tokenizes: bool = False
    fixed_slots: bool = False

    # health
    healthy: bool = True
    draining: bool = False
    #: It has never answered a probe yet, so it is not healthy either. Requests wait for it. The first successful probe
    #: ends this.
    starting: bool = False
    probe_failures: int = 0  # consecutive
    probe_successes: int = 0
    connect_failures: int = 0  # consecutive
    #: Consecutive failed requests by owner: the operator's key that they count for (None: the gateway has no keys).
    request_failures: dict[str | None, int] = field(default_factory=dict)
    #: It is ejected for these owners only, each with the number of successful probes until it returns.
    ejected_for: dict[str, int] = field(default_factory=dict)
    returned_at: float | None = None  # when it returned after an ejection
    ejections: int = 0  # by this replica
    own_word_until: float = -inf  # until then no other replica's ejection is adopted

    # the router's work in flight: of this replica, and of the others as they reported it
    in_flight: int = 0
    awaiting_first_token: int = 0
    pending_prefill_tokens: int = 0  # prompt tokens of attempts without a first token
    context_tokens: int = 0  # prompt and expected output tokens of decoding attempts
    dispatched_since_report: int = 0
    ended_since_report: int = 0
    #: The number of sequences at the engine now: those of its last report, corrected by our dispatches and ends since then,
    #: and at least our own attempts in flight. It follows from the fields around it (`recount`).
    running: int = field(init=False, default=0)
    release_gap_s: float | None = None  # running mean between the ends of our attempts
    released_at: float | None = None
    ended: int = 0  # our attempts that have ended
    promised_tpot_s: list[float] = field(default_factory=list)  # TPOT targets of our attempts, sorted

    elsewhere: Work = Work()  # the other replicas' part of these counts

    # the engine's load report
    report: LoadReport = LoadReport()
    reported_at: float | None = None

    def __post_init__(self) -> None:
        self.recount()

    def recount(self) -> None:
        """Set `running`, after the counts or the report were set anew."""
        report, in_flight = self.report, self.in_flight
        running = report.running
        if running is None:
            self.running = in_flight
            return
        running += (report.waiting or 0) + self.dispatched_since_report - self.ended_since_report
        self.running = running if running > in_flight else in_flight

    def seats(self, model: str) -> int | None:
        """The most sequences of one model that the engine decodes at once; None without a profile."""
        profile = self.profiles.get(model)
        return None if profile is None else profile.seats(self.fixed_slots)

    def dispatched(self, prompt_tokens: int) -> None:
        """Count a dispatched attempt."""
        self.in_flight += 1
        self.running += 1
        self.awaiting_first_token += 1
        self.pending_prefill_tokens += prompt_tokens
        self.dispatched_since_report += 1

    def first_token(self, prompt_tokens: int, expected_output_tokens: int) -> None:
        """Count the first token of an attempt."""
        self.awaiting_first_token -= 1
        self.pending_prefill_tokens -= prompt_tokens
        self.context_tokens += prompt_tokens + expected_output_tokens

    def released(self, prompt_tokens: int, expected_output_tokens: int, decoding: bool) -> None:
        """Count the end of an attempt. `decoding`: after its first token."""
        self.in_flight -= 1
        self.running -= 1
        self.ended_since_report += 1
        if decoding:
            self.context_tokens -= prompt_tokens + expected_output_tokens
        else:
            self.awaiting_first_token -= 1
            self.pending_prefill_tokens -= prompt_tokens

    @property
    def own(self) -> Work:
        """The work of this replica."""
        here, others = self.work, self.elsewhere
        return Work(*(all_ - other for all_, other in zip(here, others, strict=True)))

    @property
    def work(self) -> Work:
        """The work of all replicas."""
        return Work(
            self.in_flight, self.awaiting_first_token, self.pending_prefill_tokens, self.context_tokens
        )

    def shares(self, elsewhere: Work) -> None:
        """Set the work of the other replicas."""
        before = self.elsewhere
        more = elsewhere.in_flight - before.in_flight
        if more > 0:
            self.dispatched_since_report += more
        else:
            self.ended_since_report -= more
        self.in_flight += more
        self.awaiting_first_token += elsewhere.awaiting_first_token - before.awaiting_first_token
        self.pending_prefill_tokens += elsewhere.pending_prefill_tokens - before.pending_prefill_tokens
        self.context_tokens += elsewhere.context_tokens - before.context_tokens
        self.elsewhere = elsewhere
        self.recount()

    def joins(self) -> None:
        """Begin like a new instance, with the attempts of this replica that have been under way since it left the fleet."""
        self.healthy, self.draining, self.starting = True, False, False
        self.probe_failures = self.probe_successes = self.connect_failures = 0
        self.request_failures, self.ejected_for, self.returned_at = {}, {}, None
        self.report, self.reported_at = LoadReport(), None
        self.shares(Work())

    def freed(self, now: float) -> None:
        """Record that a slot became free at `now`."""
        if self.released_at is not None:
            gap_s = now - self.released_at
            mean_s = self.release_gap_s
            self.release_gap_s = gap_s if mean_s is None else mean_s + _GAP_STEP * (gap_s - mean_s)
        self.released_at = now
        self.ended += 1

    def takes_report(self, report: LoadReport, now: float) -> None:
        """Store a load report, and count dispatches and ends from now on."""
        self.report = report
        self.reported_at = now
        self.dispatched_since_report = self.ended_since_report = 0
        self.recount()
