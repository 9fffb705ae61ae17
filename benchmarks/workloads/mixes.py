"""Routing parameters of requests: SLO classes, budgets, a policy. Drawn for each request by a hash of seed and id,
so that a request keeps them whatever else is in the workload.

A budget is an amount of USD, or a class: a multiple of what such a request is expected to cost, which is its
prompt and the workload's mean answer at a given tariff. (Its own answer's length is nothing a client knows.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from router.core.quoting import quoted

_TARGETS = ("ttft_ms", "tpot_ms", "e2e_ms")
#: Targets that classes multiply when none are given: an interactive chat's.
DEFAULT_SLO: Mapping[str, float] = {"ttft_ms": 2000.0, "tpot_ms": 80.0}
#: What the named classes multiply the targets, or the expected cost, by.
CLASS_FACTORS: Mapping[str, float] = {"tight": 0.5, "normal": 1.0, "loose": 3.0}


def unit_draw(seed: int, purpose: str, identity: str) -> float:
    """A number in [0, 1) that depends on its arguments only."""
    digest = blake2b(f"{seed}\x1f{purpose}\x1f{identity}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def parse_slo(text: str) -> dict[str, float]:
    """`ttft_ms=800,tpot_ms=50` as {"ttft_ms": 800.0, "tpot_ms": 50.0}."""
    slo: dict[str, float] = {}
    for name, value in _pairs(text, "--slo"):
        if name not in _TARGETS:
            raise WorkloadError(f"--slo: unknown target {name!r} (known: {', '.join(_TARGETS)})")
        slo[name] = _positive(value, f"--slo {name}")
    return slo


def parse_shares(text: str, option: str) -> dict[str, float]:
    """`tight=0.2,none=0.8` as shares that add up to 1."""
    shares = parse_amounts(text, option)
    if abs(math.fsum(shares.values()) - 1) > 1e-6:
        raise WorkloadError(f"{option}: the shares add up to {math.fsum(shares.values()):g}, not to 1")
    return shares


def parse_amounts(text: str, option: str) -> dict[str, float]:
    """`sharegpt=0.2,arxiv=0.1` as numbers of at least 0."""
    amounts: dict[str, float] = {}
    for name, value in _pairs(text, option):
        amount = _number(value, f"{option} {name}")
        if amount < 0:
            raise WorkloadError(f"{option}: {name}={amount:g} is below 0")
        amounts[name] = amount
    return amounts


def parse_class(text: str, base: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """`tight=0.5` (a multiple of `base`) or `tight:ttft_ms=500,tpot_ms=30` (targets) as (name, targets)."""
    name, colon, targets = text.partition(":")
    if colon:
        return name.strip(), parse_slo(targets)
    name, equals, factor = text.partition("=")
    if not equals:
        raise WorkloadError(f"--slo-class {text!r}: expected NAME=FACTOR or NAME:ttft_ms=..,tpot_ms=..")
    multiple = _positive(factor, f"--slo-class {name}")
    return name.strip(), {target: value * multiple for target, value in base.items()}


def _pairs(text: str, option: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for item in text.split(","):
        name, equals, value = item.partition("=")
        name = name.strip()
        if not equals or not name:
            raise WorkloadError(f"{option}: expected NAME=NUMBER[,NAME=NUMBER...], got {text!r}")
        if name in seen:
            raise WorkloadError(f"{option}: {name!r} is given twice")
        seen.add(name)
        yield name, value


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise WorkloadError(f"{what}: {text.strip()!r} is not a number")
    return number


def _positive(text: str, what: str) -> float:
    number = _number(text, what)
    if number <= 0:
        raise WorkloadError(f"{what}: must be above 0 (given: {quoted(number)})")
    return number


def _tariff(text: str) -> tuple[float, float]:
    prices = [_positive(price, "--budget-tariff") for price in text.split(",")]
    if len(prices) != 2:
        raise WorkloadError(f"--budget-tariff: expected INPUT,OUTPUT in USD per million tokens, got {text!r}")
    return prices[0], prices[1]


@dataclass(frozen=True, slots=True)
class RoutingMix:
    """What is added to requests. `slo_shares` and `budget_shares` are drawn from; `slo` alone is for all."""

    slo: Mapping[str, float] | None = None
    slo_shares: Mapping[str, float] | None = None
    slo_classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    budget_shares: Mapping[str, float] | None = (
        None  # {"0.001": 0.3, "tight": 0.2, "none": 0.5}, USD or class
    )
    tariff_usd_per_mtok: tuple[float, float] | None = None  # of input and output, for budget classes
    policy: str | None = None
    on_miss: str | None = None
    min_quality: float | None = None
    quality_shares: Mapping[str, float] | None = None  # {"0.7": 0.3, "none": 0.7}, floors

    @classmethod
    def of(
        cls,
        *,
        slo: str | None = None,
        slo_mix: str | None = None,
        slo_class: Iterable[str] = (),
        budget_mix: str | None = None,
        budget_tariff: str | None = None,
        policy: str | None = None,
        on_miss: str | None = None,
        min_quality: float | None = None,
        quality_mix: str | None = None,
    ) -> RoutingMix:
        given = parse_slo(slo) if slo else None
        base = given or DEFAULT_SLO
        classes: dict[str, dict[str, float]] = {
            name: {target: value * factor for target, value in base.items()}
            for name, factor in CLASS_FACTORS.items()
        }
        classes.update(parse_class(text, base) for text in slo_class)
        shares = parse_shares(slo_mix, "--slo-mix") if slo_mix else None
        for name in shares or ():
            if name != "none" and name not in classes:
                raise WorkloadError(
                    f"--slo-mix: unknown class {name!r}; define it with --slo-class {name}=FACTOR"
                )
        budgets = parse_shares(budget_mix, "--budget-mix") if budget_mix else None
        tariff = _tariff(budget_tariff) if budget_tariff else None
        for amount in budgets or ():
            if amount in CLASS_FACTORS:
                if tariff is None:
                    raise WorkloadError(
                        f"--budget-mix: {amount} needs --budget-tariff INPUT,OUTPUT (USD per million tokens)"
                    )
            elif amount != "none":
                _positive(amount, "--budget-mix")
        floors = parse_shares(quality_mix, "--quality-mix") if quality_mix else None
        if floors and min_quality is not None:
            raise WorkloadError("--min-quality and --quality-mix cannot both be given")
        for floor in floors or ():
            if floor != "none" and _positive(floor, "--quality-mix") > 1:
                raise WorkloadError(f"--quality-mix: {floor} is above 1")
        return cls(given, shares, classes, budgets, tariff, policy, on_miss, min_quality, floors)

    def as_dict(self) -> dict[str, Any]:
        """What is set, for a header."""
        mixed = self.slo_shares is not None
        given = {
            "slo_mix": self.slo_shares,
            "slo_classes": {name: self.slo_classes[name] for name in self.slo_shares or () if name != "none"},
            "slo": self.slo,
            "budget_mix_usd": self.budget_shares,
            "budget_tariff_usd_per_mtok": self.tariff_usd_per_mtok and list(self.tariff_usd_per_mtok),
            "quality_mix": self.quality_shares,
            "policy": self.policy,
            "on_miss": self.on_miss,
            "min_quality": self.min_quality,
        }
        ineffective = "slo" if mixed else "slo_classes"
        return {name: value for name, value in given.items() if value is not None and name != ineffective}

    def apply(
        self, requests: Iterable[WorkloadRequest], seed: int, mean_output_tokens: float | None = None
    ) -> Iterator[WorkloadRequest]:
        """The requests with their routing parameters added. Budget classes need the workload's mean answer, in tokens."""
        for request in requests:
            parameters = self._drawn(request, seed, mean_output_tokens)
            yield request.with_routing(**parameters) if parameters else request

    def _drawn(self, request: WorkloadRequest, seed: int, mean_output_tokens: float | None) -> dict[str, Any]:
        identity = request.id
        parameters: dict[str, Any] = {}
        if self.policy is not None:
            parameters["policy"] = self.policy
        if self.slo_shares is not None:
            name = _choice(self.slo_shares, unit_draw(seed, "slo", identity))
            if name != "none":
                parameters["slo"] = dict(self.slo_classes[name])
        elif self.slo is not None:
            parameters["slo"] = dict(self.slo)
        if self.on_miss is not None and "slo" in parameters:
            parameters["on_miss"] = self.on_miss
        if self.budget_shares is not None:
            amount = _choice(self.budget_shares, unit_draw(seed, "budget", identity))
            if amount in CLASS_FACTORS:
                parameters["max_cost_usd"] = CLASS_FACTORS[amount] * self._expected_usd(
                    request, mean_output_tokens
                )
            elif amount != "none":
                parameters["max_cost_usd"] = float(amount)
        if self.min_quality is not None:
            parameters["min_quality"] = self.min_quality
        elif self.quality_shares is not None:
            floor = _choice(self.quality_shares, unit_draw(seed, "quality", identity))
            if floor != "none":
                parameters["min_quality"] = float(floor)
        return parameters

    def _expected_usd(self, request: WorkloadRequest, mean_output_tokens: float | None) -> float:
        if mean_output_tokens is None:
            raise WorkloadError("--budget-mix: a class needs a workload whose answer lengths are known")
        input_usd, output_usd = self.tariff_usd_per_mtok or (0.0, 0.0)
        return (input_usd * request.prompt_tokens + output_usd * mean_output_tokens) / 1e6


def _choice(shares: Mapping[str, float], draw: float) -> str:
    """The name whose part of [0, 1) `draw` falls in."""
    reached = 0.0
    chosen = ""
    for name, share in shares.items():
        if share > 0:
            chosen = name
        reached += share
        if draw < reached:
            return name
    return chosen
