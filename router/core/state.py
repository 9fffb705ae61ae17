"""What the router knows of one instance: health, own work in flight, and the engine's last report.

Own work is counted up and down as attempts start and end, so between two reports of the engine the
router's own dispatches are never missed (two decisions do not chase the same idle instance). Where several replicas
of the router share a fleet, the counts hold what the others have told too (`Instance.elsewhere`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from router.core.profile import EngineProfile
from router.core.types import Candidate, Capability, LoadReport

#: Features of an instance at a decision, in this order, in `Decision.loads` and in the records.
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


class Work(NamedTuple):
    """What a replica of the router has at an instance, in the terms of `Instance`."""

    in_flight: int = 0
    awaiting_first_token: int = 0
    pending_prefill_tokens: int = 0
    context_tokens: int = 0

    def __add__(self, other: object) -> Work:
        """Both together."""
        if not isinstance(other, Work):
            return NotImplemented
        return Work(*map(int.__add__, self, other))


#: How fast the mean gap between ends follows.
_GAP_STEP = 0.05


@dataclass(slots=True)
class Instance:
    """One running replica. `profile` maps a model's fleet name to its engine profile, where one is known;
    `speed` is the time compression of an emulated instance (profile seconds / wall seconds). `unsupported` is what its engine
    is known to refuse. `tokenizes`: it can count a prompt's tokens. `fixed_slots`: it decodes in a fixed number of
    parallel slots; else it batches."""

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
    probe_failures: int = 0  # consecutive
    probe_successes: int = 0
    connect_failures: int = 0  # consecutive
    #: Consecutive failures of requests by owner: the operator's key that they count for (None: there are no keys).
    request_failures: dict[str | None, int] = field(default_factory=dict)
    ejected_for: dict[str, int] = field(
        default_factory=dict
    )  # out for these owners only: good probes until it is back
    returned_at: float | None = None  # when it came back after an ejection
    ejections: int = 0  # by this replica
    own_word_until: float = -inf  # until then no other replica's ejection counts

    # the router's work in flight: of this replica, and of the others as far as they have told
    in_flight: int = 0
    awaiting_first_token: int = 0
    pending_prefill_tokens: int = 0  # prompt tokens of attempts without a first token
    context_tokens: int = 0  # prompt and expected output tokens of attempts that decode
    dispatched_since_report: int = 0
    ended_since_report: int = 0
    release_gap_s: float | None = None  # running mean between the ends of our attempts
    released_at: float | None = None
    promised_tpot_s: list[float] = field(default_factory=list)  # TPOT targets of our attempts there, sorted

    elsewhere: Work = Work()  # of these, what other replicas have there
    replicas: int = 1  # how many share the instance, this one too

    # the engine's own view
    report: LoadReport = LoadReport()
    reported_at: float | None = None

    @property
    def running(self) -> int:
        """Sequences at the engine now, our own and others': its last report corrected by our own dispatches
        and completions since, never below our own in-flight count."""
        report = self.report
        if report.running is None:
            return self.in_flight
        known = (
            report.running + (report.waiting or 0) + self.dispatched_since_report - self.ended_since_report
        )
        return max(known, self.in_flight)

    def seats(self, model: str) -> int | None:
        """The most sequences of one model that the engine decodes together; None without a profile."""
        profile = self.profiles.get(model)
        return None if profile is None else profile.seats(self.fixed_slots)

    def dispatched(self, prompt_tokens: int) -> None:
        """An attempt of ours is on its way to it."""
        self.in_flight += 1
        self.awaiting_first_token += 1
        self.pending_prefill_tokens += prompt_tokens
        self.dispatched_since_report += 1

    def first_token(self, prompt_tokens: int, expected_output_tokens: int) -> None:
        """One of our attempts decodes now."""
        self.awaiting_first_token -= 1
        self.pending_prefill_tokens -= prompt_tokens
        self.context_tokens += prompt_tokens + expected_output_tokens

    def released(self, prompt_tokens: int, expected_output_tokens: int, decoding: bool) -> None:
        """One of our attempts has ended, `decoding` (after its first token) or not."""
        self.in_flight -= 1
        self.ended_since_report += 1
        if decoding:
            self.context_tokens -= prompt_tokens + expected_output_tokens
        else:
            self.awaiting_first_token -= 1
            self.pending_prefill_tokens -= prompt_tokens

    @property
    def own(self) -> Work:
        """What this replica alone has there."""
        here, others = self.work, self.elsewhere
        return Work(*(all_ - other for all_, other in zip(here, others, strict=True)))

    @property
    def work(self) -> Work:
        """What all replicas have there."""
        return Work(
            self.in_flight, self.awaiting_first_token, self.pending_prefill_tokens, self.context_tokens
        )

    def shares(self, elsewhere: Work, replicas: int) -> None:
        """The other replicas, of `replicas` in all, have so much there now."""
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
        self.elsewhere, self.replicas = elsewhere, replicas

    def freed(self, now: float) -> None:
        """A slot has come free at `now`."""
        if self.released_at is not None:
            gap_s = now - self.released_at
            mean_s = self.release_gap_s
            self.release_gap_s = gap_s if mean_s is None else mean_s + _GAP_STEP * (gap_s - mean_s)
        self.released_at = now

    def takes_report(self, report: LoadReport, now: float) -> None:
        """The engine's own view has come; what we did since is counted from here."""
        self.report = report
        self.reported_at = now
        self.dispatched_since_report = self.ended_since_report = 0

    def load_features(self, now: float) -> tuple[float | None, ...]:
        """One row of `LOAD_FEATURES`."""
        report = self.report
        return (
            self.in_flight,
            self.awaiting_first_token,
            self.pending_prefill_tokens,
            self.context_tokens,
            report.running,
            report.waiting,
            report.kv_usage,
            None if self.reported_at is None else round(now - self.reported_at, 4),
        )
