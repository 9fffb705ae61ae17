"""`best_single`: always the best model, whatever the prompt; then round robin over its instances.

Best by mean quality: what the artifact measured over all prompts, where it knows the model, else the fleet file's
prior, 0.5 without one. The plain baseline that a router of models has to beat: on LLMRouterBench (arXiv 2601.07206)
most published ones hardly do. Ties: the lower price of a million output tokens, then of input tokens, then the
model's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.settings import PolicySettings
from policies.text_picking import in_turn, offers
from policies.turns import Turns
from router.core.interfaces import Choice, Option
from router.core.types import Request


class BestSingle:
    """See the module's docstring. The score is the model's mean quality, negative."""

    name = "best_single"
    predicts = False

    def __init__(self, settings: PolicySettings) -> None:
        self._estimator = settings.text.get("mean")
        self.turns = Turns()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        found = offers(request, options, self._estimator)
        scores = [-offer.quality for offer in found]

        def rank(at: int) -> tuple[float, float, float, str]:
            price = options[found[at].at[0]].candidate.price
            return scores[at], price.output_usd_per_mtok, price.input_usd_per_mtok, found[at].model

        return in_turn(options, found, scores, found[min(range(len(found)), key=rank)], self.turns)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """The turn passes on."""
        option = options[choice.index]
        self.turns.passed(option.candidate.model, option)
