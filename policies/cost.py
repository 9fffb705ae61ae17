"""`cost`: the least expected spend that keeps a mean quality, an attainment of SLOs and every instance's capacity.

Each of the three is a constraint on the mean over many requests, so each has a price, and a request goes where

    C + f x C' + C x v  -  lambda_q x q  +  lambda_s x v  +  mu x work

is least: C the expected price of the answer there, f the share of attempts there that had to be made again (for
C', the mean price of the request's options), v = P(an SLO is missed; then C was spent in vain), q the predicted
quality, work the expected E2E in units of the usual one. Scores within a thousandth of a usual answer's price are
equal: among them the best quality, then the least expected E2E, then instance, then model name. Deterministic for
a given past.

- lambda_q, a scope's (a key's, else the fleet's), holds the mean predicted quality of what was taken at the target.
  It is read off what the recent requests were offered (`policies.prices`), for a wish that is moved by what was
  taken above or below the target so far. The target is `Targets.quality`, else what the scope's best single model
  is predicted to reach on its own requests, less half of `quality_slack`: the other half is for what predictions
  err by.
- lambda_s, the scope's, rises with each miss and falls with each SLO kept, so that it rests where the attainment is
  the target: by what is predicted at once, by what came of it beyond that when it is heard. In units of a usual
  answer's price, as are mu.
- mu, an instance's, rises while it is fuller than is good for it, and falls while it is not.

Sources: ECCOS / OmniRouter (arXiv 2502.20576) for the dual, PORT for solving it on what was seen first; Headway's
contract for the constraints. Feedback reaches q through the predictor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from random import Random
from statistics import fmean
from typing import NamedTuple

from policies.latency import expected_s, p_miss
from policies.picking import name_of, told_usd
from policies.prices import OnOffer
from policies.settings import Targets
from router.core.interfaces import Choice, Option
from router.core.state import Instance
from router.core.types import Candidate, Request

_MOST_SCOPES = 1024
_MOST_INSTANCES = 4096
_MOST_OPEN = 65_536
_SAME = 1e-3
#: What the mean fell short of its target is to be made up for within this part of the window, and the wish moves
#: by no more than this.
_CATCH_UP = 0.25
_MOST_WISH = 0.05
#: Share of the quality slack that is kept back for what predictions err by: on held-out prompts of ZeroEval picks fell
#: short by up to a third more than was predicted (docs/pickers.md).
_KEPT_BACK = 0.5
#: Usual answers that a miss is worth: at first, at most, and what each miss adds if a window holds this many requests.
_MISS_PRICE = 3.0
_MOST_MISS_PRICE = 50.0
_MISS_STEP = 2.0
_MISS_WINDOW = 500
#: Share of its slots at which an instance begins to be dear, how much a full turn of its slots adds when
#: all are taken, and the most.
_FULL = 0.85
_LOAD_STEP = 1.0
_MOST_LOAD_PRICE = 5.0
_MOST_WORK = 5.0
#: Attempts over which the share of lost ones is averaged.
_ATTEMPTS = 50


class _Offer(NamedTuple):
    """An option in numbers: price of the answer (infinite: unknown), quality, P(miss), expected E2E."""

    cost_usd: float
    quality: float
    miss: float
    e2e_s: float


class _Considered(NamedTuple):
    """What `choose` computed of its options: each one's offer, and (model, quality, cost) of each model's cheapest."""

    offers: list[_Offer]
    models: list[tuple[str, float, float]]


@dataclass(slots=True)
class _Scope:
    """What is known of one scope's requests. `short` is the forgetting sum of target - taken quality, `usual_s` the
    mean expected E2E of what was taken."""

    offered: OnOffer = field(default_factory=OnOffer)
    requests: float = 0.0  # within the window
    short: float = 0.0
    miss_price: float = _MISS_PRICE
    usual_s: float = 0.0

    def target(self, targets: Targets) -> float:
        if targets.quality is not None:
            return targets.quality
        best = self.offered.best_single()
        return 0.0 if best is None else best[1] - _slack(targets)

    def price_usd(self, targets: Targets) -> float:
        """lambda_q."""
        return self.offered.price_usd(self.target(targets) + self.short / self._within)

    @property
    def _within(self) -> float:
        """Requests within which a shortfall is to be made up for."""
        return max(_CATCH_UP * self.requests, 1.0)

    def fell_short(self, quality: float, keep: float) -> None:
        """What was taken fell short of its target by this much; the past counts for `keep` of what it did. The sum
        stays within what the wish may move by: a target out of reach leaves nothing to be made up for later."""
        self.requests = keep * self.requests + 1.0
        most = _MOST_WISH * self._within
        self.short = min(max(keep * self.short + quality, -most), most)

    def missed(self, more: float, targets: Targets) -> None:
        """`more` misses than there may be have come, or are expected."""
        step = _MISS_STEP * _MISS_WINDOW / max(targets.window_requests, 1)
        self.miss_price = min(max(self.miss_price + step * more, 0.0), _MOST_MISS_PRICE)


@dataclass(slots=True)
class _Open:
    """A request under way: the instances tried, and the P(miss) that lambda_s has moved by."""

    tried: list[str]
    miss: float


@dataclass(slots=True)
class _Known:
    """What is known of one instance: mu, and the share of attempts that had to be made again elsewhere."""

    load_price: float = 0.0
    lost: float = 0.0


class LeastSpend:
    """See the module's docstring. The score is that sum in USD."""

    name = "cost"
    predicts = True

    def __init__(self, targets: Callable[[str | None], Targets]) -> None:
        self._targets = targets
        self._scopes: OrderedDict[str | None, _Scope] = OrderedDict()
        self._instances: OrderedDict[str, _Known] = OrderedDict()
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        offers = _offers(options)
        models = _by_model(options, offers)
        scope = self._scopes.get(request.key)
        if scope is None:
            scope = _Scope()
            if models:
                scope.offered.add(models, 1)  # itself is all that is known
        usual_usd = scope.offered.mean_cost_usd
        quality_usd = scope.price_usd(self._targets(request.key))
        known = [each.cost_usd for each in offers if each.cost_usd < inf]
        again_usd = fmean(known) if known else 0.0
        scores = []
        for option, offer in zip(options, offers, strict=True):
            instance = self._instances.get(option.instance.name)
            lost, load_price = (0.0, 0.0) if instance is None else (instance.lost, instance.load_price)
            work = min(offer.e2e_s / scope.usual_s, _MOST_WORK) if scope.usual_s > 0.0 else 1.0
            spend_usd = offer.cost_usd * (1.0 + offer.miss) + lost * again_usd
            prices = scope.miss_price * offer.miss + load_price * work
            scores.append(spend_usd - quality_usd * offer.quality + usual_usd * prices)
        least = min(scores) + _SAME * usual_usd
        near = [at for at, score in enumerate(scores) if score <= least]
        best = max(offers[at].quality for at in near)
        equal = [at for at in near if offers[at].quality == best]
        index = min(equal, key=lambda at: (offers[at].e2e_s, name_of(options[at])))
        against = f"{_told(offers[index])} (0.01 of quality is worth {told_usd(quality_usd / 100)} now)"
        reasons = [
            None if at == index else _why(offers[at], at in equal, against) for at in range(len(options))
        ]
        told = [score if isfinite(score) else None for score in scores]
        others = [at for at in equal if at != index]
        return Choice(index, told, reasons, alternatives=others, memo=_Considered(offers, models))

    def prices(self) -> dict[str | None, dict[str, float]]:
        """The prices now, by scope (None: the fleet): a unit of quality in USD, a miss and the usual answer in USD."""
        told = {}
        for key, scope in self._scopes.items():
            usual_usd = scope.offered.mean_cost_usd
            told[key] = {
                "quality_usd": scope.price_usd(self._targets(key)),
                "miss_usd": scope.miss_price * usual_usd,
                "usual_answer_usd": usual_usd,
            }
        return told

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Prices move: the request joins what its scope was offered, and the instances considered are as full as
        they are. A further attempt of a request moves none."""
        option = options[choice.index]
        known = self._open.get(request.id)
        if known is not None:
            known.tried.append(option.instance.name)
            return
        considered: _Considered = choice.memo
        offer = considered.offers[choice.index]
        self._open[request.id] = _Open([option.instance.name], offer.miss)
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        if considered.models:
            self._learn(request, option.candidate.model, offer, considered.models)
        for instance in {each.instance.name: each.instance for each in options}.values():
            self._load(instance)

    def _learn(
        self, request: Request, model: str, offer: _Offer, models: Sequence[tuple[str, float, float]]
    ) -> None:
        targets = self._targets(request.key)
        scope = self._scopes.get(request.key)
        if scope is None:
            scope = self._scopes[request.key] = _Scope()
            if len(self._scopes) > _MOST_SCOPES:
                self._scopes.popitem(last=False)
        self._scopes.move_to_end(request.key)
        window = max(targets.window_requests, 2)
        keep = 1.0 - 1.0 / window
        scope.offered.add(models, window)
        qualities = {name: quality for name, quality, _ in models}
        target = scope.target(targets)
        best = scope.offered.best_single()
        if best is not None and best[0] in qualities:
            target += qualities[best[0]] - best[1]  # an easy prompt is no merit, a hard one no failing
        scope.fell_short(target - qualities.get(model, offer.quality), keep)
        if request.slo is not None:
            scope.missed(offer.miss - (1.0 - targets.attainment), targets)
        if offer.e2e_s < inf:
            part = 1.0 / min(scope.requests, window)
            scope.usual_s += part * (offer.e2e_s - scope.usual_s)

    def _load(self, instance: Instance) -> None:
        load = _share_in_use(instance)
        if load is None:
            return
        known = self._known(instance.name)
        step = _LOAD_STEP / max(instance.max_concurrency or instance.running, 1)
        price = known.load_price + step * (load - _FULL) / (1.0 - _FULL)
        known.load_price = min(max(price, 0.0), _MOST_LOAD_PRICE)

    def _known(self, name: str) -> _Known:
        known = self._instances.get(name)
        if known is None:
            known = self._instances[name] = _Known()
            if len(self._instances) > _MOST_INSTANCES:
                self._instances.popitem(last=False)
        return known

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """lambda_s moves by what was not expected; instances whose attempt was not the last one lost it."""
        under_way = self._open.pop(request.id, None)
        if under_way is None:
            return
        for name in under_way.tried:
            known = self._known(name)
            known.lost += ((name != candidate.instance) - known.lost) / _ATTEMPTS
        scope = self._scopes.get(request.key)
        if scope is not None and request.slo is not None:
            targets = self._targets(request.key)
            # What is nobody's miss takes back what was expected of it.
            came = 1.0 - targets.attainment if met is None else float(not met)
            scope.missed(came - under_way.miss, targets)


def _slack(targets: Targets) -> float:
    return (1.0 - _KEPT_BACK) * targets.quality_slack


def _offers(options: Sequence[Option]) -> list[_Offer]:
    """The options in numbers; one of unknown quality is taken for as bad as the worst that is known."""
    qualities = [
        option.candidate.quality if option.prediction is None else option.prediction.quality
        for option in options
    ]
    worst = min((quality for quality in qualities if quality is not None), default=0.0)
    found = []
    for option, quality in zip(options, qualities, strict=True):
        cost_usd = None if option.prediction is None else option.prediction.cost_usd
        found.append(
            _Offer(
                inf if cost_usd is None else cost_usd,
                worst if quality is None else quality,
                p_miss(option),
                expected_s(option, 0.0),
            )
        )
    return found


def _by_model(options: Sequence[Option], offers: Sequence[_Offer]) -> list[tuple[str, float, float]]:
    """(model, quality, cost) of each model's cheapest option, in the order of their names; without those whose
    price is not known."""
    cheapest: dict[str, _Offer] = {}
    for option, offer in zip(options, offers, strict=True):
        model = option.candidate.model
        if offer.cost_usd < inf and (model not in cheapest or offer.cost_usd < cheapest[model].cost_usd):
            cheapest[model] = offer
    return [(model, cheapest[model].quality, cheapest[model].cost_usd) for model in sorted(cheapest)]


def _share_in_use(instance: Instance) -> float | None:
    """Share of what an instance can carry that is taken; above 1 while requests wait there. None: unknown."""
    if instance.max_concurrency:
        return instance.running / instance.max_concurrency
    waiting = instance.report.waiting
    if waiting is None:
        return None
    return instance.running / max(instance.running - waiting, 1) if waiting else 0.0


def _why(offer: _Offer, equal: bool, against: str) -> str:
    return "worth as much but no faster" if equal else f"worth less: {_told(offer)}, against {against}"


def _told(offer: _Offer) -> str:
    usd = told_usd(None if offer.cost_usd == inf else offer.cost_usd)
    return f"{usd} for quality {offer.quality:.2f} and P(miss) {offer.miss:.2f}"
