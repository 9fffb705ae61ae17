"""The queue is not walked where no instance can have a free slot: nothing else comes of any event."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from router.core.eligibility import free_slots
from router.core.events import (
    Arrived,
    Dispatch,
    DrainChanged,
    Ended,
    Event,
    FirstToken,
    LoadReported,
    Probed,
    Tick,
)
from router.core.types import EndedHow, LoadReport, Slo
from router.decision_log import compared
from tests.unit.core.worlds import DrivenScheduler, failed, instance, request, scheduler

WAYS = (
    "arrive",
    "arrive",
    "arrive",
    "report",
    "report",
    "report",
    "report",
    "probe",
    "probe",
    "first",
    "end",
    "fail",
    "drain",
    "wait",
)


def a_scheduler() -> DrivenScheduler:
    return scheduler(
        instance("a", "m", slots=1),
        instance("b", "m", "n", slots=2),
        instance("c", "n"),
        instance("d", "m", "n"),
        eject_after=2,
        return_after=1,
    )


def drawn(rng: Random, s: DrivenScheduler, running: dict[tuple[str, int], bool], count: int) -> Event:
    way, name = rng.choice(WAYS), rng.choice("abcd")
    waiting = [each for each, decoding in running.items() if not decoding]
    if way == "arrive":
        models = rng.choice([("m",), ("n",), ("m", "n")])
        slo = rng.choice([None, Slo(ttft_s=3.0)])
        return Arrived(
            request(
                f"r{count}", at=s._now, models=models, slo=slo, hard=slo is not None and rng.random() < 0.5
            )
        )
    if way == "probe":
        return Probed(name, rng.random() < 0.7)
    if way == "drain":
        return DrainChanged(name, rng.random() < 0.3)
    if way == "first" and waiting:
        return FirstToken(*rng.choice(waiting))
    if way == "end" and running:
        return Ended(*rng.choice(list(running)), EndedHow.OK, output_tokens=1)
    if way == "fail" and waiting:
        return failed(*rng.choice(waiting))
    if way == "wait":
        return Tick()
    return LoadReported(
        name,
        LoadReport(running=rng.randrange(4), waiting=rng.choice([0, 4, 6]), kv_usage=rng.choice([0.1, 0.9])),
    )


@pytest.mark.parametrize("seed", range(8))
def test_every_event_has_the_effect_that_a_walk_of_the_queue_would_have(seed: int) -> None:
    rng, now = Random(seed), 0.0
    quick, thorough = a_scheduler(), a_scheduler()
    running: dict[tuple[str, int], bool] = {}
    spared = 0
    for count in range(600):
        now += rng.choice([0.0, 0.001, 0.1, 0.1, 0.1, 0.1, 4.0])
        event = drawn(rng, quick, running, count)
        thorough._full_until = -inf
        spared += isinstance(event, LoadReported) and now < quick._full_until
        out = quick.handle(event, now)
        assert compared(thorough.handle(event, now)) == compared(out)
        assert thorough.wake_at == quick.wake_at
        if isinstance(event, FirstToken):
            running[event.request_id, event.attempt] = True
        for each in out:
            if isinstance(each, Dispatch):
                running[each.request_id, each.attempt] = False
        running = {
            (name, number): decoding
            for (name, number), decoding in running.items()
            if quick._open.find(name, number)[1] is not None
        }
    assert spared > 5


REPORTED = {"reported_at": 9.0, "report": LoadReport(waiting=2)}


@pytest.mark.parametrize(
    ("slots", "fields", "free"),
    [
        (None, {"in_flight": 99}, inf),
        (5, {"in_flight": 2}, 3),
        (5, {"in_flight": 7}, -2),
        # It returned after an ejection: of its load it takes a share that grows for ten seconds.
        (50, {"in_flight": 1, "returned_at": 8.0}, 9),
        (50, {"in_flight": 1, "returned_at": 0.0}, 49),
        (50, {"returned_at": 10.0}, 1),
        (None, {"in_flight": 1, "returned_at": 5.0}, 31),
        # Four requests may wait inside an engine that has a queue, or whose memory is filling.
        (None, {"awaiting_first_token": 3, **REPORTED}, inf),
        (None, {"awaiting_first_token": 4, **REPORTED}, 2),
        (None, {"awaiting_first_token": 9, "dispatched_since_report": 5, **REPORTED}, -3),
        (
            None,
            {"awaiting_first_token": 9, "dispatched_since_report": 5, "ended_since_report": 4, **REPORTED},
            1,
        ),
        (None, {"awaiting_first_token": 4, "dispatched_since_report": 9, **REPORTED}, 0),
        (5, {"in_flight": 4, "awaiting_first_token": 4, **REPORTED}, 1),
        (None, {"awaiting_first_token": 4, **REPORTED, "reported_at": 0.0}, inf),  # too old
        (None, {"awaiting_first_token": 4, **REPORTED, "report": LoadReport(kv_usage=0.4)}, inf),
        (None, {"awaiting_first_token": 4, **REPORTED, "report": LoadReport(kv_usage=0.6)}, 4),
        (None, {"awaiting_first_token": 4}, inf),
    ],
)
def test_how_many_more_an_instance_takes(slots: int | None, fields: dict[str, object], free: float) -> None:
    one = instance("a", slots=slots)
    for name, value in fields.items():
        setattr(one, name, value)
    assert free_slots(one, 10.0) == free
