"""The order of those who wait."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from router.core.money.account import RequestMoney
from router.core.queue import DEFER_S, Queue, Waiting
from router.core.request_state import RequestState
from router.core.types import Request

M = ("m",)


def waiting(id: str, *, key: str | None = None, due: float = 10.0, seq: int = 0, **fields: object) -> Waiting:
    request = Request(id, 0.0, "p", M)
    state = RequestState(request, seq, RequestMoney(request))
    values: dict[str, object] = {"priority": 0, "doomed_at": due - 1.0, "work_tokens": 100.0, "models": M}
    return Waiting(state, id, key, due_at=due, seq=seq, **(values | fields))  # type: ignore[arg-type]


def of(*each: Waiting) -> Queue:
    queue = Queue()
    for one in each:
        queue.add(one)
    return queue


def order(queue: Queue) -> list[str]:
    return [each.id for each in queue.in_order()]


def served(queue: Queue) -> list[str]:
    """Serve one at a time, as the scheduler does."""
    told = []
    while queue.waiting:
        first = next(queue.in_order()).id
        queue.remove(first, served=True)
        told.append(first)
    return told


def test_who_cannot_be_in_time_any_more_goes_behind_those_who_can():
    queue = of(
        waiting("lost", due=3.0, seq=1), waiting("late too", due=4.0, seq=2), waiting("fine", due=9.0, seq=3)
    )
    assert queue.shed(1.9) == []
    assert [each.id for each in queue.shed(3.5)] == ["lost", "late too"]
    assert order(queue) == ["fine", "lost", "late too"]
    assert queue.shed(3.5) == []  # once


def test_keys_take_turns_by_the_work_that_they_were_given():
    queue = of(*(waiting(f"heavy{n}", key="heavy", seq=n) for n in range(6)))
    queue.add(waiting("light0", key="light", seq=6, due=99.0))
    queue.add(waiting("light1", key="light", seq=7, due=99.0))
    told = served(queue)
    assert told.index("light0") <= 1
    assert told.index("light1") <= 3


def test_a_key_with_long_answers_gets_fewer_turns():
    queue = of(
        *(waiting(f"long{n}", key="long", seq=n, work_tokens=400.0) for n in range(4)),
        *(waiting(f"short{n}", key="short", seq=10 + n, work_tokens=100.0) for n in range(8)),
    )
    assert sum(id.startswith("long") for id in served(queue)[:5]) == 1


def test_a_quiet_key_saves_up_no_credit():
    queue = of(*(waiting(f"a{n}", key="a", seq=n) for n in range(20)))
    for n in range(10):
        queue.remove(f"a{n}", served=True)
    for n in range(10):
        queue.add(waiting(f"b{n}", key="b", seq=100 + n))
    firsts = served(queue)[:6]
    assert sum(id.startswith("b") for id in firsts) <= 4


def test_before_counts_those_in_time_with_an_earlier_deadline_or_a_higher_priority():
    queue = of(
        waiting("early", due=1.0, seq=1),
        waiting("same", due=5.0, seq=2),
        waiting("vip", due=99.0, seq=3, priority=1),
        waiting("late", due=0.5, seq=4, late=True),
    )
    assert queue.before(0, 5.0, None, M) == 2
    assert queue.before(1, 5.0, None, M) == 0
    assert queue.before(-1, 0.0, None, M) == 4


def test_a_key_that_is_late_has_its_turn_beside_one_that_is_not():
    queue = of(*(waiting(f"h{n}", key="heavy", seq=n) for n in range(10)))
    queue.add(waiting("late", key="light", late=True, seq=99))
    assert served(queue).index("late") <= 1


def test_one_slot_in_eight_is_for_those_who_are_late():
    queue = of(*(waiting(f"r{n}", seq=n) for n in range(30)), waiting("late", late=True, seq=99))
    assert served(queue).index("late") == 7


def test_what_an_answer_took_settles_what_was_counted_for_it():
    queue = of(*(waiting(f"{key}{n}", key=key, seq=n) for key in "ab" for n in range(8)))
    told = []
    for _ in range(8):
        first = next(queue.in_order())
        queue.remove(first.id, served=True)
        told.append(first.key)
        if first.key == "a":
            queue.used("a", 300.0)  # counted for 100 tokens, took 400
    assert told.count("a") == 2
    queue.used("nobody", 5.0)


def test_of_other_keys_as_many_come_before_as_of_the_own_one_and_one():
    queue = of(*(waiting(f"h{n}", key="heavy", due=1.0, seq=n) for n in range(50)))
    assert queue.before(0, 5.0, "light", M) == 1
    assert queue.before(0, 5.0, "light", ("another",)) == 0
    queue.add(waiting("l0", key="light", due=2.0, seq=60))
    assert queue.before(0, 5.0, "light", M) == 3
    assert queue.before(0, 5.0, "heavy", M) == 51


def test_in_a_full_queue_the_late_and_the_low_give_way():
    queue = of(waiting("late", late=True), waiting("fine"))
    assert queue.gives_way(waiting("new", seq=9)).id == "late"
    assert queue.gives_way(waiting("new", seq=9, late=True)) is None
    queue = of(waiting("fine"))
    assert queue.gives_way(waiting("vip", priority=1, seq=9)) is not None
    assert queue.gives_way(waiting("low", priority=-1, seq=9)) is None
    assert Queue().gives_way(waiting("new")) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, "a", "b"]),
            st.integers(-1, 1),
            st.floats(0.0, 20.0),
            st.floats(1.0, 1000.0),
            st.booleans(),
        ),
        max_size=30,
    ),
    st.floats(0.0, 25.0),
)
def test_everyone_is_served_once_and_no_lower_priority_before_a_higher_one(entries, now):
    queue = Queue()
    for seq, (key, priority, due, work, late) in enumerate(entries):
        fields = {"priority": priority, "doomed_at": due - 0.5, "work_tokens": work, "late": late}
        queue.add(waiting(f"r{seq}", key=key, due=due, seq=seq, **fields))
    queue.shed(now)
    assert sorted(order(queue)) == sorted(f"r{seq}" for seq in range(len(entries)))
    priorities = []
    by_key: dict[tuple[int, str | None], list[tuple[bool, float]]] = {}
    while queue.waiting:
        first = next(queue.in_order())
        priorities.append(-first.priority)
        by_key.setdefault((first.priority, first.key), []).append((first.late, first.due_at))
        assert first.late or first.doomed_at > now
        queue.remove(first.id, served=True)
    assert priorities == sorted(priorities)
    # Inside a key each kind by slack, and those in time first but for one in eight.
    for told in by_key.values():
        for late in (False, True):
            due = [at for is_late, at in told if is_late is late]
            assert due == sorted(due)
        first_late = next((at for at, (late, _) in enumerate(told) if late), len(told))
        assert first_late >= min(sum(not late for late, _ in told), 7) or len(by_key) > 1
    assert not queue.waiting
    assert order(queue) == []


# --- what is left of those who have gone ------------------------------------------------------------------
def test_deferred_requests_are_decided_again_at_their_time_while_they_wait():
    first, second = waiting("first"), waiting("second")
    queue = Queue()
    queue.add(first, 5.0)
    queue.add(second, 7.0)  # it is decided with the other one
    assert queue.next_decision_at(0.0) == 5.0
    assert queue.next_decision_at(5.0) == 5.0 + DEFER_S
    assert [queue.due(M, now) for now in (4.9, 5.0)] == [False, True]
    assert [queue.may_place(second, now) for now in (4.9, 5.0)] == [False, True]
    queue.defer_again(M, 6.0)
    assert queue.next_decision_at(0.0) == 6.0
    queue.remove("first")
    assert (first.state.deferred, queue.models) == (False, {M: 1})
    assert queue.next_decision_at(0.0) == 6.0
    queue.remove("second")
    assert (queue.models, queue.due(M, 9.0), queue.next_decision_at(0.0)) == ({}, False, inf)


def test_a_priority_that_nobody_has_any_more_gives_nothing_way():
    queue = of(waiting("low"), waiting("high", priority=1))
    queue.remove("low")
    assert queue.gives_way(waiting("higher", priority=2)).id == "high"
    assert queue.gives_way(waiting("lower")) is None
    queue.add(waiting("middle", priority=0))
    assert queue.gives_way(waiting("new", priority=1)).id == "middle"


def test_keys_without_requests_are_forgotten():
    queue = of(waiting("here", key="here"))
    for number in range(5000):
        queue.add(waiting(str(number), key=str(number)))
        queue.remove(str(number), served=True)
    assert len(queue._given) <= 4097
    assert queue.remove("here", served=True).key == "here"
