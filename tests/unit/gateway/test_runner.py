"""The runner: what goes to whom, and when the timer is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from router.core.events import (
    Arrived,
    Cancel,
    Dispatch,
    Ended,
    Event,
    Finish,
    FirstToken,
    GivenUp,
    Instruction,
    Left,
    Tick,
)
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, Prediction, Request, Slo
from router.gateway.runner import Runner
from tests import virtual_time
from tests.unit.core.test_hedging import Hopeful
from tests.unit.core.worlds import instance, request, scheduler


class Scripted:
    """A scheduler that answers by script."""

    def __init__(self, answer: Callable[[Event], list[Instruction]]) -> None:
        self.answer = answer
        self.queue_depth = 0
        self.wake_at: float | None = None

    def respond(self, event: Event, now: float) -> list[Instruction]:
        return self.answer(event)

    def catch_up(self) -> None:
        """Nothing is postponed."""


class Handle:
    """Keeps the instructions, and answers each `Cancel`. `fails` on instructions of one kind."""

    def __init__(self, runner: Runner, fails: type | None = None) -> None:
        self.runner = runner
        self.fails = fails
        self.got: list[Instruction] = []

    def carry_out(self, instruction: Instruction) -> None:
        self.got.append(instruction)
        if type(instruction) is self.fails:
            raise RuntimeError("broken")
        if type(instruction) is Cancel:
            self.runner.apply(Ended(instruction.request_id, instruction.attempt, EndedHow.CANCELLED))

    @property
    def kinds(self) -> list[type]:
        return [type(each) for each in self.got]


def real(*slots: int) -> Any:
    """A scheduler whose driver answers cancels itself."""
    made = scheduler(*(instance(f"i{at}", slots=count) for at, count in enumerate(slots)))
    made.late = True
    return made


def run(main: Callable[[Runner], Any], s: Any) -> Any:
    async def inside() -> Any:
        runner = Runner(s, asyncio.get_running_loop().time)
        try:
            return await main(runner)
        finally:
            runner.stop()

    return virtual_time.run(inside())


def test_instructions_go_to_the_request_that_they_concern_until_its_finish() -> None:
    async def main(runner: Runner) -> None:
        handles = {name: Handle(runner) for name in ("r1", "r2")}
        for name, handle in handles.items():
            runner.submit(request(name), None, handle.carry_out)
        assert [each.kinds for each in handles.values()] == [[Dispatch], []]
        runner.apply(Left("r1"))  # its slot goes to the other one
        assert [each.kinds for each in handles.values()] == [[Dispatch, Cancel, Finish], [Dispatch]]
        runner.apply(FirstToken("r1", 1))
        runner.apply(Ended("r2", 1, EndedHow.OK, 5))
        assert [each.kinds for each in handles.values()] == [[Dispatch, Cancel, Finish], [Dispatch, Finish]]
        assert runner.scheduler.live == 0

    run(main, real(1))


def test_whoever_fails_to_carry_out_an_instruction_ends_alone() -> None:
    for fails in (Dispatch, Cancel, Finish):

        async def main(runner: Runner, fails: type = fails) -> None:
            handles = [Handle(runner, fails), Handle(runner)]
            for number, handle in enumerate(handles):
                runner.submit(request(f"r{number}"), None, handle.carry_out)
            runner.apply(Left("r0"))
            assert handles[0].kinds == [Dispatch, Cancel, Finish]
            assert handles[1].kinds == [Dispatch]
            runner.apply(Ended("r1", 1, EndedHow.OK, 5))
            assert handles[1].kinds == [Dispatch, Finish]
            assert runner.scheduler.live == 0

        run(main, real(1))


def test_a_request_that_is_forgotten_frees_its_slot() -> None:
    async def main(runner: Runner) -> None:
        first, second = Handle(runner), Handle(runner)
        runner.submit(request("r1"), None, first.carry_out)
        runner.submit(request("r2"), None, second.carry_out)
        runner.forget("r1")
        assert (first.kinds, second.kinds) == ([Dispatch], [Dispatch])
        assert runner.scheduler.live == 1

    run(main, real(1))


def test_each_event_is_shown_with_its_instructions_before_they_are_carried_out() -> None:
    async def main(runner: Runner) -> None:
        seen: list[tuple[type, list[type]]] = []
        runner.on_event = lambda event, _, instructions: seen.append(
            (type(event), [type(each) for each in instructions])
        )
        runner.submit(request("r1"), None, Handle(runner).carry_out)
        runner.apply(GivenUp("r1", "shutdown"))
        assert seen == [(Arrived, [Dispatch]), (GivenUp, [Cancel]), (Ended, [Finish])]

    run(main, real(1))


# --- the timer ----------------------------------------------------------------------------------------
class Late(Hopeful):
    """Expects every first token half a second from now."""

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        return replace(super().predict(request, candidate, instance, now), ttft_s_p95=now + 0.5)


def test_a_dispatch_may_bring_an_earlier_wake_up() -> None:
    """A slot frees, and the queue's last request is dispatched. It may be hedged soon."""

    async def main(runner: Runner) -> list[float]:
        ticks: list[float] = []
        runner.on_event = lambda event, at, _: ticks.append(at) if isinstance(event, Tick) else None
        runner.submit(request("r1"), None, Handle(runner).carry_out)
        runner.submit(request("r2", slo=Slo(ttft_s=60.0)), None, Handle(runner).carry_out)
        await asyncio.sleep(2.0)
        assert ticks == []
        runner.apply(Ended("r1", 1, EndedHow.OK, 1))
        await asyncio.sleep(1.0)
        return ticks

    s = scheduler(instance("a", slots=1), predictor=Late(), hedge_share=1.0)
    assert run(main, s)[0] == 2.5


def test_a_tick_that_fails_is_tried_again() -> None:
    def answer(event: Event) -> list[Instruction]:
        if isinstance(event, Tick):
            ticks.append(asyncio.get_running_loop().time())
            s.wake_at = None
            if len(ticks) == 1:
                raise RuntimeError("broken")
        return []

    async def main(runner: Runner) -> None:
        runner.submit(request("r1"), None, Handle(runner).carry_out)
        await asyncio.sleep(60.0)

    ticks: list[float] = []
    s = Scripted(answer)
    s.queue_depth, s.wake_at = 1, 3.0
    run(main, s)
    assert ticks == [3.0, 3.5]
