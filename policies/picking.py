"""Small steps that several policies share: the order of ties, seeded draws, words for reasons."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from router.core.interfaces import Choice, Option
from router.core.types import Request


def name_of(option: Option) -> tuple[str, str]:
    """The key on which ties break: instance, then model."""
    candidate = option.candidate
    return candidate.instance, candidate.model


def by_name(options: Sequence[Option]) -> list[int]:
    """Indices of the options in the order of their names, whatever order they came in."""
    return sorted(range(len(options)), key=lambda index: name_of(options[index]))


def least_at_random(
    request: Request, options: Sequence[Option], scores: Sequence[float], rng: Random, reason: str
) -> Choice:
    """The least score; ties are drawn evenly, so that an idle fleet is not herded onto its first name.

    `reason` is given for every option passed over. A request's own seed decides the draw when it has one.
    """
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


def told_s(seconds: float | None) -> str:
    """A time for a reason."""
    return "unknown" if seconds is None else f"{seconds:.3g} s"


def told_usd(usd: float | None) -> str:
    """An amount of money for a reason."""
    return "unknown" if usd is None else f"{usd:.3g} USD"
