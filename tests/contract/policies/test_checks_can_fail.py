"""Each way to break the contract is found by its check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from router.core.interfaces import Choice, Option, Policy
from router.core.state import Instance
from router.core.types import Candidate, Prediction, Request
from tests.contract.policies.checks import (
    Case,
    check_choices,
    check_dry_runs,
    check_one_option,
    check_placed,
    check_propensities,
    check_seed,
)

Check = Callable[..., None]


class Sound(Policy):
    """Takes options in turn, as few lines as possible."""

    name = "sound"
    predicts = False

    def __init__(self) -> None:
        self.turn = 0

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        return taking(self.turn % len(options), options)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        self.turn += 1


def taking(index: int, options: Sequence[Option]) -> Choice:
    """A sound choice of this option, the others as good."""
    others = [at for at in range(len(options)) if at != index]
    reasons = [None if at == index else "not taken" for at in range(len(options))]
    return Choice(index, [0.0] * len(options), reasons, alternatives=others)


def option(name: str) -> Option:
    candidate = Candidate(name, "m", "m")
    return Option(candidate, Instance(name, "vllm", {"m": candidate}), Prediction(e2e_s_mean=1.0))


def cases(seed: int | None = None) -> list[Case]:
    requests = [
        Request(f"r{number}", 0.0, "sound", ("m",), prompt_tokens=10, seed=seed) for number in range(6)
    ]
    return [Case(each, [option("a"), option("b"), option("c")], at) for at, each in enumerate(requests)]


def test_a_sound_policy_passes_every_check() -> None:
    for check in (check_choices, check_dry_runs, check_placed):
        check(Sound, cases())
    check_one_option(Sound, cases()[0])
    check_propensities(Sound, cases()[0])


# --- choices that are not well formed --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda choice: replace(choice, index=3), "out of range"),
        (lambda choice: replace(choice, index=-1), "out of range"),
        (lambda choice: replace(choice, scores=[0.0]), "one score for each"),
        (lambda choice: replace(choice, scores=[float("inf")] * 3), "not finite"),
        (lambda choice: replace(choice, reasons=["x"] * 2), "one reason for each"),
        (lambda choice: replace(choice, reasons=[None] * 3), "a reason for the option"),
        (lambda choice: replace(choice, reasons=["x"] * 3), "a reason for the option"),
        (lambda choice: replace(choice, propensity=0.0), "no probability"),
        (lambda choice: replace(choice, alternatives=[choice.index]), "no other option"),
        (lambda choice: replace(choice, alternatives=[7]), "no other option"),
        (lambda choice: replace(choice, alternatives=[*choice.alternatives] * 2), "comes twice"),
    ],
)
def test_a_choice_that_is_not_well_formed(broken: Callable[[Choice], Choice], message: str) -> None:
    class Malformed(Sound):
        def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
            return broken(super().choose(request, options, rng))

    with pytest.raises(AssertionError, match=message):
        check_choices(Malformed, cases())


# --- state where none may be -----------------------------------------------------------------------------
class CountsChoices(Sound):
    """The turn passes on with each choice."""

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        self.turn += 1
        return super().choose(request, options, rng)


class _AnyTwoAreEqual:
    """What `choose` leaves for `placed`, hidden from comparisons."""

    index = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AnyTwoAreEqual)

    __hash__ = None  # type: ignore[assignment]


class HidesBehindEquality(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.last = _AnyTwoAreEqual()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        choice = super().choose(request, options, rng)
        self.last.index = choice.index + 1
        return choice


@dataclass(slots=True)
class _NotCompared:
    request_id: str = field(default="", compare=False)


class HidesInAFieldThatIsNotCompared(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.memo = _NotCompared()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        self.memo.request_id = request.id
        return super().choose(request, options, rng)


class CountsForItsClass(Sound):
    choices = 0

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        type(self).choices += 1
        return super().choose(request, options, rng)


class CountsInAClosure(Sound):
    def __init__(self) -> None:
        super().__init__()
        seen: list[str] = []
        self.note = lambda request: seen.append(request.id)

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        self.note(request)
        return super().choose(request, options, rng)


class ChangesItsOptions(Sound):
    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        options[0].instance.in_flight += 1
        return super().choose(request, options, rng)


class ChangesTheRequest(Sound):
    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        request.prompt_tokens += 1
        return super().choose(request, options, rng)


class DrawsByItself(Sound):
    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        return taking(Random().randrange(2**40) % len(options), options)


_SEEN: list[str] = []


class CountsInItsModule(Sound):
    """Visible in no attribute of the policy: only in later choices."""

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        _SEEN.append(request.id)
        return taking(len(_SEEN) // 2 % len(options), options)


class LooksAtPredictions(Sound):
    """Those that only a dry run brings to a policy that does not want them."""

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        return taking(int(options[0].prediction is None), options)


class PlacesItsLastChoice(Sound):
    """`placed` trusts what an earlier `choose` of the same module left, not its arguments."""

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        choice = super().choose(request, options, rng)
        _LAST[id(self)] = choice.index
        return choice

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        self.turn += _LAST.get(id(self), 0) + 1


_LAST: dict[int, int] = {}


class PlacesAtRandom(Sound):
    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        self.turn = Random().randrange(2**40)


class PlacedChangesAnInstance(Sound):
    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        options[choice.index].instance.in_flight += 1


class PlacedChangesTheChoice(Sound):
    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        choice.propensity = 1.0


@pytest.mark.parametrize(
    ("policy", "check", "message"),
    [
        (CountsChoices, check_choices, "choose changes the policy"),
        (HidesBehindEquality, check_choices, "choose changes the policy"),
        (HidesInAFieldThatIsNotCompared, check_choices, "choose changes the policy"),
        (CountsForItsClass, check_choices, "choose changes the policy"),
        (CountsInAClosure, check_choices, "choose changes the policy"),
        (ChangesItsOptions, check_choices, "changes what it was given"),
        (ChangesTheRequest, check_choices, "changes what it was given"),
        (DrawsByItself, check_choices, "not repeatable"),
        (CountsChoices, check_dry_runs, "dry run"),
        (CountsInItsModule, check_dry_runs, "dry run"),
        (LooksAtPredictions, check_dry_runs, "a dry run chooses differently"),
        (PlacesItsLastChoice, check_placed, "depends on an earlier choose"),
        (PlacesAtRandom, check_placed, "depends on an earlier choose"),
        (PlacedChangesAnInstance, check_placed, "placed changes what it was given"),
        (PlacedChangesTheChoice, check_placed, "placed changes what it was given"),
    ],
)
def test_state_where_none_may_be(policy: type[Sound], check: Check, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(policy, cases())


# --- draws -----------------------------------------------------------------------------------------------
class DrawsEvenly(Sound):
    """By its generator, not by the seed of the request, and as if it were certain."""

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        return taking(int(rng.random() * len(options)), options)


class LeansToTheFirst(Sound):
    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        index = int(rng.random() ** 2 * len(options))
        return replace(taking(index, options), propensity=1.0 / len(options))


class AddsUpToMore(Sound):
    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        index = int(rng.random() * len(options))
        return replace(taking(index, options), propensity=1.0 / len(options) + 0.01)


class DoubtsALoneOption(Sound):
    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        return replace(taking(0, options), propensity=0.5)


def test_a_draw_that_a_seed_does_not_decide() -> None:
    with pytest.raises(AssertionError, match="the seed does not decide"):
        check_seed(DrawsEvenly, cases(seed=7))


@pytest.mark.parametrize(
    ("policy", "message"),
    [(DrawsEvenly, "no frequency"), (LeansToTheFirst, "no frequency"), (AddsUpToMore, "do not add up")],
)
def test_a_propensity_that_is_none(policy: type[Sound], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_propensities(policy, cases()[0])


def test_a_lone_option_that_is_not_certain() -> None:
    with pytest.raises(AssertionError):
        check_one_option(DoubtsALoneOption, cases()[0])
