"""Whatever happens in whatever order: nobody over capacity, nothing dispatched twice, one end each."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.events import Arrived, Dispatch, Ended, FirstToken, Instruction, Left, Probed, Tick
from router.core.types import EndedHow, Slo
from tests.unit.core.worlds import instance, request, scheduler


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.instances = [instance("a", "m", slots=2), instance("b", "m", "n", slots=1), instance("c", "n")]
        self.s = scheduler(*self.instances, max_queue=3, eject_after=2, return_after=1)
        self.now = 0.0
        self.count = 0
        self.active: dict[str, Dispatch] = {}  # dispatched and not ended
        self.decoding: set[str] = set()
        self.waiting: set[str] = set()
        self.ended: set[str] = set()

    def take(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            name = instruction.request_id
            assert name not in self.ended, "an instruction for a request that has ended"
            if isinstance(instruction, Dispatch):
                assert name not in self.active, "dispatched twice"
                self.active[name] = instruction
                self.waiting.discard(name)
            else:
                self.end(name)

    def end(self, name: str) -> None:
        self.active.pop(name, None)
        self.waiting.discard(name)
        self.decoding.discard(name)
        self.ended.add(name)

    @rule(model=st.sampled_from(["m", "n"]), hard=st.booleans(), ttft=st.sampled_from([None, 3.0]))
    def arrive(self, model: str, hard: bool, ttft: float | None) -> None:
        self.count += 1
        name = f"r{self.count}"
        self.waiting.add(name)
        slo = None if ttft is None else Slo(ttft_s=ttft)
        arrived = request(name, at=self.now, models=(model,), slo=slo, hard=hard, expires_at=self.now + 20)
        self.take(self.s.handle(Arrived(arrived), self.now))

    @rule(data=st.data(), how=st.sampled_from([EndedHow.OK, EndedHow.FAILED]), fault=st.booleans())
    def attempt_ends(self, data: st.DataObject, how: EndedHow, fault: bool) -> None:
        if not self.active:
            return
        name = data.draw(st.sampled_from(sorted(self.active)))
        sent = self.active.pop(name)
        restartable = how is EndedHow.FAILED and name not in self.decoding
        if restartable:
            self.waiting.add(name)
        else:
            self.end(name)
        self.decoding.discard(name)
        event = Ended(name, sent.attempt, how, output_tokens=1, restartable=restartable, fault=fault)
        self.take(self.s.handle(event, self.now))

    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        if self.active:
            name = data.draw(st.sampled_from(sorted(self.active)))
            self.decoding.add(name)
            self.take(self.s.handle(FirstToken(name, self.active[name].attempt), self.now))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        known = sorted(set(self.active) | self.waiting)
        if known:
            name = data.draw(st.sampled_from(known))
            self.end(name)
            self.take(self.s.handle(Left(name), self.now))

    @rule(name=st.sampled_from(["a", "b", "c"]), healthy=st.booleans())
    def probe(self, name: str, healthy: bool) -> None:
        self.take(self.s.handle(Probed(name, healthy), self.now))

    @rule(seconds=st.sampled_from([0.5, 4.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.s.handle(Tick(), self.now))

    @invariant()
    def counts_agree(self) -> None:
        assert self.s.live == len(self.active) + len(self.waiting)
        assert self.s.queue_depth == len(self.waiting)
        for each in self.instances:
            mine = [d for d in self.active.values() if d.candidate.instance == each.name]
            assert each.in_flight == len(mine)
            assert each.max_concurrency is None or each.in_flight <= each.max_concurrency
            decoding = sum(d.request_id in self.decoding for d in mine)
            assert each.awaiting_first_token == len(mine) - decoding
            assert each.pending_prefill_tokens == 100 * (len(mine) - decoding)
            assert each.context_tokens == 200 * decoding


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(stateful_step_count=40)
