"""`cost`: the least expected spend that holds a mean quality, an attainment of SLOs and every instance's capacity.

Each of the three is a constraint on a mean over many requests, so each has a price. A request goes where this is least:

    C + f x C' + C x v  -  lambda_q x q  +  lambda_s x v  +  mu x work

- C: the expected price of the answer there.
- f: the share of attempts there that had to be repeated elsewhere; C': the mean price of the request's options.
- v: P(an SLO is missed). C is then spent for nothing.
- q: the predicted quality.
- work: the expected E2E in units of the scope's mean.

Scores within a thousandth of a mean answer's price are equal. Among them: the best quality, then the least expected E2E,
then instance, then model name. Deterministic for a given history.

- lambda_q, one for each scope (a key, or the fleet), keeps the mean predicted quality of the chosen options at the target.
  It is computed from the options of recent requests (`policies.quality_price_estimator`), with a target that compensates
  for the shortfall or excess so far. The target is `Targets.quality`; without one it is the quality that the scope's best
  single model is predicted to reach on its own requests, minus half of `quality_slack`. The other half is reserved for
  prediction errors.
- lambda_s, one for each scope, rises with each miss and falls with each SLO met, so that it settles where the attainment
  is the target. It moves by the predicted miss at once, and by the difference to the outcome when the request ends. Its
  unit is the price of a mean answer, as for mu.
- mu, one for each instance, rises while more than a set share of its slots is in use, and falls otherwise.

Sources: ECCOS / OmniRouter (arXiv 2502.20576) for the dual, PORT (arXiv 2509.02718) for solving it on past requests.
Feedback reaches q through the predictor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from random import Random
from statistics import fmean
from typing import NamedTuple

from policies.cost_scope import CostScope
from policies.latency import expected_s, p_miss
from policies.picking import format_usd, name_of
from policies.settings import Targets
from router.core.interfaces import Choice, Option
from router.core.state import Instance
from router.core.types import Candidate, Request

_MAX_SCOPES = 1024
_MAX_INSTANCES = 4096
_MAX_PENDING = 65_536
#: Scores closer than this share of a mean answer's price are equal.
_SAME = 1e-3
#: mu rises above this share of an instance's slots. With all slots in use it rises by _LOAD_STEP for each full turnover
#: of its slots, up to _MAX_LOAD_PRICE.
_FULL = 0.85
_LOAD_STEP = 1.0
_MAX_LOAD_PRICE = 5.0
_MAX_WORK = 5.0
#: The share of repeated attempts is a running mean over about this many.
_ATTEMPTS = 50


class _Estimate(NamedTuple):
    """An option in numbers: price of the answer (infinite if unknown), quality, P(miss), expected E2E."""

    cost_usd: float
    quality: float
    miss: float
    e2e_s: float


class _Memo(NamedTuple):
    """What `choose` computed: each option's estimate, and (model, quality, cost) of each model's cheapest option."""

    estimates: list[_Estimate]
    models: list[tuple[str, float, float]]


@dataclass(slots=True)
class _Pending:
    """A running request: the instances of its attempts, and the P(miss) that lambda_s has moved by."""

    instances: list[str]
    miss: float


@dataclass(slots=True)
class _InstanceState:
    """`load_price` is mu, `repeated` the share of attempts that had to be repeated elsewhere."""

    load_price: float = 0.0
    repeated: float = 0.0


class LeastSpend:
    """See the module's docstring. The score is that sum in USD."""

    name = "cost"
    predicts = True

    def __init__(self, targets: Callable[[str | None], Targets]) -> None:
        self._targets = targets
        self._scopes: OrderedDict[str | None, CostScope] = OrderedDict()
        self._instances: OrderedDict[str, _InstanceState] = OrderedDict()
        self._pending: OrderedDict[str, _Pending] = OrderedDict()

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        estimates = _estimates(options)
        models = _by_model(options, estimates)
        scope = self._scopes.get(request.key)
        if scope is None:
            scope = CostScope()
            if models:
                scope.offered.add(models, 1)  # this request is all that is known
        mean_usd = scope.offered.mean_cost_usd
        quality_usd = scope.quality_usd(self._targets(request.key))
        costs = [each.cost_usd for each in estimates if each.cost_usd < inf]
        repeat_usd = fmean(costs) if costs else 0.0
        scores = []
        for option, estimate in zip(options, estimates, strict=True):
            state = self._instances.get(option.instance.name)
            repeated, load_price = (0.0, 0.0) if state is None else (state.repeated, state.load_price)
            work = min(estimate.e2e_s / scope.mean_e2e_s, _MAX_WORK) if scope.mean_e2e_s > 0.0 else 1.0
            spend_usd = estimate.cost_usd * (1.0 + estimate.miss) + repeated * repeat_usd
            prices = scope.miss_price * estimate.miss + load_price * work
            scores.append(spend_usd - quality_usd * estimate.quality + mean_usd * prices)
        least = min(scores) + _SAME * mean_usd
        near = [at for at, score in enumerate(scores) if score <= least]
        best = max(estimates[at].quality for at in near)
        equal = [at for at in near if estimates[at].quality == best]
        index = min(equal, key=lambda at: (estimates[at].e2e_s, name_of(options[at])))
        taken = f"{_format(estimates[index])} (0.01 of quality is worth {format_usd(quality_usd / 100)} now)"
        reasons = [
            None if at == index else _reason(estimates[at], at in equal, taken) for at in range(len(options))
        ]
        return Choice(
            index,
            [score if isfinite(score) else None for score in scores],
            reasons,
            alternatives=[at for at in equal if at != index],
            memo=_Memo(estimates, models),
        )

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Move the prices: add the request's options to those of its scope, and update the load of every instance in
        `options`. A further attempt of the same request moves nothing."""
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
        if memo.models:
            targets = self._targets(request.key)
            scope = self._scope(request.key)
            scope.add(memo.models, option.candidate.model, estimate.quality, estimate.e2e_s, targets)
            if request.slo is not None:
                scope.add_misses(estimate.miss - (1.0 - targets.attainment), targets)
        for instance in {each.instance.name: each.instance for each in options}.values():
            self._add_load(instance)

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """Move lambda_s by the difference between outcome and prediction. Every instance other than the last attempt's
        had its attempt repeated."""
        pending = self._pending.pop(request.id, None)
        if pending is None:
            return
        for name in pending.instances:
            state = self._instance(name)
            state.repeated += ((name != candidate.instance) - state.repeated) / _ATTEMPTS
        scope = self._scopes.get(request.key)
        if scope is not None and request.slo is not None:
            targets = self._targets(request.key)
            # An end that says nothing about the SLO takes back what the prediction moved.
            missed = 1.0 - targets.attainment if met is None else float(not met)
            scope.add_misses(missed - pending.miss, targets)

    def prices(self) -> dict[str | None, dict[str, float]]:
        """The current prices by scope (None: the fleet), in USD: of a unit of quality, of a miss and of a mean answer."""
        found = {}
        for key, scope in self._scopes.items():
            mean_usd = scope.offered.mean_cost_usd
            found[key] = {
                "quality_usd": scope.quality_usd(self._targets(key)),
                "miss_usd": scope.miss_price * mean_usd,
                "usual_answer_usd": mean_usd,
            }
        return found

    def _scope(self, key: str | None) -> CostScope:
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = CostScope()
            if len(self._scopes) > _MAX_SCOPES:
                self._scopes.popitem(last=False)
        self._scopes.move_to_end(key)
        return scope

    def _instance(self, name: str) -> _InstanceState:
        state = self._instances.get(name)
        if state is None:
            state = self._instances[name] = _InstanceState()
            if len(self._instances) > _MAX_INSTANCES:
                self._instances.popitem(last=False)
        return state

    def _add_load(self, instance: Instance) -> None:
        load = _share_in_use(instance)
        if load is None:
            return
        state = self._instance(instance.name)
        step = _LOAD_STEP / max(instance.max_concurrency or instance.running, 1)
        price = state.load_price + step * (load - _FULL) / (1.0 - _FULL)
        state.load_price = min(max(price, 0.0), _MAX_LOAD_PRICE)


def _estimates(options: Sequence[Option]) -> list[_Estimate]:
    """The options in numbers. An unknown quality counts as the worst known one."""
    qualities = [
        option.candidate.quality if option.prediction is None else option.prediction.quality
        for option in options
    ]
    worst = min((quality for quality in qualities if quality is not None), default=0.0)
    found = []
    for option, quality in zip(options, qualities, strict=True):
        cost_usd = None if option.prediction is None else option.prediction.cost_usd
        found.append(
            _Estimate(
                inf if cost_usd is None else cost_usd,
                worst if quality is None else quality,
                p_miss(option),
                expected_s(option, 0.0),
            )
        )
    return found


def _by_model(options: Sequence[Option], estimates: Sequence[_Estimate]) -> list[tuple[str, float, float]]:
    """(model, quality, cost) of each model's cheapest option, ordered by name. Options of unknown price are left out."""
    cheapest: dict[str, _Estimate] = {}
    for option, each in zip(options, estimates, strict=True):
        model = option.candidate.model
        if each.cost_usd < inf and (model not in cheapest or each.cost_usd < cheapest[model].cost_usd):
            cheapest[model] = each
    return [(model, cheapest[model].quality, cheapest[model].cost_usd) for model in sorted(cheapest)]


def _share_in_use(instance: Instance) -> float | None:
    """Share of an instance's capacity in use; above 1 while requests wait there. None if unknown."""
    if instance.max_concurrency:
        return instance.running / instance.max_concurrency
    waiting = instance.report.waiting
    if waiting is None:
        return None
    return instance.running / max(instance.running - waiting, 1) if waiting else 0.0


def _reason(estimate: _Estimate, equal: bool, taken: str) -> str:
    return "same value but not faster" if equal else f"lower value: {_format(estimate)}, against {taken}"


def _format(estimate: _Estimate) -> str:
    usd = format_usd(None if estimate.cost_usd == inf else estimate.cost_usd)
    return f"{usd} for quality {estimate.quality:.2f} and P(miss) {estimate.miss:.2f}"
