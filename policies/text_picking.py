"""What the text-only policies share: each model's expected quality and cost, and the choice of an instance.

These policies read the prompt and the tariff and never look at an instance. Published routers of models work the same
way. Round robin over the model's instances follows. If an estimator does not know a model (or there is none), the
model's quality is the fleet file's prior, or 0.5 without one, and its answers are as long as those expected of the other
models.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from random import Random
from statistics import fmean, median
from typing import NamedTuple

from policies.picking import format_usd
from policies.quality_window import Row
from policies.round_robin_cursor import RoundRobinCursor
from policies.settings import PolicySettings
from router.core.interfaces import Choice, Option, Policy, TextEstimates, TextEstimator
from router.core.types import Request

#: The length of an answer if no model's is known: then the tariffs alone decide.
_OUTPUT_TOKENS = 300.0
_QUALITY = 0.5


class Offer(NamedTuple):
    """One model: the indices of its options, its expected quality in [0, 1] (the median of its options' priors if the
    estimator does not know the model) and the mean cost of an answer over its options in USD."""

    model: str
    at: tuple[int, ...]
    quality: float
    cost_usd: float


def offers(request: Request, options: Sequence[Option], estimator: TextEstimator | None) -> list[Offer]:
    """The models of the options, ordered by name."""
    places: dict[str, list[int]] = {}
    for index, option in enumerate(options):
        places.setdefault(option.candidate.model, []).append(index)
    models = sorted(places)
    estimates = TextEstimates([None] * len(models), [None] * len(models))
    if estimator is not None and request.features is not None:
        estimates = estimator(request.features, models)
    known = [tokens for tokens in estimates.output_tokens if tokens is not None]
    typical = fmean(known) if known else _OUTPUT_TOKENS
    found = []
    for model, quality, tokens in zip(models, estimates.quality, estimates.output_tokens, strict=True):
        at = tuple(places[model])
        expected = median(_prior(options[index]) for index in at) if quality is None else quality
        length = typical if tokens is None else tokens
        cost_usd = fmean(_cost_usd(request, options[index], length) for index in at)
        found.append(Offer(model, at, expected, cost_usd))
    return found


def _prior(option: Option) -> float:
    quality = option.candidate.quality
    return _QUALITY if quality is None else quality


def _cost_usd(request: Request, option: Option, tokens: float) -> float:
    if request.max_tokens is not None:
        tokens = min(tokens, request.max_tokens)
    if not request.decodes:
        tokens = 0.0
    return option.candidate.price.cost_usd(request.prompt_tokens, tokens * request.choices)


def least(found: Sequence[Offer], scores: Sequence[float]) -> Offer:
    """The offer of the least score. Ties: the cheaper one, then the model's name."""
    order = range(len(found))
    return found[min(order, key=lambda at: (scores[at], found[at].cost_usd, found[at].model))]


def in_turn(
    options: Sequence[Option],
    found: Sequence[Offer],
    scores: Sequence[float] | None,
    picked: Offer,
    cursor: RoundRobinCursor,
    propensity: float = 1.0,
) -> Choice:
    """The next instance of the picked model. `scores` are those of the offers, if they have any. The choice's memo is
    `found`."""
    own = [options[index] for index in picked.at]
    index = picked.at[cursor.next_index(picked.model, own)]
    option_scores: list[float | None] = [None] * len(options)
    reasons: list[str | None] = [None] * len(options)
    for at, offer in enumerate(found):
        reason = (
            "not its turn"
            if offer.model == picked.model
            else f"quality {offer.quality:.2f} for {format_usd(offer.cost_usd)}, "
            f"picked {picked.quality:.2f} for {format_usd(picked.cost_usd)}"
        )
        for each in offer.at:
            option_scores[each] = None if scores is None else scores[at]
            reasons[each] = reason
    reasons[index] = None
    alternatives = [each for each in picked.at if each != index]
    return Choice(index, option_scores, reasons, propensity, alternatives, memo=found)


def row_of(found: Sequence[Offer]) -> Row:
    """The estimates that a window keeps of a request."""
    return Row(
        tuple(offer.model for offer in found),
        tuple(offer.quality for offer in found),
        tuple(offer.cost_usd for offer in found),
    )


class ModelPicker(Policy):
    """A text-only policy: the model of the least score, and its instances in turn. Ties: the cheaper model, then its
    name."""

    predicts = False

    def __init__(self, name: str, estimator: str, settings: PolicySettings) -> None:
        self.name = name
        self._estimator = settings.text.get(estimator)
        self._targets = settings.targets
        self.cursor = RoundRobinCursor()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        found = offers(request, options, self._estimator)
        scores = self._scores(request, found)
        return in_turn(options, found, scores, least(found, scores), self.cursor)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Advance the model's cursor, and learn from the request."""
        option = options[choice.index]
        self.cursor.advance(option.candidate.model, option)
        self._learn(request, choice.memo, option.candidate.model, options)

    @abstractmethod
    def _scores(self, request: Request, found: Sequence[Offer]) -> list[float]:
        """The score of each offer."""

    @abstractmethod
    def _learn(self, request: Request, found: Sequence[Offer], model: str, options: Sequence[Option]) -> None:
        """The request was offered these, and got `model`."""
