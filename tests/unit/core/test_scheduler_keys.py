"""Keys that send much beside keys that send little: whoever sends little waits for a bounded number of slots."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from router.core.events import Arrived, Dispatch, Ended, FirstToken
from router.core.scheduler import Scheduler
from router.core.types import EndedHow
from tests.unit.core.worlds import instance, request, scheduler


def serve_one(s: Scheduler, running: list[Dispatch], now: float) -> None:
    """The oldest answer ends; who is sent for that joins the others."""
    sent = running.pop(0)
    s.handle(FirstToken(sent.request_id, sent.attempt), now)
    tokens = sent.bound.max_tokens or 10
    out = s.handle(Ended(sent.request_id, sent.attempt, EndedHow.OK, tokens, 100), now)
    running += [each for each in out if isinstance(each, Dispatch)]


@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 3),
    heavy=st.integers(1, 4),
    longest=st.sampled_from([100, 4000]),
)
def test_a_light_key_waits_for_a_turn_of_each_heavy_one(
    seed: int, slots: int, heavy: int, longest: int
) -> None:
    """Start-time fair queueing: a request of a key that was idle goes after at most one of each other key, and one more
    while work is settled that was counted for too little, whatever these have waiting and however large that is."""
    rng = Random(seed)
    s = scheduler(instance("a", slots=slots), max_queue=1000)
    running: list[Dispatch] = []
    sent = 0
    now = 0.0

    def arrive(key: str, tokens: int) -> str:
        nonlocal sent
        sent += 1
        name = f"{key}-{sent}"
        told = s.handle(Arrived(request(name, at=now, key=key, max_tokens=tokens)), now)
        running.extend(each for each in told if isinstance(each, Dispatch))
        return name

    for _ in range(30 * heavy):
        arrive(f"heavy{rng.randrange(heavy)}", rng.randint(1, longest))
    for _ in range(8):
        for _ in range(rng.randrange(6)):
            now += 0.01
            serve_one(s, running, now)
            arrive(f"heavy{rng.randrange(heavy)}", rng.randint(1, longest))
        name = arrive("light", rng.randint(1, 100))
        turns = 0
        while all(each.request_id != name for each in running):
            now += 0.01
            turns += 1
            assert turns <= 2 * heavy + 2, f"{name} waits for {turns} slots"
            serve_one(s, running, now)
            arrive(f"heavy{rng.randrange(heavy)}", rng.randint(1, longest))
        # Its answer ends before the next one is asked for.
        while any(each.request_id == name for each in running):
            now += 0.01
            serve_one(s, running, now)


def test_equal_keys_get_equal_work() -> None:
    """One sends short requests, one long ones: the work that both were given stays close."""
    s = scheduler(instance("a", slots=1), max_queue=1000)
    running: list[Dispatch] = []
    tokens = {"short": 100, "long": 900}
    for number in range(200):
        for key, most in tokens.items():
            told = s.handle(Arrived(request(f"{key}-{number}", key=key, max_tokens=most)), 0.0)
            running += [each for each in told if isinstance(each, Dispatch)]
    work = {"short": 0, "long": 0}
    for _ in range(120):
        key = running[0].request_id.partition("-")[0]
        work[key] += 100 + tokens[key]
        serve_one(s, running, 1.0)
    assert abs(work["short"] - work["long"]) <= 3 * 1000
