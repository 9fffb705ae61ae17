"""The registry of policies, by the names that clients use. CONTRIBUTING.md shows how to add one."""

from __future__ import annotations

from collections.abc import Callable

from policies.best_single import BestSingle
from policies.budget_online import BudgetOnline
from policies.cost import LeastSpend
from policies.eccos import Eccos
from policies.expected import ExpectedTime
from policies.latency import LeastLatency
from policies.least_load import LeastLoad
from policies.llm_router_rr import LLMRouter
from policies.lmetric import LMetric
from policies.power_of_two import PowerOfTwo
from policies.predicted_latency import PredictedLatency
from policies.price import LeastPrice
from policies.priced_picker import PricedPicker
from policies.random_choice import RandomChoice
from policies.relevance import BestQuality
from policies.round_robin import RoundRobin
from policies.settings import PolicySettings
from policies.slo import BestFit
from router.core.interfaces import Policy


def _time(settings: PolicySettings) -> ExpectedTime:
    return ExpectedTime(settings.ttft_weight, settings.cached_tokens)


POLICIES: dict[str, Callable[[PolicySettings], Policy]] = {
    "random": lambda settings: RandomChoice(),
    "round_robin": lambda settings: RoundRobin(),
    "least_load": lambda settings: LeastLoad(),
    "power_of_two": lambda settings: PowerOfTwo(),
    "lmetric": lambda settings: LMetric(settings.cached_tokens),
    "length_groups": lambda settings: LeastLatency(
        settings.epsilon, ExpectedTime(0.0, settings.cached_tokens), "length_groups"
    ),
    "price": lambda settings: LeastPrice(),
    "latency": lambda settings: LeastLatency(settings.epsilon, _time(settings)),
    "slo": lambda settings: BestFit(settings.epsilon, _time(settings), settings.cached_tokens),
    "relevance": lambda settings: BestQuality(settings.epsilon),
    "cost": lambda settings: LeastSpend(settings.targets, settings.epsilon, settings.cached_tokens),
    "predicted_latency": lambda settings: PredictedLatency(settings.tree_times),
    "most_headroom": lambda settings: PredictedLatency(settings.tree_times, most=True),
    "best_single": BestSingle,
    "eccos_rr": lambda settings: Eccos("eccos_rr", "eccos_t", settings),
    "eccos_r_rr": lambda settings: Eccos("eccos_r_rr", "eccos_r", settings),
    "llm_router_rr": LLMRouter,
    "knn_rr": lambda settings: PricedPicker("knn_rr", "knn", settings),
    "clusters_rr": lambda settings: PricedPicker("clusters_rr", "clusters", settings),
    "logistic_rr": lambda settings: PricedPicker("logistic_rr", "logistic", settings),
    "budget_online": BudgetOnline,
}


def create_all(settings: PolicySettings | None = None) -> dict[str, Policy]:
    """One object of each policy, by name."""
    settings = settings or PolicySettings()
    return {name: create(settings) for name, create in POLICIES.items()}


__all__ = ["POLICIES", "PolicySettings", "create_all"]
