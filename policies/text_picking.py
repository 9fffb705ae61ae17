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

from policies.picking import format_usd
from policies.quality_window import ModelOffer, Offers
from policies.round_robin_cursor import RoundRobinCursor
from policies.settings import PolicySettings
from router.core.interfaces import Choice, Option, Policy, TextEstimates, TextEstimator
from router.core.types import Request

#: The length of an answer if no model's is known: then the tariffs alone decide.
_OUTPUT_TOKENS = 300.0
_QUALITY = 0.5


def offers(request: Request, options: Sequence[Option], estimator: TextEstimator | None) -> list[ModelOffer]:
    """The offers of the options' models, ordered by name. A model that the estimator does not know has the median of its
    options' priors as its quality. The cost is the mean over its options."""
    by_model: dict[str, list[Option]] = {}
    for option in options:
        by_model.setdefault(option.candidate.model, []).append(option)
    models = sorted(by_model)
    estimates = TextEstimates([None] * len(models), [None] * len(models))
    if estimator is not None and request.features is not None:
        estimates = estimator(request.features, models)
    known = [tokens for tokens in estimates.output_tokens if tokens is not None]
    typical = fmean(known) if known else _OUTPUT_TOKENS
    found = []
    for model, quality, tokens in zip(models, estimates.quality, estimates.output_tokens, strict=True):
        own = by_model[model]
        expected = median(map(_prior, own)) if quality is None else quality
        length = typical if tokens is None else tokens
        found.append(ModelOffer(model, expected, fmean(_cost_usd(request, each, length) for each in own)))
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


def least(found: Offers, scores: Sequence[float]) -> ModelOffer:
    """The offer of the least score. Ties: the cheaper one, then the model's name."""
    order = range(len(found))
    return found[min(order, key=lambda at: (scores[at], found[at].cost_usd, found[at].model))]


def in_turn(
    options: Sequence[Option],
    found: Offers,
    scores: Sequence[float] | None,
    picked: ModelOffer,
    cursor: RoundRobinCursor,
    propensity: float = 1.0,
) -> Choice:
    """The next instance of the picked model. `scores` are those of the offers, if they have any. The choice's memo is
    `found`."""
    models = [option.candidate.model for option in options]
    own = [at for at, model in enumerate(models) if model == picked.model]
    index = own[cursor.next_index(picked.model, [options[at] for at in own])]
    why = {
        model: f"quality {quality:.2f} for {format_usd(cost_usd)}, "
        f"picked {picked.quality:.2f} for {format_usd(picked.cost_usd)}"
        for model, quality, cost_usd in found
    }
    why[picked.model] = "not its turn"
    reasons = [None if at == index else why[model] for at, model in enumerate(models)]
    by_model = {offer.model: score for offer, score in zip(found, scores or (), strict=False)}
    alternatives = [at for at in own if at != index]
    return Choice(
        index, [by_model.get(model) for model in models], reasons, propensity, alternatives, memo=found
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
    def _scores(self, request: Request, found: Offers) -> list[float]:
        """The score of each offer."""

    @abstractmethod
    def _learn(self, request: Request, found: Offers, model: str, options: Sequence[Option]) -> None:
        """The request was offered these, and got `model`."""
