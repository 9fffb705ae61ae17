"""One routing decision: predicts for each option, lets the policy choose, sometimes explores, and records it all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from router.core.interfaces import Choice, Option, Policy, Predictor
from router.core.types import Candidate, Considered, Decision, Prediction, Request

EXPLORED = "passed over to explore"


class Decided(NamedTuple):
    """A decision. `Policy.placed` gets its `options` and `choice` at the dispatch. `prediction` is that of the chosen
    option."""

    decision: Decision
    options: Sequence[Option]
    choice: Choice
    prediction: Prediction

    @property
    def option(self) -> Option:
        """The chosen option."""
        return self.options[self.choice.index]

    @property
    def deferred(self) -> bool:
        """True if the policy advises to queue the request and decide again."""
        return self.choice.defer


class Decider:
    """Runs the predictor and the request's policy. `explore` is the share of decisions that pick among the choice and
    its alternatives at random, so that the records also show the outcomes of the alternatives."""

    def __init__(
        self, policies: Mapping[str, Policy], predictor: Predictor, rng: Random, explore: float = 0.0
    ) -> None:
        self.policies = policies
        self.predictor = predictor
        self.explore = explore
        self._rng = rng

    def decide(
        self,
        request: Request,
        options: Sequence[Option],
        now: float,
        *,
        busy: Iterable[Option] = (),
        passed_over: Iterable[tuple[Candidate, str]] = (),
        dry: bool = False,
    ) -> Decided:
        """Choose among `options` (at least one). The decision also lists `busy` and `passed_over`. A `dry` run always
        predicts, never explores, and leaves the generator unchanged: it draws what the next real decision would."""
        policy = self.policies[request.policy]
        if (policy.predicts or dry) and options[0].prediction is None:
            self.predictor.predict_all(request, options, now)
        if request.seed is not None:
            rng = Random(request.seed)
        elif dry:
            rng = Random()
            rng.setstate(self._rng.getstate())
        else:
            rng = self._rng
        choice = policy.choose(request, options, rng)
        if self.explore and choice.alternatives and not choice.defer and not dry:
            # A separate random stream: the policy's draws must not determine which option is explored.
            choice = self._explored(
                choice, rng if request.seed is None else Random(f"{request.seed}/explore")
            )
        option = options[choice.index]
        prediction = option.prediction
        if prediction is None:
            prediction = self.predictor.predict(request, option.candidate, option.instance, now)
            option.prediction = prediction
        considered = [
            Considered(each.candidate, each.prediction, score, reason)
            for each, score, reason in zip(options, choice.scores, choice.reasons, strict=True)
        ]
        considered += [Considered(each.candidate, each.prediction, None, "no free slot") for each in busy]
        considered += [Considered(candidate, None, None, reason) for candidate, reason in passed_over]
        decision = Decision(
            request.policy,
            now,
            choice.index,
            tuple(considered),
            choice.propensity,
            tuple(each.instance.load_features(now) for each in options),
        )
        return Decided(decision, options, choice, prediction)

    def _explored(self, choice: Choice, rng: Random) -> Choice:
        """With probability `explore`, a uniform draw from the choice and its alternatives. The propensity includes this
        (where the policy itself draws: only if its possible draws share no alternatives)."""
        pool = [choice.index, *choice.alternatives]
        evenly = self.explore * choice.propensity / len(pool)
        kept = (1.0 - self.explore) * choice.propensity
        index = pool[int(rng.random() * len(pool))] if rng.random() < self.explore else choice.index
        if index == choice.index:
            choice.propensity = kept + evenly
            return choice
        reasons = list(choice.reasons)
        reasons[choice.index], reasons[index] = EXPLORED, None
        return Choice(index, choice.scores, reasons, evenly, memo=choice.memo)
