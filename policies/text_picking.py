"""What the text-only policies share: the models on offer with what each should bring and cost, a picker that pays
a price for quality, and turns among the instances of the model picked.

They look at the prompt and the tariff alone, never at an instance: the way that published routers of models work,
each followed by round robin over the model's instances. Where an estimator knows nothing of a model (or there is
none), its quality is the fleet file's prior, 0.5 without one, and its answer as long as those of the other models
are expected to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean
from typing import NamedTuple

from policies.picking import told_usd
from policies.quality_price import QualityPrices, Row
from policies.settings import PolicySettings, TextEstimates, TextEstimator
from policies.turns import Turns
from router.core.interfaces import Choice, Option
from router.core.types import Request

#: Without any knowledge all models' answers are as long, and their tariffs alone decide.
_OUTPUT_TOKENS = 300.0
_QUALITY = 0.5


class Offer(NamedTuple):
    """One model: the indices of its options, expected quality in [0, 1] and price of an answer (the mean over its
    options, which may be priced apart)."""

    model: str
    at: tuple[int, ...]
    quality: float
    cost_usd: float


def offers(request: Request, options: Sequence[Option], estimator: TextEstimator | None) -> list[Offer]:
    """The models on offer, in the order of their names."""
    places: dict[str, list[int]] = {}
    for index, option in enumerate(options):
        places.setdefault(option.candidate.model, []).append(index)
    models = sorted(places)
    told = TextEstimates([None] * len(models), [None] * len(models))
    if estimator is not None and request.features is not None:
        told = estimator(request.features, models)
    known = [tokens for tokens in told.output_tokens if tokens is not None]
    typical = fmean(known) if known else _OUTPUT_TOKENS
    found = []
    for model, quality, tokens in zip(models, told.quality, told.output_tokens, strict=True):
        at = tuple(places[model])
        found.append(
            Offer(
                model,
                at,
                _prior(options[at[0]]) if quality is None else quality,
                fmean(_cost_usd(request, options[index], tokens, typical) for index in at),
            )
        )
    return found


def _prior(option: Option) -> float:
    quality = option.candidate.quality
    return _QUALITY if quality is None else quality


def _cost_usd(request: Request, option: Option, tokens: float | None, typical: float) -> float:
    if tokens is None:
        tokens = typical
    if request.max_tokens is not None:
        tokens = min(tokens, request.max_tokens)
    if not request.decodes:
        tokens = 0.0
    return option.candidate.price.cost_usd(request.prompt_tokens, tokens * request.choices)


def least(found: Sequence[Offer], scores: Sequence[float]) -> Offer:
    """The offer with the least score; of equal ones the cheaper, then the first by name."""
    order = range(len(found))
    return found[min(order, key=lambda at: (scores[at], found[at].cost_usd, found[at].model))]


def in_turn(
    options: Sequence[Option],
    found: Sequence[Offer],
    scores: Sequence[float] | None,
    picked: Offer,
    turns: Turns,
    propensity: float = 1.0,
) -> Choice:
    """The instance of the picked model whose turn it is. `scores` are the offers', if they have any. The choice's
    memo is `found`."""
    mine = [options[index] for index in picked.at]
    index = picked.at[turns.next(picked.model, mine)]
    told: list[float | None] = [None] * len(options)
    reasons: list[str | None] = [None] * len(options)
    for at, offer in enumerate(found):
        reason = (
            "not its turn"
            if offer.model == picked.model
            else f"quality {offer.quality:.2f} for {told_usd(offer.cost_usd)}, "
            f"picked {picked.quality:.2f} for {told_usd(picked.cost_usd)}"
        )
        for each in offer.at:
            told[each] = None if scores is None else scores[at]
            reasons[each] = reason
    reasons[index] = None
    alternatives = [each for each in picked.at if each != index]
    return Choice(index, told, reasons, propensity, alternatives, memo=found)


def row_of(found: Sequence[Offer]) -> Row:
    """What a window keeps of a request."""
    return Row(
        tuple(offer.model for offer in found),
        tuple(offer.quality for offer in found),
        tuple(offer.cost_usd for offer in found),
    )


class PricedPicker:
    """Picks the model of least cost - price x quality, where the price is what holds the mean estimated quality of
    the scope's recent requests at its target (`policies.quality_price`). Ties: the cheaper model, then its name.
    The score is that difference in USD."""

    predicts = False

    def __init__(self, name: str, estimator: str, settings: PolicySettings) -> None:
        self.name = name
        self._estimator = settings.text.get(estimator)
        self._targets = settings.targets
        self._prices = QualityPrices()
        self.turns = Turns()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        found = offers(request, options, self._estimator)
        price_usd = self._prices.usd(request.key)
        scores = [offer.cost_usd - price_usd * offer.quality for offer in found]
        return in_turn(options, found, scores, least(found, scores), self.turns)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """The request joins its scope's window, and the turn passes on."""
        option = options[choice.index]
        model = option.candidate.model
        self.turns.passed(model, option)
        self._prices.took(request.key, row_of(choice.memo), model, self._targets(request.key))
