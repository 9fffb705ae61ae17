"""What a gateway tells other replicas, and what it makes of what they tell."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from policies.round_robin import RoundRobin
from predictors.online.answer_lengths import AnswerCounted
from predictors.online.observation import Codec
from predictors.online.predictor import OnlinePredictor
from router.core.events import Ended, FirstToken, FleetChanged, LoadReported, PeerLoadReported, Probed
from router.core.scheduler import Scheduler, SchedulerSettings
from router.core.state import Work
from router.core.types import EndedHow, LoadReport
from router.gateway.fleet.peers import PeerLink
from router.gateway.fleet.scaling import scaling
from router.gateway.runner import Runner
from router.scaling.load import Totals
from router.store.memory_state import MemoryState
from router.store.redis_peers import PeerReports, report_text
from router.store.state import Peers, ReplicaReport, StateHealth
from tests.pace import lines
from tests.unit.core.worlds import instance, request
from tests.unit.gateway.test_runner import Handle


class Shared(MemoryState):
    """Calls itself shared, and keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bytes] = []
        self.wakes = 0

    @property
    def health(self) -> StateHealth:
        return StateHealth(shared=True, replicas=2)

    def send_observations(self, message: bytes) -> None:
        self.told.append(message)

    def wake(self) -> None:
        self.wakes += 1


class World:
    """A link over a scheduler with two instances, and the events that reach it."""

    def __init__(self, state: MemoryState) -> None:
        self.predictor = OnlinePredictor()
        instances = [instance("a", slots=2), instance("b", slots=2)]
        self.scheduler = Scheduler(
            instances,
            {"round_robin": RoundRobin()},
            self.predictor,
            SchedulerSettings(eject_after=1, return_after=1),
            Random(0),
        )
        self.runner = Runner(self.scheduler)
        self.link = PeerLink(self.runner, state, self.predictor.sharing)
        self.events: list[Any] = []
        apply = self.runner.apply

        def kept(event: Any, origin: Any = None) -> None:
            self.events.append(event)
            apply(event, origin)

        self.runner.apply = kept  # type: ignore[method-assign]

    def arrive(self, *ids: str) -> None:
        now = self.runner.clock()
        for id_ in ids:
            wanted = request(id_, at=now, policy="round_robin", prompt_tokens=50)
            self.runner.submit(wanted, None, Handle(self.runner).carry_out)


@pytest.fixture
async def state() -> Shared:
    return Shared()


@pytest.fixture
async def world(state: Shared):
    world = World(state)
    await world.link.start()
    yield world
    world.runner.stop()


async def test_what_is_told(world: World, state: Shared) -> None:
    assert world.link.report() == ReplicaReport()
    world.arrive("r1", "r2", "r3", "r4", "r5")
    told = world.link.report()
    assert told.work == {"a": Work(2, 2, 100, 0), "b": Work(2, 2, 100, 0)}
    assert told.queued == {"m": 1}
    assert told.turns == {'round_robin:["m"]': ("b", "m")}
    assert world.link.report().turns == {}  # once
    # Others' work is not told as our own.
    world.link.receive_peers(Peers(2, {"a": Work(5)}))
    assert world.link.report().work["a"] == Work(2, 2, 100, 0)
    world.runner.apply(Probed("b", False))
    assert world.link.report().ejections == {"b": 1}
    world.runner.apply(FirstToken("r1", 1))
    world.runner.apply(Ended("r1", 1, EndedHow.OK, output_tokens=9, prompt_tokens=55))
    world.link.report()
    assert len(state.told) == 1  # all that was learned since, in one


async def test_others_are_told_soon_of_what_changes_work_here(world: World, state: Shared) -> None:
    world.runner.apply(LoadReported("a", LoadReport(running=1)))
    world.runner.apply(Probed("a", True))
    assert state.wakes == 0
    world.arrive("r1")
    assert state.wakes == 1
    world.runner.apply(Ended("r1", 1, EndedHow.OK))
    assert state.wakes == 2


