"""What every policy promises (`router.core.interfaces.Policy`), as checks that raise AssertionError.

Each takes a factory of the policy and the cases that it decides on, one after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from random import Random

import pytest

from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request
from tests.contract.policies.snapshot import snapshot

Make = Callable[[], Policy]


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """A request, its options with predictions, and the seed of the scheduler's generator."""

    request: Request
    options: list[Option]
    seed: int

    def options_for(self, policy: Policy) -> list[Option]:
        """As the scheduler gives them: with predictions only where the policy wants them."""
        if policy.predicts:
            return self.options
        return [replace(option, prediction=None) for option in self.options]


@lru_cache(maxsize=64)
def _given(case: Case, *, predicts: bool) -> bytes:
    """The request and its options before any policy sees them: equal for all policies."""
    options = case.options if predicts else [replace(option, prediction=None) for option in case.options]
    return snapshot((case.request, options))


def choose(policy: Policy, case: Case) -> Choice:
    """What the policy decides for the case now."""
    return policy.choose(case.request, case.options_for(policy), Random(case.seed))


def place(policy: Policy, case: Case, choice: Choice) -> None:
    """The case is dispatched, and ends well."""
    options = case.options_for(policy)
    policy.placed(case.request, options, choice)
    policy.ended(case.request, options[choice.index].candidate, True, 1.0)


def check_choices(make: Make, cases: Sequence[Case]) -> None:
    """Every choice is well formed, repeatable, and changes nothing."""
    policy = make()
    for case in cases:
        options = case.options_for(policy)
        before, given = snapshot(policy), _given(case, predicts=policy.predicts)
        choice = policy.choose(case.request, options, Random(case.seed))
        assert snapshot(policy) == before, "choose changes the policy"
        assert snapshot((case.request, options)) == given, "choose changes what it was given"
        _is_sound(choice, len(options))
        again = policy.choose(case.request, options, Random(case.seed))
        assert snapshot(again) == snapshot(choice), "choose is not repeatable"
        place(policy, case, choice)


def check_dry_runs(make: Make, cases: Sequence[Case]) -> None:
    """Dry runs choose what a real run would, and change no later choice."""
    plain, interrupted = make(), make()
    for case in cases:
        choice, same = choose(plain, case), choose(interrupted, case)
        assert snapshot(same) == snapshot(choice), "dry runs change a later choice"
        for other in (*cases, case):  # the scheduler predicts for every policy in a dry run
            dry = interrupted.choose(other.request, other.options, Random(other.seed))
        assert snapshot(dry) == snapshot(choice), "a dry run chooses differently"
        place(plain, case, choice)
        place(interrupted, case, same)
        assert snapshot(interrupted) == snapshot(plain), "dry runs change what is learned"


def check_placed(make: Make, cases: Sequence[Case]) -> None:
    """`placed` depends on its arguments and the policy's state alone, and changes the state alone; also when exploration
    took an alternative."""
    chooses, only_placed = make(), make()
    for case in cases:
        choice = _explored(choose(chooses, case))
        options = case.options_for(chooses)
        given, chosen = _given(case, predicts=chooses.predicts), snapshot(choice)
        chooses.placed(case.request, options, choice)
        assert snapshot((case.request, options)) == given, "placed changes what it was given"
        assert snapshot(choice) == chosen, "placed changes what it was given"
        only_placed.placed(case.request, options, choice)
        assert snapshot(only_placed) == snapshot(chooses), "placed depends on an earlier choose"


def check_seed(make: Make, cases: Sequence[Case]) -> None:
    """A seeded request gets the same candidate from any generator and in any order of its options."""
    policy = make()
    for case in cases:
        options = case.options_for(policy)
        found = {
            order[policy.choose(case.request, order, Random(generator)).index].candidate
            for order in (options, options[::-1])
            for generator in (1, 2)
        }
        assert len(found) == 1, "the seed does not decide"


def check_one_option(make: Make, case: Case) -> None:
    """A single option is taken for certain."""
    policy = make()
    choice = policy.choose(case.request, case.options_for(policy)[:1], Random(case.seed))
    assert (choice.index, choice.propensity, list(choice.reasons)) == (0, 1.0, [None])


def check_propensities(make: Make, case: Case) -> None:
    """The propensity of a choice is the frequency of its draw."""
    policy, rng, draws = make(), Random(case.seed), 4000
    options = case.options_for(policy)
    propensities: dict[int, float] = {}
    counts = Counter[int]()
    for _ in range(draws):
        choice = policy.choose(case.request, options, rng)
        assert propensities.setdefault(choice.index, choice.propensity) == choice.propensity
        counts[choice.index] += 1
    for index, propensity in propensities.items():
        assert counts[index] / draws == pytest.approx(propensity, abs=0.035), "a propensity is no frequency"
    assert sum(propensities.values()) == pytest.approx(1.0), "propensities do not add up to 1"


def _is_sound(choice: Choice, options: int) -> None:
    assert choice.index in range(options), "index out of range"
    assert len(choice.scores) == options, "not one score for each option"
    assert all(score is None or isfinite(score) for score in choice.scores), "a score is not finite"
    assert len(choice.reasons) == options, "not one reason for each option"
    for at, reason in enumerate(choice.reasons):
        assert (reason is None) == (at == choice.index), "a reason for the option taken, or none for another"
    assert 0.0 < choice.propensity <= 1.0, "a propensity is no probability"
    others = set(range(options)) - {choice.index}
    assert set(choice.alternatives) <= others, "an alternative is no other option"
    assert len(set(choice.alternatives)) == len(choice.alternatives), "an alternative comes twice"


def _explored(choice: Choice) -> Choice:
    """As the scheduler explores: another index, the policy's memo."""
    if not choice.alternatives:
        return choice
    index = choice.alternatives[-1]
    reasons = [None if at == index else "passed over" for at in range(len(choice.reasons))]
    return Choice(index, choice.scores, reasons, 0.1, memo=choice.memo)
