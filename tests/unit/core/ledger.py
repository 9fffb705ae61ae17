"""A second set of books beside a scheduler's: what it hears and says, and what must hold of that at any moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from router.core.events import (
    Arrived,
    Cancel,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Instruction,
    Left,
    Refuse,
    Tick,
)
from router.core.scheduler import Scheduler
from router.core.state import Instance
from router.core.types import EndedHow, Request


class Ledger:
    """Hears every event with its time and its instructions (`hear`); raises AssertionError for what must not be."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.requests: dict[str, Request] = {}  # those that have not ended
        self.waiting: set[str] = set()
        self.under_way: dict[str, dict[int, Dispatch]] = {}
        self.decoding: dict[str, int] = {}  # the attempt that gave the first token
        self.attempts: Counter[str] = Counter()
        self.tried: dict[str, set[tuple[str, str]]] = {}
        self.spent_usd: Counter[str] = Counter()  # of attempts that have ended
        self.ended: Counter[str] = Counter()
        self.arrived = 0
        self.hedged = 0
        self.instances: dict[str, Instance] = dict(scheduler.instances)

    # --- what happens --------------------------------------------------------------------------------
    def hear(self, event: Event, now: float, instructions: list[Instruction]) -> None:
        waited = set(self.waiting)
        match event:
            case Arrived(request):
                assert request.id not in self.requests
                self.arrived += 1
                self.requests[request.id] = request
                self.waiting.add(request.id)
            case FirstToken(name, number):
                if number in self.under_way.get(name, {}):
                    self.decoding.setdefault(name, number)
            case Ended():
                self._ended(event)
            case Left(name):
                if name in self.requests:
                    self._end(name)
        for instruction in instructions:
            assert instruction.request_id in self.requests, f"{instruction} for a request that has ended"
            match instruction:
                case Dispatch():
                    self._dispatched(instruction, now)
                case Cancel(name, number):
                    assert self.decoding[name] != number, "the attempt that answers is cancelled"
                    lost = self.under_way[name].pop(number)
                    self._pay(lost, 0)
                case Refuse(name, _):
                    self._end(name)
        for name, attempts in self.under_way.items():
            assert len(attempts) == 1 or name not in self.decoding, f"two attempts of {name} decode"
        self._keeps_its_counts()
        self._keeps_its_times(now if isinstance(event, Tick) else None)
        self._keeps_the_order(instructions, waited, now)

    def _ended(self, event: Ended) -> None:
        name = event.request_id
        if event.attempt not in self.under_way.get(name, {}):
            return
        attempt = self.under_way[name].pop(event.attempt)
        if self.decoding.get(name) == event.attempt:
            del self.decoding[name]
        if event.how is EndedHow.OK or not event.restartable:
            if event.refusal is None:
                self._end(name)
            return
        if event.output_tokens:
            self._pay(attempt, event.output_tokens)
        if not self.under_way[name]:
            self.waiting.add(name)

    def _end(self, name: str) -> None:
        del self.requests[name]
        self.waiting.discard(name)
        self.under_way.pop(name, None)
        self.decoding.pop(name, None)
        self.ended[name] += 1
        assert self.ended[name] == 1, f"{name} has ended twice"

    def _pay(self, attempt: Dispatch, output_tokens: int) -> None:
        request = self.requests[attempt.request_id]
        self.spent_usd[request.id] += attempt.candidate.price.cost_usd(
            request.prompt_tokens_bound, output_tokens
        )

    # --- what must hold ------------------------------------------------------------------------------
    def _dispatched(self, sent: Dispatch, now: float) -> None:
        name, candidate = sent.request_id, sent.candidate
        request, running = self.requests[name], self.under_way.setdefault(name, {})
        assert len(running) == sent.hedge, f"{name} is dispatched twice"
        assert all(other.candidate.instance != candidate.instance for other in running.values())
        assert name not in self.decoding, f"{name} has its first token already"
        self.attempts[name] += 1
        assert sent.attempt == self.attempts[name] <= self.scheduler.settings.max_attempts
        tried = self.tried.setdefault(name, set())
        assert (candidate.instance, candidate.model) not in tried, "the same candidate again"
        tried.add((candidate.instance, candidate.model))
        assert candidate.model in (*request.models, *request.fallbacks)
        if sent.hedge:
            self.hedged += 1
            assert request.hedges
            assert self.hedged <= self.scheduler.settings.hedge_share * self.arrived + 1
        running[sent.attempt] = sent
        self.waiting.discard(name)
        instance = self.scheduler.instances[candidate.instance]
        assert instance.healthy
        assert not instance.draining
        assert instance.max_concurrency is None or instance.in_flight <= instance.max_concurrency
        if request.min_quality is not None:
            (quality,) = self.scheduler.predictor.qualities(request, (candidate,))
            assert quality is not None
            assert quality >= request.min_quality
        self._keeps_to_its_money(request, running.values())

    def _keeps_to_its_money(self, request: Request, running: Iterable[Dispatch]) -> None:
        """Whatever becomes of the attempts under way, the cap is not exceeded by more than one token's price."""
        cap_usd = request.max_cost_usd
        if cap_usd is None:
            return
        worst_usd = self.spent_usd[request.id]
        dearest_usd = 0.0
        for sent in running:
            price, bound = sent.candidate.price, sent.max_output_tokens
            dearest_usd = max(dearest_usd, price.cost_usd(0, 1))
            if request.decodes and price.output_usd_per_mtok:
                assert sent.paid_tokens is not None
                assert bound is None or bound * request.choices <= sent.paid_tokens
            worst_usd += price.cost_usd(request.prompt_tokens_bound, sent.paid_tokens or 0)
        assert worst_usd <= cap_usd + dearest_usd + 1e-12

    def _keeps_its_counts(self) -> None:
        scheduler = self.scheduler
        self.instances |= scheduler.instances
        assert scheduler.live == len(self.requests)
        assert scheduler.queue_depth == len(self.waiting) <= scheduler.settings.max_queue
        assert sum(scheduler.queued_by_model().values()) == len(self.waiting)
        there: dict[str, list[Dispatch]] = {name: [] for name in self.instances}
        for attempts in self.under_way.values():
            for each in attempts.values():
                there[each.candidate.instance].append(each)
        for name, instance in self.instances.items():
            mine = there[name]
            awaiting = [each for each in mine if self.decoding.get(each.request_id) != each.attempt]
            prompts = sum(self.requests[each.request_id].prompt_tokens for each in awaiting)
            assert instance.in_flight == len(mine)
            assert instance.awaiting_first_token == len(awaiting)
            assert instance.pending_prefill_tokens == prompts
            assert len(awaiting) < len(mine) or instance.context_tokens == 0
            targets = [self.requests[each.request_id].slo for each in mine]
            assert len(instance.promised_tpot_s) <= sum(
                slo is not None and slo.tpot_s is not None for slo in targets
            )

    def _keeps_its_times(self, ticked_at: float | None) -> None:
        """Nobody whose time passes is forgotten: the timer is set in time, and a tick finds all."""
        wake_at = self.scheduler.wake_at
        for request in self.requests.values():
            due = []
            if request.id not in self.decoding:
                due.append(request.expires_at)
            if request.hard and request.slo is not None:
                targets = [request.slo.e2e_s]
                if request.id not in self.decoding:
                    targets.append(request.slo.ttft_s)
                due += [request.arrived_at + each for each in targets if each is not None]
            for at_s in due:
                assert wake_at is not None, f"nobody wakes for {request.id}"
                assert wake_at <= at_s, f"{request.id} is woken too late"
                assert ticked_at is None or at_s > ticked_at, f"the time of {request.id} has passed"

    def _keeps_the_order(self, instructions: list[Instruction], waited: set[str], now: float) -> None:
        """Who is sent from the queue has no one of a larger priority behind, who could have taken that slot."""
        scheduler = self.scheduler
        for sent in instructions:
            if not isinstance(sent, Dispatch) or sent.request_id not in waited:
                continue
            request = self.requests.get(sent.request_id)
            if request is None:
                continue
            for name in self.waiting & waited:
                if self.requests[name].priority <= request.priority:
                    continue
                live = scheduler._live[name]
                found = scheduler._eligible(live, now)
                could = {option.candidate.instance for option in (*found.free, *found.busy)}
                assert live.deferred or sent.candidate.instance not in could, (
                    f"{name} of priority {live.request.priority} is behind {request.id}"
                )

    def is_closed(self) -> None:
        """All is over, and nothing of it is left."""
        scheduler = self.scheduler
        assert not self.requests
        assert scheduler.live == scheduler.queue_depth == 0
        assert scheduler.wake_at is None
        assert len(self.ended) == self.arrived
        for each in self.instances.values():
            assert (each.in_flight, each.awaiting_first_token) == (0, 0)
            assert (each.pending_prefill_tokens, each.context_tokens, each.promised_tpot_s) == (0, 0, [])
