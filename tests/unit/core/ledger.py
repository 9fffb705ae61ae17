"""The contract of the life of a request, checked from outside: a second set of books beside a scheduler's.

It sees events and instructions only, but for two things that no instruction shows: which attempts wait for money, and who
could have taken a slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from router.core.errors import Refusal
from router.core.events import (
    Allow,
    Arrived,
    Cancel,
    Check,
    Checked,
    Dispatch,
    Ended,
    Event,
    FailureKind,
    Finish,
    FirstToken,
    Granted,
    Instruction,
    Metered,
    PeerLoadReported,
    Probed,
    Reserve,
    Tick,
)
from router.core.money.reservation import SLACK_USD, Allowance, Funding
from router.core.request_state import AttemptPhase
from router.core.scheduler import Scheduler
from router.core.settlement import Settlement
from router.core.state import Instance
from router.core.types import EndedHow, Outcome, Request

#: Takes what goes into a scheduler, when, and what comes out.
Listener = Callable[[Event, float, list[Instruction]], None]
#: Outcomes of requests that get no error from the router.
_WITHOUT_REFUSAL = (Outcome.OK, Outcome.LATE, Outcome.BUDGET_EXHAUSTED_MID_DECODE, Outcome.CLIENT_CANCELLED)
_EXACT_USD = 1e-12


def listen(scheduler: Scheduler, listener: Listener) -> None:
    """Let `listener` get all that a scheduler handles."""
    respond = scheduler.respond

    def heard(event: Event, now: float) -> list[Instruction]:
        instructions = respond(event, now)
        scheduler.catch_up()
        listener(event, now, instructions)
        return instructions

    scheduler.respond = heard  # type: ignore[method-assign]


@dataclass
class Attempt:
    """An attempt that the driver was told to start. `cost_usd` is what it was last reported to cost."""

    sent: Dispatch
    cost_usd: float
    cancelled: bool = False
    allowance: Allowance | None = None


@dataclass
class Entry:
    """One request. `reserved_usd` is reserved for it, `asked` says that the budgets' answer is awaited, `costs_usd` are
    those of attempts that have ended, `decoding` is the attempt that gave the first token of the answer. `held` has given a
    whole answer that the client has not got; `checking`: it is being checked."""

    request: Request
    funding: Funding | None
    reserved_usd: float = 0.0
    asked: bool = False
    under_way: dict[int, Attempt] = field(default_factory=dict)
    sent: list[Dispatch] = field(default_factory=list)
    costs_usd: list[float] = field(default_factory=list)
    decoding: int | None = None
    held: int | None = None
    checking: bool = False

    @property
    def ending(self) -> bool:
        """Whether the driver was told to end all of it."""
        return bool(self.under_way) and all(each.cancelled for each in self.under_way.values())


class Ledger:
    """Takes every event with its time and its instructions (`take`); raises AssertionError for what must not be."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.entries: dict[str, Entry] = {}  # of requests that have not finished
        self.finished: dict[str, Settlement] = {}
        self.arrived = 0
        self.hedged = 0
        self.instances: dict[str, Instance] = dict(scheduler.instances)
        self._funding: set[tuple[str, int]] = set()  # attempts that waited for money after the last event
        self._healthy = set(scheduler.instances)  # those that were healthy then

    def attempts(self) -> Iterator[Attempt]:
        """All under way."""
        return (each for entry in self.entries.values() for each in entry.under_way.values())

    @property
    def waiting(self) -> set[str]:
        """Requests that have no attempt, or only one that lost to another that has failed, and whose end is not reported yet:
        those in the queue."""
        funded, queued = {name for name, _ in self._funding}, self.scheduler._queue.waiting
        return {
            name
            for name, entry in self.entries.items()
            if (not entry.under_way or (entry.ending and name in queued))
            and not entry.checking
            and name not in funded
        }

    # --- what happens --------------------------------------------------------------------------------
    def take(self, event: Event, now: float, instructions: list[Instruction]) -> None:
        waited = self.waiting
        self._happened(event)
        for instruction in instructions:
            entry = self.entries.get(instruction.request_id)
            assert entry is not None, f"{instruction} for a request that is not under way"
            match instruction:
                case Dispatch():
                    self._dispatched(entry, instruction, event)
                case Cancel():
                    self._cancelled(entry, instruction, event)
                case Reserve():
                    assert entry.funding is not None
                    assert not entry.asked, "two answers of the budgets are awaited"
                    assert 0 < instruction.usd < float("inf")
                    entry.asked = True
                case Allow():
                    attempt = entry.under_way[instruction.attempt]
                    assert not attempt.cancelled
                    assert attempt.allowance is not None
                    self._covers(entry, instruction.allowance, attempt)
                case Check():
                    self._checks(entry, instruction, event)
                case Finish():
                    self._finished(entry, instruction.settlement, now)
        self.instances |= self.scheduler.instances
        self._funding = {
            (name, each.number)
            for name, state in self.scheduler._open.states.items()
            for each in state.under_way
            if each.phase is AttemptPhase.FUNDING
        }
        self._healthy = {name for name, each in self.scheduler.instances.items() if each.healthy}
        self._keeps_its_counts()
        self._keeps_nobody_waiting()
        if not any(each.cancelled for each in self.attempts()):
            self._keeps_its_times(now if isinstance(event, Tick) else None)
            self._keeps_the_order(instructions, waited, now)

    def _happened(self, event: Event) -> None:
        match event:
            case Arrived(request, funding):
                assert request.id not in self.entries
                self.arrived += 1
                entry = self.entries[request.id] = Entry(request, funding)
                entry.reserved_usd = 0.0 if funding is None else funding.reserved_usd
            case FirstToken(name, number):
                attempt = self._attempt(name, number)
                if attempt is not None and not attempt.cancelled and self.entries[name].decoding is None:
                    self.entries[name].decoding = number
            case Metered(name, number, cost_usd):
                attempt = self._attempt(name, number)
                if attempt is not None:
                    attempt.cost_usd = cost_usd
            case Granted(name, reserved_usd, _):
                if name in self.entries:
                    self.entries[name].reserved_usd += reserved_usd
                    self.entries[name].asked = False
            case Checked(name, _, _):
                if name in self.entries:
                    self.entries[name].checking = False
            case Ended():
                if self._attempt(event.request_id, event.attempt) is not None:
                    self._ended(self.entries[event.request_id], event)

    def _attempt(self, name: str, number: int) -> Attempt | None:
        entry = self.entries.get(name)
        return None if entry is None else entry.under_way.get(number)

    def _ended(self, entry: Entry, event: Ended) -> None:
        """Bill an attempt as `router.core.settlement` promises."""
        attempt = entry.under_way.pop(event.attempt)
        if entry.decoding == event.attempt and event.how is not EndedHow.OK:
            entry.decoding = None
        cancelled = attempt.cancelled
        paid = (
            (cancelled and event.sent)
            or (not cancelled and event.how is EndedHow.OK)
            or (event.failure is not None and event.failure.kind is FailureKind.TOO_LARGE and not cancelled)
            or event.output_tokens > 0
        )
        prompt_tokens = event.prompt_tokens or entry.request.prompt_tokens
        price = attempt.sent.candidate.price
        entry.costs_usd.append(price.cost_usd(prompt_tokens, event.output_tokens) if paid else 0.0)

    # --- instructions --------------------------------------------------------------------------------
    def _dispatched(self, entry: Entry, sent: Dispatch, event: Event) -> None:
        scheduler, request, candidate = self.scheduler, entry.request, sent.candidate
        beside = [each.sent for each in entry.under_way.values() if not each.cancelled]
        # It was placed before, when things were otherwise.
        funded = (request.id, sent.attempt) in self._funding
        assert len(beside) <= sent.hedge, f"{request.id} is dispatched twice"
        assert len(beside) == sent.hedge or funded
        assert all(other.candidate.instance != candidate.instance for other in beside)
        assert entry.decoding is None, f"{request.id} has its first token already"
        assert entry.sent == [] or sent.attempt > entry.sent[-1].attempt
        assert sent.attempt <= scheduler.settings.max_attempts
        tried = [(other.candidate.instance, other.candidate.model) for other in entry.sent]
        assert (candidate.instance, candidate.model) not in tried, "the same candidate again"
        assert candidate.model in (*request.models, *request.fallbacks)
        if sent.hedge:
            self.hedged += 1
            assert request.hedges
            assert self.hedged <= scheduler.settings.hedge_share * self.arrived + 1
        if not funded:
            instance = scheduler.instances[candidate.instance]
            if not instance.healthy:  # a request that ended later in this event was held against it
                assert candidate.instance in self._healthy
                assert not isinstance(event, Probed | PeerLoadReported)
            assert not instance.draining
            assert instance.max_concurrency is None or instance.in_flight <= instance.max_concurrency
        if request.min_quality is not None:
            (quality,) = scheduler.predictor.qualities(request, (candidate,))
            assert quality >= request.min_quality
        least = request.choices if request.decodes else 0
        attempt = Attempt(sent, candidate.price.cost_usd(request.bound_tokens(candidate.model), least))
        entry.under_way[sent.attempt] = attempt
        entry.sent.append(sent)
        self._keeps_to_the_cap(entry)
        if sent.allowance is None:
            assert entry.funding is None
        else:
            self._covers(entry, sent.allowance, attempt)

    def _cancelled(self, entry: Entry, cancel: Cancel, event: Event) -> None:
        attempt = entry.under_way[cancel.attempt]
        assert not attempt.cancelled, "cancelled twice"
        # The attempt that answers is cancelled only if nobody waits for its answer any more.
        lost = isinstance(event, FirstToken | Ended)
        assert entry.decoding != cancel.attempt or not lost, "the attempt that answers is cancelled"
        attempt.cancelled = True

    def _checks(self, entry: Entry, check: Check, event: Event) -> None:
        """A whole answer that its client does not get at once is checked, once."""
        request = entry.request
        assert request.check is not None
        assert not request.client_streams
        assert entry.held is None, "a second check"
        assert isinstance(event, Ended)
        assert (event.attempt, event.how, event.out_of_money) == (check.attempt, EndedHow.OK, False)
        assert len(entry.sent) < self.scheduler.settings.max_attempts
        entry.held, entry.checking, entry.decoding = check.attempt, True, None

    def _covers(self, entry: Entry, allowance: Allowance, attempt: Attempt) -> None:
        """An allowance is reserved, beside what has been spent and what the other attempts were reported to cost."""
        others = sum(each.cost_usd for each in entry.under_way.values() if each is not attempt)
        spent_usd = sum(entry.costs_usd)
        assert allowance.covered_usd <= entry.reserved_usd - spent_usd - others + 2 * SLACK_USD
        assert allowance.report_at_usd <= allowance.covered_usd
        attempt.allowance = allowance

    def _keeps_to_the_cap(self, entry: Entry) -> None:
        """Whatever becomes of the attempts under way, the cap is not exceeded by more than one token's price."""
        request, cap_usd = entry.request, entry.request.max_cost_usd
        if cap_usd is None:
            return
        worst_usd, token_usd = sum(entry.costs_usd), 0.0
        for attempt in entry.under_way.values():
            price, bound = attempt.sent.candidate.price, attempt.sent.bound
            token_usd = max(token_usd, price.cost_usd(0, 1))
            if request.decodes and price.output_usd_per_mtok:
                assert bound.paid_tokens is not None
                bounds = [bound.max_tokens, attempt.sent.candidate.context_tokens]
                least = min((each for each in bounds if each is not None), default=None)
                assert least is None or least * request.choices <= bound.paid_tokens
            most = bound.paid_tokens or 0
            if request.max_tokens is not None:
                most = min(most, request.max_tokens * request.choices)
            worst_usd += price.cost_usd(request.prompt_tokens_bound, most)
        assert worst_usd <= cap_usd + token_usd + _EXACT_USD

    def _finished(self, entry: Entry, settlement: Settlement, now: float) -> None:
        request = entry.request
        name = request.id
        assert not entry.under_way, f"{name} finishes while an attempt is under way"
        assert name not in self.finished, f"{name} finishes twice"
        del self.entries[name]
        self.finished[name] = settlement
        attempts = settlement.attempts
        assert [each.number for each in attempts] == [*range(1, len(attempts) + 1)]
        started = {each.attempt for each in entry.sent}
        for each in attempts:
            assert each.phase is AttemptPhase.ENDED
            assert each.ended_how is not None
            if each.number not in started:  # it waited for money in vain
                assert (each.cost_usd, each.billed, each.output_tokens) == (0.0, False, 0)
        assert abs(settlement.cost_usd - sum(each.cost_usd for each in attempts)) <= _EXACT_USD
        assert abs(settlement.cost_usd - sum(entry.costs_usd)) <= _EXACT_USD
        assert abs(settlement.reserved_usd - entry.reserved_usd) <= _EXACT_USD
        used = [
            (each.prompt_tokens or request.prompt_tokens) + each.output_tokens
            for each in attempts
            if each.billed
        ]
        assert settlement.used_tokens == sum(used)
        assert (settlement.refusal is None) == (settlement.outcome in _WITHOUT_REFUSAL)
        self._answers(entry, settlement)
        assert 0 <= settlement.e2e_s <= now - request.arrived_at
        assert 0 <= settlement.queue_wait_s <= settlement.e2e_s
        if settlement.ttft_s is not None:
            assert settlement.queue_wait_s <= settlement.ttft_s <= settlement.e2e_s

    def _answers(self, entry: Entry, settlement: Settlement) -> None:
        """A request that was answered has one whole answer; whether that kept the SLO is said where there is one."""
        slo, met = entry.request.slo, settlement.slo_met
        answered = [each for each in settlement.attempts if each.ended_how is EndedHow.OK]
        if entry.held is not None:  # whatever comes, the client gets an answer, unless it has left
            assert settlement.outcome in (Outcome.OK, Outcome.LATE, Outcome.CLIENT_CANCELLED)
            assert settlement.attempts[entry.held - 1] in answered
            if settlement.outcome is not Outcome.CLIENT_CANCELLED:
                assert settlement.answer in answered
            assert len(answered) <= 2
        elif settlement.outcome in (Outcome.OK, Outcome.LATE, Outcome.BUDGET_EXHAUSTED_MID_DECODE):
            assert answered == [settlement.answer]
            assert (met is None) == (slo is None)
            assert (settlement.outcome is Outcome.LATE) <= (met is False)
        else:
            assert not answered
            assert not met
            assert slo is not None or met is None
            if isinstance(settlement.refusal, Refusal):
                outside = (Outcome.REJECTED_INVALID,)
                assert (met is False) == (slo is not None and settlement.outcome not in outside)

    # --- at any moment -------------------------------------------------------------------------------
    def _keeps_its_counts(self) -> None:
        scheduler, waiting = self.scheduler, self.waiting
        assert scheduler.live == len(self.entries)
        assert scheduler.queue_depth == len(waiting) <= scheduler.settings.max_queue
        assert sum(scheduler.queued_by_model().values()) == len(waiting)
        at: Counter[str] = Counter()
        awaiting: Counter[str] = Counter()
        prompts: Counter[str] = Counter()
        targets: Counter[str] = Counter()
        for name, entry in self.entries.items():
            places = {number: each.sent.candidate for number, each in entry.under_way.items()}
            for _, number in (each for each in self._funding if each[0] == name):
                _, state = scheduler._open.find(name, number)
                places[number] = state.candidate
            for number, candidate in places.items():
                at[candidate.instance] += 1
                slo = entry.request.slo
                targets[candidate.instance] += slo is not None and slo.tpot_s is not None
                if entry.decoding != number:
                    awaiting[candidate.instance] += 1
                    prompts[candidate.instance] += entry.request.prompt_tokens
        for name, instance in self.instances.items():
            assert instance.in_flight == at[name]
            assert instance.awaiting_first_token == awaiting[name]
            assert instance.pending_prefill_tokens == prompts[name]
            assert awaiting[name] < at[name] or instance.context_tokens == 0
            assert len(instance.promised_tpot_s) <= targets[name]

    def _keeps_nobody_waiting(self) -> None:
        """Whoever waits for money waits for an answer of the budgets, not for ever."""
        for name, _ in self._funding:
            assert self.entries[name].asked, f"{name} waits for money that nobody was asked for"
        for name, entry in self.entries.items():
            for each in entry.under_way.values():
                allowance = each.allowance
                if allowance is not None and each.cost_usd > allowance.covered_usd:
                    assert entry.asked or allowance.final or each.cancelled, f"{name} waits for ever"

    def _keeps_its_times(self, ticked_at: float | None) -> None:
        """Nobody whose time passes is forgotten: the timer is set in time, and a tick finds all."""
        wake_at = self.scheduler.wake_at
        for name, entry in self.entries.items():
            request = entry.request
            due = [] if entry.decoding is not None or entry.checking else [request.expires_at]
            begun = entry.decoding is not None or entry.held is not None
            if request.hard and request.slo is not None:
                targets = [request.slo.e2e_s, None if begun else request.slo.ttft_s]
                due += [request.arrived_at + each for each in targets if each is not None]
            for at_s in due:
                assert wake_at is not None, f"nobody wakes for {name}"
                assert wake_at <= at_s, f"{name} is woken too late"
                assert ticked_at is None or at_s > ticked_at, f"the time of {name} has passed"

    def _keeps_the_order(self, instructions: list[Instruction], waited: set[str], now: float) -> None:
        """Who is sent from the queue has no one of a larger priority behind, who could have taken that slot."""
        scheduler = self.scheduler
        for sent in instructions:
            if not isinstance(sent, Dispatch) or sent.request_id not in waited & self.entries.keys():
                continue
            request = self.entries[sent.request_id].request
            for name in self.waiting & waited:
                if self.entries[name].request.priority <= request.priority:
                    continue
                state = scheduler._open.states[name]
                found = scheduler._placer.eligible(state, now)
                could = {option.candidate.instance for option in (*found.free, *found.busy)}
                assert state.deferred or sent.candidate.instance not in could, (
                    f"{name} of priority {state.request.priority} is behind {request.id}"
                )

    def is_closed(self) -> None:
        """All is over: one `Finish` for each `Arrived`, and nothing is left of any."""
        scheduler = self.scheduler
        assert not self.entries
        assert len(self.finished) == self.arrived
        assert scheduler.live == scheduler.queue_depth == 0
        assert scheduler.wake_at is None
        for each in self.instances.values():
            assert (each.in_flight, each.awaiting_first_token) == (0, 0)
            assert (each.pending_prefill_tokens, each.context_tokens, each.promised_tpot_s) == (0, 0, [])