async def test_alone_nothing_is_kept_to_be_told() -> None:
    alone = World(MemoryState())
    await alone.link.start()
    alone.arrive("r1")
    alone.runner.apply(FirstToken("r1", 1))
    alone.runner.apply(Ended("r1", 1, EndedHow.OK, output_tokens=9, prompt_tokens=55))
    assert alone.runner.on_work is None
    assert alone.predictor.sharing.drain_outgoing(0.0, 2) is None
    alone.runner.stop()


async def test_the_scheduler_hears_of_changes_only(world: World) -> None:
    for work in ({}, {"a": Work(1)}, {"a": Work(1)}, {"a": Work(2)}, {}):
        world.link.receive_peers(Peers(2, work))
    world.link.receive_peers(Peers(2, {}, frozenset({"b"})))
    world.link.receive_peers(Peers(2, {}))
    told = [event for event in world.events if isinstance(event, PeerLoadReported)]
    assert [dict(event.work) for event in told] == [{"a": Work(1)}, {"a": Work(2)}, {}, {}]
    assert not world.scheduler.instances["b"].healthy


async def test_an_instance_that_comes_later_has_others_work_too(world: World) -> None:
    world.link.receive_peers(Peers(2, {"c": Work(3)}))
    instances = (*world.scheduler.instances.values(), instance("c"))
    world.runner.apply(FleetChanged(instances, world.scheduler.settings))
    world.link.repeat_load()
    assert world.scheduler.instances["c"].elsewhere.in_flight == 3


async def test_turns_observations_and_documents_go_where_they_belong(world: World) -> None:
    world.link.receive_peers(
        Peers(2, {}, turns={'round_robin:["m"]': ("a", "m"), "gone:x": ("a", "m"), "": ("a", "m")})
    )
    world.arrive("r1")
    assert world.link.report().work == {"b": Work(1, 1, 50, 0)}
    counted = AnswerCounted(("a", "m"), 100, 200, None, None, 1, None)
    world.link.receive_observations([Codec([AnswerCounted]).encode("physical", [counted]), b"nonsense"])
    counts = world.predictor.sharing.counts
    assert (counts.received, counts.ignored) == (1, 1)
    assert world.predictor.stats.lengths.of("m").prompt_ratio > 1.0
    heard: list[Mapping[str, Any]] = []
    world.link.followers["fleet"] = heard.append
    world.link.document_changed("fleet", {"revision": 1})
    world.link.document_changed("another", {"revision": 2})
    assert heard == [{"revision": 1}]


async def test_all_replicas_want_as_many_instances(world: World) -> None:
    world.arrive("r1", "r2", "r3", "r4", "r5")
    other = World(Shared())
    other.link.receive_peers(Peers(2, world.link.report().work, queued=world.link.report().queued))
    (mine,) = scaling(world.scheduler, ["m"], world.link.queued(), {})
    (theirs,) = scaling(other.scheduler, ["m"], other.link.queued(), {})
    assert mine == theirs
    assert (mine.in_flight, mine.queued, mine.desired_replicas) == (4, 1, 4)  # 5 / (0.7 x 2)
    other.runner.stop()


def test_a_report_reaches_other_replicas_unchanged() -> None:
    report = ReplicaReport({"i": Work(1, 2, 3, 4)}, {"i": 1}, {}, {"m": 5}, {"m": Totals(1, 2, 3, 4, 5)})
    reports = PeerReports("own")
    reports.set_live(["a", "b"])
    for run in ("a", "b"):
        reports.report_received(run, report_text(report))
    peers = reports.drain()
    assert peers is not None
    assert (peers.work, peers.queued) == ({"i": Work(2, 4, 6, 8)}, {"m": 10})
    assert peers.counts == {run: {"m": [1, 2, 3, 4, 5]} for run in ("a", "b")}


def test_the_work_of_many_replicas_is_summed_in_little_time() -> None:
    work = {f"i{number}": Work(1, 2, 3, number) for number in range(1000)}
    text, reports = report_text(ReplicaReport(work=work)), PeerReports("own")
    runs = [f"run{number}" for number in range(49)]
    reports.set_live(runs)
    for run in runs:
        reports.report_received(run, text)
    with lines() as counted:
        peers = reports.drain()
    assert counted.run < 3 * len(runs) * len(work)
    assert peers is not None
    assert peers.work["i7"] == Work(49, 98, 147, 343)
