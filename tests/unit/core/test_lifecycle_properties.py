"""Every registered policy in one scheduler, whatever happens in whatever order: `ledger` says what must hold."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.events import Allow, Cancel, Check, Checked, Dispatch, Event, Granted, Instruction, Reserve
from router.core.types import EndedHow, Outcome
from router.decision_log import compared
from tests.unit.core.script import Script

UNPAID = "the key's budgets cannot pay for it"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 150))
def test_whatever_happens_in_whatever_order(seed: int, steps: int) -> None:
    Script(Random(seed)).run(steps)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_postponed_changes_no_instruction_and_nothing_that_is_learned(seed: int) -> None:
    script = Script(Random(seed))
    script.run(80)
    again, told = script.again()
    out: list[Instruction] | None = None
    before = ""
    for event, now, text in told:
        following = again.respond(event, now)  # catches up with the event before
        assert out is None or compared(out) == before
        out, before = following, text
    again.catch_up()
    assert out is None or compared(out) == before
    assert again.predictor.observed == script.s.predictor.observed
    assert {name: each.work for name, each in again.instances.items()} == {
        name: each.work for name, each in script.s.instances.items()
    }


def test_all_that_may_happen_is_among_it() -> None:
    """The properties above hold of something: each event, instruction and way to end comes up."""
    found: Counter[str] = Counter()
    expected = {each.__name__ for each in (*get_args(Event), Dispatch, Cancel, Check, Reserve, Allow)}
    expected |= {"a second look", "a replaced answer"}
    expected |= set(Outcome) - {Outcome.REJECTED_AUTH, Outcome.REJECTED_RATE} | set(EndedHow)
    expected |= {"a hedge", "a start with money that came later", "a last allowance", "an unpaid attempt"}
    for seed in range(200):
        if expected <= {name for name, count in found.items() if count}:
            return
        script = Script(Random(seed))
        script.run(150)
        for event, _, instructions, _ in script.log:
            found.update(type(each).__name__ for each in (event, *instructions))
            sent = [each for each in instructions if isinstance(each, Dispatch)]
            found["a hedge"] += sum(each.hedge for each in sent)
            found["a start with money that came later"] += isinstance(event, Granted) and len(sent) > 0
            found["a last allowance"] += any(
                isinstance(each, Allow) and each.allowance.final for each in instructions
            )
            found["a second look"] += isinstance(event, Checked) and len(sent) > 0
        for settlement in script.ledger.finished.values():
            answered = [each for each in settlement.attempts if each.ended_how is EndedHow.OK]
            found["a replaced answer"] += len(answered) == 2 and settlement.answer is answered[1]
            found[settlement.outcome] += 1
            found.update(str(each.ended_how) for each in settlement.attempts)
            found["an unpaid attempt"] += any(each.error == UNPAID for each in settlement.attempts)
    pytest.fail(f"never: {expected - found.keys()}")
