"""`cost`: the least expected spend that keeps, in this order, the capacity of instances, the attainment of SLOs and a mean
quality.

A request goes to the option with the least

    C + f x C' + C x v  -  lambda_q x q  +  (U + lambda_q x Q) x (caution x m + price x delay)

- C: the expected price of the answer there.
- f: the share of attempts there that had to be repeated elsewhere; C': the mean price of the request's options.
- v: P(an SLO is missed). Then C is spent for nothing.
- q: the predicted quality.
- m: the misses that the request is expected to cause there: its own, v, and those of running requests whose promised TPOT
  it breaks.
- delay: what the request adds to the E2E of others (`policies.latency`), in mean answers' times.
- U, Q: the differences of spend and of quality between this request's options, but at least the usual differences.

The sum keeps the order for any lambda_q: quality and spend together never outweigh a difference of 1 / caution in m, or of
1 / price in delay. A larger price of quality also makes misses and busy instances more expensive.

- Capacity: a full instance is no option (`router.core.eligibility`). A busy one is left to the requests that gain most there
  for the delay that they cause. The price of delay is constant while attainment is kept. Below that it rises with caution: a
  delay may cause the miss of a request that has no other place, such as one with a floor of quality.
- Attainment: caution, one for each scope (a key, or the fleet), rises with each miss and falls with each SLO met. It settles
  where attainment is a little above the target. It moves by the predicted miss at once, and by the difference to the outcome
  when the request ends.
- Quality: lambda_q, one for each scope, keeps the mean predicted quality of the chosen options at the target, or at the
  reachable quality if that is less. It follows from the options of recent requests (`policies.quality_price_estimator`);
  misses and delay lower the quality and raise the cost of each. The reachable quality is the mean that requests would get if
  spend did not count. So a shortfall from lack of capacity or attainment is not made up for later. The target is
  `Targets.quality`, by default the reachable quality minus half of `quality_slack`. The other half is reserved for
  prediction errors.
- Spend: the rest.

A request whose answer may be checked (`Request.check`) has further options: ask one model, check its answer, and ask another
model if the check finds it poor (`policies.second_look`). Such an option has the expected quality, spend and risk of all
steps, with the price of the check. It is left out if it could lose an SLO, or if the money cap may not pay for both answers. It
is there to spend less, so it does not count for the reachable quality.

If the SLO of a request is given up (`policies.giving_up`), the request goes only where it delays no other (`policies.giving_up.has_room`).
Without such a place it is deferred. While instances that meet SLOs are scarce (r > 0.3 there), a request without an SLO goes only to
those of each model that are cheapest to occupy, then slowest.

Scores within a thousandth of a mean answer's price are equal. Among them: the best quality, then the least expected E2E,
then instance, then model name. Deterministic for a given history.

Sources: ECCOS / OmniRouter (arXiv 2502.20576) for the dual, PORT (arXiv 2509.02718) for solving it on past requests.
Feedback reaches q through the predictor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from statistics import fmean
from typing import NamedTuple

from policies import second_look
from policies.cost_scope import FIRST_CAUTION, CostScope, allowed_misses
from policies.expected import CachedTokens, added_s, expected_s, none_cached, p_miss
from policies.giving_up import FREE_SCARCITY, GIVEN_UP, GivingUp, Work, has_room
from policies.kinds import KEPT_FREE, least_kind
from policies.picking import Reasons, format_s, format_usd, known, name_of
from policies.quality_price_estimator import Offer
from policies.scopes import Scopes
from router.core.interfaces import CheckedAnswer, Choice, Option, Policy
from router.core.types import Candidate, Request, Targets

_MAX_SCOPES = 1024
_MAX_INSTANCES = 4096
_MAX_PENDING = 65_536
#: Scores closer than this share of a mean answer's price are equal.
_SAME = 1e-3
#: A delay of others by the time of one mean answer counts as much as this share of the differences of quality and spend; more if
#: caution is above its first value. At most _MAX_DELAY such times count.
_DELAY_PRICE = 0.4
_MAX_DELAY = 100.0
#: The actual TPOT is taken as evenly spread over this range of the predicted one.
_TPOT_RANGE = 0.9, 1.2
#: The share of repeated attempts is a running mean over about this many.
_ATTEMPTS = 50


class _Estimate(NamedTuple):
    """An option in numbers: price of the answer (infinite if unknown), quality, P(miss), the promises that the request
    breaks there (`_breaks`), expected E2E."""

    cost_usd: float
    quality: float
    miss: float
    breaks: float
    e2e_s: float


class _Memo(NamedTuple):
    """What `choose` computed: each option's estimate; each model's best offer, their mean cost, and the difference of
    their qualities; the price of quality; the best offer with a second look (None: there is none); and the request's work."""

    estimates: list[_Estimate]
    offers: list[Offer]
    usual_usd: float
    spread: float
    quality_usd: float
    look: Offer | None
    work: Work | None


