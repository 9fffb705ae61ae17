"""One routing decision: predict for each option, let the policy choose, sometimes explore, and record all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from router.compiled import compiled_init
from router.core.interfaces import CheckedAnswer, Choice, Option, Options, Policy, Predictor
from router.core.option_columns import loads_of, predicted
from router.core.state import Load, load_features
from router.core.types import Candidate, Considered, Decision, Prediction, Request

EXPLORED = "passed over to explore"
_REFUSED = "the hard SLO is given up: the request would take the time of several others"


@compiled_init
@dataclass(slots=True, eq=False)
class Decided:
    """A decision of `policy` at `at_s` among `options`. `Policy.placed` gets `options` and `choice` at the dispatch.
    `busy` and `passed_over` could not be chosen. `loads` are the loads of the options' instances, as `state.load_of` has them.

    A policy that uses no predictions does not wait for one: `Decider.complete` adds that of the chosen option and `loads`,
    before anything changes at the instances."""

    policy: str
    at_s: float
    options: Sequence[Option]
    choice: Choice
    busy: Sequence[Option]
    passed_over: Sequence[tuple[Candidate, str]]
    loads: Sequence[Load] = ()

    @property
    def option(self) -> Option:
        """The chosen option."""
        return self.options[self.choice.index]

    @property
    def considered(self) -> tuple[Considered, ...]:
        """All candidates, as they are recorded."""
        choice = self.choice
        options = [
            Considered(each.candidate, each.prediction, score, reason)
            for each, score, reason in zip(self.options, choice.scores, choice.reasons, strict=True)
        ]
        return (*options, *unavailable(self.busy, self.passed_over))

    @property
    def decision(self) -> Decision:
        """All of it, as it is recorded."""
        return Decision(
            self.policy,
            self.at_s,
            self.choice.index,
            self.considered,
            self.choice.propensity,
            tuple([load_features(load, self.at_s) for load in self.loads]),
        )

    @property
    def refused(self) -> Decision:
        """The same for a request that is refused instead: the chosen option has a reason against it too."""
        decision = self.decision
        against = [each._replace(reason=each.reason or _REFUSED) for each in decision.considered]
        return decision._replace(chosen=None, considered=tuple(against), propensity=None)


def unavailable(busy: Sequence[Option], passed_over: Sequence[tuple[Candidate, str]]) -> Iterator[Considered]:
    """The candidates that could not be chosen, as they are recorded."""
    for each in busy:
        yield Considered(each.candidate, each.prediction, None, "no free slot")
    for candidate, reason in passed_over:
        yield Considered(candidate, None, None, reason)


class Decider:
    """Runs the predictor and the request's policy."""

    def __init__(self, policies: Mapping[str, Policy], predictor: Predictor, rng: Random) -> None:
        self.policies = policies
        self.predictor = predictor
        self._rng = rng

    def decide(
        self,
        request: Request,
        options: Sequence[Option],
        now: float,
        explore: float = 0.0,
        *,
        busy: Sequence[Option] = (),
        passed_over: Sequence[tuple[Candidate, str]] = (),
        dry: bool = False,
    ) -> Decided:
        """Choose among `options` (at least one); `complete` must follow before anything changes. The decision also lists
        `busy` and `passed_over`. `explore` is the share of decisions that pick among the choice and its alternatives at
        random, so that the records also show the outcomes of the alternatives. A `dry` run always predicts and leaves the
        generator unchanged: it draws what the next real decision would."""
        policy = self.policies[request.policy]
        if (policy.predicts or dry) and not predicted(options):
            options = self._predict(request, options, now)
        if request.seed is not None:
            rng = Random(request.seed)
        elif dry:
            rng = Random()
            rng.setstate(self._rng.getstate())
        else:
            rng = self._rng
        choice = policy.choose(request, options, rng)
        if explore and choice.alternatives and not choice.defer:
            # A separate random stream: the policy's draws must not determine which option is explored.
            draws = rng if request.seed is None else Random(f"{request.seed}/explore")
            choice = _explored(choice, explore, draws)
        return Decided(request.policy, now, options, choice, busy, passed_over)

    def reconsider(
        self,
        request: Request,
        answer: CheckedAnswer,
        options: Sequence[Option],
        now: float,
        *,
        passed_over: Sequence[tuple[Candidate, str]] = (),
    ) -> Decided | None:
        """Choose again among `options` (there may be none), now that an answer was checked; None to deliver it."""
        if options:
            options = self._predict(request, options, now)
        rng = self._rng if request.seed is None else Random(request.seed)
        choice = self.policies[request.policy].reconsider(request, answer, options, rng)
        return None if choice is None else Decided(request.policy, now, options, choice, (), passed_over)

    def refused(self, request: Request, options: Sequence[Option]) -> None:
        """Tell the policy that none of `options`, which have predictions, meets the hard SLO of a request."""
        self.policies[request.policy].refused(request, options if predicted(options) else list(options))

    def _predict(self, request: Request, options: Sequence[Option], now: float) -> Sequence[Option]:
        """The same options with predictions; `Options` only if the predictor has columns."""
        columns = self.predictor.predict_all(request, options, now)
        if columns is None:
            return list(options)
        return options if options.__class__ is Options else Options(options, columns)

    def complete(self, request: Request, decided: Decided) -> Prediction:
        """Add what the choice did not need; returns the prediction of the chosen option."""
        option = decided.option
        decided.loads = loads_of(decided.options)
        prediction = option.prediction
        if prediction is None:
            prediction = self.predictor.predict(request, option.candidate, option.instance, decided.at_s)
            option.prediction = prediction
        return prediction


def _explored(choice: Choice, explore: float, rng: Random) -> Choice:
    """With probability `explore`, a uniform draw from the choice and its alternatives. The propensity includes this (where
    the policy itself draws: only if its possible draws share no alternatives)."""
    pool = [choice.index, *choice.alternatives]
    evenly = explore * choice.propensity / len(pool)
    kept = (1.0 - explore) * choice.propensity
    index = pool[int(rng.random() * len(pool))] if rng.random() < explore else choice.index
    if index == choice.index:
        choice.propensity = kept + evenly
        return choice
    reasons = list(choice.reasons)
    reasons[choice.index], reasons[index] = EXPLORED, None
    return Choice(index, choice.scores, reasons, evenly, memo=choice.memo)
