"""`best_single`: the best model, whatever the prompt; then round robin over its instances.

Best of the options: while all instances of the best model are full, the next best one takes the requests, as under every
policy. Best by mean quality: the artifact's mean over all prompts if it knows the model, otherwise the fleet file's prior, or
0.5 without one. It is the baseline that every router of models has to beat; on LLMRouterBench (arXiv 2601.07206) most
published ones barely do. Ties: the lower price of a million output tokens, then of input tokens, then the model's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.quality_window import ModelOffer
from policies.round_robin_cursor import RoundRobinCursor
from policies.settings import PolicySettings
from policies.text_picking import in_turn, offers
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request


class BestSingle(Policy):
    """See the module's docstring. The score is the model's mean quality, negated."""

    name = "best_single"
    predicts = False

    def __init__(self, settings: PolicySettings) -> None:
        self._estimator = settings.text.get("mean")
        self.cursor = RoundRobinCursor()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        found = offers(request, options, self._estimator)
        best = max(offer.quality for offer in found)

        def rank(offer: ModelOffer) -> tuple[float, float, str]:
            prices = [each.candidate.price for each in options if each.candidate.model == offer.model]
            cheapest = min((price.output_usd_per_mtok, price.input_usd_per_mtok) for price in prices)
            return *cheapest, offer.model

        picked = min((offer for offer in found if offer.quality == best), key=rank)
        return in_turn(options, found, [-offer.quality for offer in found], picked, self.cursor)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Advance the model's cursor."""
        option = options[choice.index]
        self.cursor.advance(option.candidate.model, option)
