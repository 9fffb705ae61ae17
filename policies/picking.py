"""Steps that several policies share: tie order, seeded draws, numbers in reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, isfinite
from random import Random
from typing import overload

from router.core.interfaces import Choice, Option
from router.core.types import Request


class Reasons(Sequence[str | None]):
    """The reasons of a choice, each made when it is read: most are never read. `why` gives the reason for each of `size`
    options except `taken`. What it reads must not change any more."""

    __slots__ = ("_size", "_taken", "_why")

    def __init__(self, size: int, taken: int, why: Callable[[int], str]) -> None:
        self._size = size
        self._taken = taken
        self._why = why

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str | None]:
        taken, why = self._taken, self._why
        return (None if at == taken else why(at) for at in range(self._size))

    @overload
    def __getitem__(self, at: int) -> str | None: ...

    @overload
    def __getitem__(self, at: slice) -> list[str | None]: ...

    def __getitem__(self, at: int | slice) -> str | list[str | None] | None:
        if isinstance(at, slice):
            return list(self)[at]
        index = range(self._size)[at]
        return None if index == self._taken else self._why(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def known(scores: Iterable[float]) -> list[float | None]:
    """Scores for a choice: None for one that is not finite, which is unknown."""
    return [score if isfinite(score) else None for score in scores]


def name_of(option: Option) -> tuple[str, str]:
    """The tie-break key: instance name, then model name."""
    candidate = option.candidate
    return candidate.instance, candidate.model


def least(options: Sequence[Option], among: Sequence[int], scores: Sequence[float]) -> int:
    """The index among these (at least one) with the lowest score; ties by name."""
    lowest = min([scores[index] for index in among])
    tied = [index for index in among if scores[index] == lowest]
    return tied[0] if len(tied) == 1 else min(tied, key=lambda index: name_of(options[index]))


def at_most(scores: Sequence[float], bound: float) -> list[int]:
    """The indices of the scores that are not above the bound."""
    if max(scores) <= bound:
        return list(range(len(scores)))
    return [at for at, score in enumerate(scores) if score <= bound]


def by_name(options: Sequence[Option]) -> list[int]:
    """Indices of the options, ordered by name. The order of `options` does not matter."""
    return sorted(range(len(options)), key=lambda index: name_of(options[index]))


def least_at_random(
    request: Request, options: Sequence[Option], scores: Sequence[float], rng: Random, reason: str
) -> Choice:
    """Take the lowest score and draw evenly among ties, so that an idle fleet does not send everything to its first
    name. Every option passed over gets `reason`. `request.seed`, if set, decides the draw."""
    least = min(scores)
    index = scores.index(least)
    size = len(scores)
    reasons: list[str | None] = [reason] * size
    propensity = 1.0
    tied = scores.count(least)
    if tied > 1:
        propensity = 1.0 / tied
        if request.seed is None:
            for _ in range(int(rng.random() * tied)):
                index = scores.index(least, index + 1)
        else:
            names = [index for index in by_name(options) if scores[index] == least]
            index = names[int(Random(request.seed).random() * tied)]
    reasons[index] = None
    return Choice(index, scores, reasons, propensity)


def format_s(seconds: float | None) -> str:
    """A time, for a reason."""
    return "unknown" if seconds is None or seconds == inf else f"{seconds:.3g} s"


def format_usd(usd: float | None) -> str:
    """An amount of money, for a reason."""
    return "unknown" if usd is None or usd == inf else f"{usd:.3g} USD"


def would_miss(miss: float) -> str:
    """The reason of an option with this P(miss)."""
    return f"would miss its SLO with probability {miss:.2f}"
