"""One decision: predictions for the options, the policy's choice, a little exploration, and the record of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from router.core.interfaces import Choice, Option, Policy, Predictor
from router.core.types import Candidate, Considered, Decision, Prediction, Request

EXPLORED = "passed over to explore"


class Decided(NamedTuple):
    """A decision, with the options and the choice that `Policy.placed` gets when it is dispatched. `prediction` is
    that of the option taken."""

    decision: Decision
    options: Sequence[Option]
    choice: Choice
    prediction: Prediction

    @property
    def option(self) -> Option:
        """The option taken."""
        return self.options[self.choice.index]

    @property
    def deferred(self) -> bool:
        """Whether sending the request now gains nothing."""
        return self.choice.defer


class Decider:
    """Asks the predictor and the policies. `explore` is the share of decisions that take another option of those
    that the policy holds for as good, so that the log tells what would have come of them too."""

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
        """Choose among `options` (at least one); `busy` and `passed_over` are told in the record. A `dry` run
        predicts for every policy, does not explore, and draws what would be drawn."""
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
            # A stream of its own: the policy's draws must not decide what is explored.
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
        """With probability `explore` one of the choice and its alternatives, evenly; the propensity says so (where the
        policy draws: among draws that share no alternatives)."""
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