@dataclass(slots=True)
class _Pending:
    """A running request: the instances of its attempts, and the P(miss) that `caution` has moved by."""

    instances: list[str]
    miss: float


class LeastSpend(Policy):
    """See the module's docstring. The score is that sum in USD."""

    name = "cost"
    predicts = True

    def __init__(
        self,
        targets: Callable[[str | None], Targets],
        epsilon: float = 0.1,
        cached_tokens: CachedTokens = none_cached,
    ) -> None:
        self.epsilon = epsilon
        self._cached_tokens = cached_tokens
        self._giving_up = GivingUp(epsilon, cached_tokens)
        self._targets = targets
        self._scopes: Scopes[str | None, CostScope] = Scopes(CostScope, _MAX_SCOPES)
        #: The share of attempts that had to be repeated elsewhere, by instance.
        self._repeated: OrderedDict[str, float] = OrderedDict()
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._check_scores = second_look.ScoreScale()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        targets = self._targets(request.key)
        estimates = _estimates(request, options)
        scope = self._scopes.get(request.key)
        costs_usd = [each.cost_usd for each in estimates if each.cost_usd < inf]  # at least one
        usual_usd = fmean(costs_usd)
        delays_s = added_s(request, options, self._cached_tokens)
        mean_s = scope.mean_e2e_s
        delay_price = _DELAY_PRICE * max(1.0, scope.caution / FIRST_CAUTION)
        spends, risks = [], []
        for option, estimate, delay_s in zip(options, estimates, delays_s, strict=True):
            repeated = self._repeated.get(option.instance.name, 0.0)
            spends.append(estimate.cost_usd * (1.0 + estimate.miss) + repeated * usual_usd)
            delay = min(delay_s / mean_s, _MAX_DELAY) if mean_s > 0.0 else 0.0
            risks.append(scope.caution * (estimate.miss + estimate.breaks) + delay_price * delay)
        qualities = [each.quality for each in estimates]
        finite = [spend for spend in spends if spend < inf]
        spend_usd, spread = max(finite) - min(finite), max(qualities) - min(qualities)
        most_usd, most = max(scope.usual_usd, usual_usd, spend_usd), max(scope.spread, spread)
        offers = [
            Offer(quality - most * risk, spend + most_usd * risk, quality)
            for quality, spend, risk in zip(qualities, spends, risks, strict=True)
        ]
        if scope.offered.reachable is None:  # this request is all that is known
            scope.offer([each for each in offers if each.cost_usd < inf], usual_usd, spread, targets)
        quality_usd = scope.quality_usd(targets)
        scores = [each.cost_usd - quality_usd * each.value for each in offers]
        work, given_up = None, False
        if request.slo is not None:
            work = self._work(request, options, estimates)
            chance = 1.0 - min(each.miss for each in estimates)
            given_up = chance < self._giving_up.least_chance(request, work)
        every: Sequence[int] = range(len(options))
        if request.slo is None and self._giving_up.scarcity > FREE_SCARCITY:
            every = _least_kinds(options)
        room = [at for at in every if not given_up or has_room(options[at])]
        among = room or every
        least = min(scores[at] for at in among) + _SAME * scope.usual_usd
        near = [at for at in among if scores[at] <= least]
        best = max(qualities[at] for at in near)
        equal = [at for at in near if qualities[at] == best]
        index = min(equal, key=lambda at: (estimates[at].e2e_s, name_of(options[at])))
        by_model = _by_model(options, offers, scores)
        look, check, taken = None, False, estimates[index]
        if request.check is not None and room and quality_usd > 0.0:
            first, look = second_look.best(request, options, offers, by_model, quality_usd)
            if look is not None and (score := look.cost_usd - quality_usd * look.value) < min(scores):
                index, check, equal, scores[first] = first, True, [first], score
                taken = estimates[first]._replace(cost_usd=look.cost_usd, quality=look.quality)

        def why(at: int) -> str:
            if at not in every:
                return KEPT_FREE
            if at not in among:
                return GIVEN_UP
            if at in equal:
                times = (
                    f"{format_s(estimates[at].e2e_s)} expected, against {format_s(estimates[index].e2e_s)}"
                )
                return f"same value but not faster: {times}"
            worth = f"0.01 of quality is worth {format_usd(quality_usd / 100)} now"
            offered = _format(estimates[at], delays_s[at])
            return f"lower value: {offered}, against {_format(taken, delays_s[index])} ({worth})"

        return Choice(
            index,
            known(scores),
            Reasons(len(options), index, why),
            alternatives=[at for at in equal if at != index],
            defer=not room,
            memo=_Memo(
                estimates, [offers[at] for at in by_model], usual_usd, spread, quality_usd, look, work
            ),
            check=check,
        )

    def reconsider(
        self, request: Request, answer: CheckedAnswer, options: Sequence[Option], rng: Random
    ) -> Choice | None:
        """Another model, if it is worth its price now that the check has moved the expected quality of the answer."""
        predicted, check = answer.prediction.quality, request.check
        if predicted is None or check is None:
            return None
        z = self._check_scores.z(answer.score, predicted, check.dprime)
        checked = second_look.after(predicted, z, check.dprime)
        allowed = [
            at
            for at, each in enumerate(options)
            if second_look.may_replace(request, answer, each, self.epsilon)
        ]
        if not allowed:
            return None
        choice = self.choose(replace(request, check=None), options, rng)
        memo: _Memo = choice.memo
        scores: list[float | None] = [None] * len(options)
        for at in allowed:
            quality, score = memo.estimates[at].quality, choice.scores[at]
            if score is not None:
                moved = second_look.other_after(quality, predicted, checked) - quality
                scores[at] = score - memo.quality_usd * moved
        least, index = min(
            ((score, at) for at, score in enumerate(scores) if score is not None), default=(inf, 0)
        )
        if choice.defer or least >= -memo.quality_usd * checked:
            return None
        pending = self._pending.get(request.id)
        if pending is not None:
            pending.instances.clear()  # the first attempt was not repeated because it failed
        why = f"the first answer has an expected quality of {checked:.2f} after its check, and another is better value"
        return Choice(index, scores, [None if at == index else why for at in range(len(options))], memo=memo)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Move the prices: add the request's options to those of its scope. A further attempt of the same request moves
        nothing."""
        option = options[choice.index]
        pending = self._pending.get(request.id)
        if pending is not None:
            pending.instances.append(option.instance.name)
            return
        memo: _Memo = choice.memo
        estimate = memo.estimates[choice.index]
        self._pending[request.id] = _Pending([option.instance.name], estimate.miss)
        if len(self._pending) > _MAX_PENDING:
            self._pending.popitem(last=False)
        targets = self._targets(request.key)
        scope = self._scopes.use(request.key)
        e2e_s = estimate.e2e_s if estimate.e2e_s < inf else None
        reachable = scope.offer(memo.offers, memo.usual_usd, memo.spread, targets, memo.look)
        quality = memo.look.quality if memo.look is not None and choice.check else estimate.quality
        scope.take(quality, reachable, e2e_s, targets)
        if request.slo is not None:
            scope.add_misses(estimate.miss - allowed_misses(targets), targets)
            self._giving_up.decided(request, memo.work, min(each.miss for each in memo.estimates))

    def refused(self, request: Request, options: Sequence[Option]) -> None:
        """Adapt the scarcity of instances that meet SLOs."""
        self._giving_up.decided(request, self._work(request, options, _estimates(request, options)), 1.0)

    def _work(
        self, request: Request, options: Sequence[Option], estimates: Sequence[_Estimate]
    ) -> Work | None:
        fastest = min(range(len(options)), key=lambda at: estimates[at].e2e_s)
        return self._giving_up.work(request, options[fastest])

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """Move `caution` by the difference between outcome and prediction. Every instance other than the last attempt's
        had its attempt repeated."""
        pending = self._pending.pop(request.id, None)
        if pending is None:
            return
        for name in pending.instances:
            repeated = self._repeated.get(name, 0.0)
            self._repeated[name] = repeated + ((name != candidate.instance) - repeated) / _ATTEMPTS
            if len(self._repeated) > _MAX_INSTANCES:
                self._repeated.popitem(last=False)
        if request.slo is not None:
            scope = self._scopes.get(request.key)
            targets = self._targets(request.key)
            # An end that says nothing about the SLO takes back what the prediction moved.
            missed = allowed_misses(targets) if met is None else float(not met)
            scope.add_misses(missed - pending.miss, targets)
            if met is not None:
                scope.end(met, targets)

    def prices(self) -> dict[str | None, dict[str, float | None]]:
        """The current prices by scope (None: the fleet), in USD: of a unit of quality, of a miss and of a mean answer. The
        mean quality that is wished, that is reachable, and that was reached, and the attainment so far; None if
        unknown."""
        found: dict[str | None, dict[str, float | None]] = {}
        for key, scope in self._scopes.items():
            targets = self._targets(key)
            quality_usd = scope.quality_usd(targets)
            found[key] = {
                "quality_usd": quality_usd,
                "miss_usd": scope.caution * scope.unit_usd(quality_usd),
                "usual_answer_usd": scope.usual_usd,
                "wished_quality": scope.wished(targets),
                "reachable_quality": scope.offered.reachable,
                "reached_quality": scope.reached,
                "attainment": scope.attained,
            }
        return found


def _estimates(request: Request, options: Sequence[Option]) -> list[_Estimate]:
    """The options in numbers. An unknown quality counts as the worst known one. If no price is known, answers are free."""
    predictions = [option.prediction for option in options]
    qualities = [
        option.candidate.quality if prediction is None else prediction.quality
        for option, prediction in zip(options, predictions, strict=True)
    ]
    costs = [None if prediction is None else prediction.cost_usd for prediction in predictions]
    worst = min((quality for quality in qualities if quality is not None), default=0.0)
    unknown_usd = 0.0 if all(cost is None for cost in costs) else inf
    return [
        _Estimate(
            unknown_usd if cost_usd is None else cost_usd,
            worst if quality is None else quality,
            p_miss(option),
            _breaks(request, option),
            expected_s(option),
        )
        for option, quality, cost_usd in zip(options, qualities, costs, strict=True)
    ]


def _breaks(request: Request, option: Option) -> float:
    """The expected number of running requests whose promised TPOT breaks because this request joins them."""
    promised, prediction = option.instance.promised_tpot_s, option.prediction
    if not promised or prediction is None or not prediction.tpot_s:
        return 0.0
    profile = option.instance.profiles.get(option.candidate.model)
    if profile is None:
        return 0.0
    low_s, high_s = (share * prediction.tpot_s for share in _TPOT_RANGE)
    near = bisect_left(promised, high_s) - bisect_left(promised, low_s)
    context_tokens = request.prompt_tokens + (prediction.output_tokens_mean or 0.0) / 2
    step_s = (profile.per_seq_s + context_tokens * profile.per_kv_token_s) / option.instance.speed
    return near * (step_s / (high_s - low_s) if step_s < high_s - low_s else 1.0)


def _least_kinds(options: Sequence[Option]) -> list[int]:
    """Of each model, the options that are cheapest to occupy, then slowest."""
    of_models: dict[str, list[int]] = {}
    for at, option in enumerate(options):
        of_models.setdefault(option.candidate.model, []).append(at)
    return [at for among in of_models.values() for at in least_kind(options, among)]


def _by_model(options: Sequence[Option], offers: Sequence[Offer], scores: Sequence[float]) -> list[int]:
    """The index of the offer of least score of each model, ordered by name. Those of unknown price are left out."""
    best: dict[str, int] = {}
    for at, option in enumerate(options):
        model = option.candidate.model
        if offers[at].cost_usd < inf and (model not in best or scores[at] < scores[best[model]]):
            best[model] = at
    return [best[model] for model in sorted(best)]


def _format(estimate: _Estimate, delay_s: float) -> str:
    return (
        f"{format_usd(estimate.cost_usd)} for quality {estimate.quality:.2f}, P(miss) {estimate.miss:.2f} "
        f"and {format_s(delay_s)} of delay to others"
    )
