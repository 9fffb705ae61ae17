"""Policies by the names that clients use.

To add one: a file with a plain object that has `name`, `predicts`, `choose` and `taken`
(`router.core.interfaces.Policy`), one line here, one table test.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.latency import LeastLatency
from policies.least_load import LeastLoad
from policies.lmetric import LMetric
from policies.power_of_two import PowerOfTwo
from policies.price import LeastPrice
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin
from policies.settings import PolicySettings
from policies.slo import BestFit
from router.core.interfaces import Policy

POLICIES: dict[str, Callable[[PolicySettings], Policy]] = {
    "random": lambda settings: RandomChoice(),
    "round_robin": lambda settings: RoundRobin(),
    "least_load": lambda settings: LeastLoad(),
    "power_of_two": lambda settings: PowerOfTwo(),
    "lmetric": lambda settings: LMetric(settings.cached_tokens),
    "price": lambda settings: LeastPrice(),
    "latency": lambda settings: LeastLatency(settings.epsilon, settings.ttft_weight),
    "slo": lambda settings: BestFit(settings.epsilon),
}


def create_all(settings: PolicySettings | None = None) -> dict[str, Policy]:
    """One object of each policy, by name."""
    settings = settings or PolicySettings()
    return {name: create(settings) for name, create in POLICIES.items()}


__all__ = ["POLICIES", "PolicySettings", "create_all"]
