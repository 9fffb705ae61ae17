"""What a fleet file fixes for the reading of requests; built anew as a whole on a reload."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from router.config import FleetConfig
from router.gateway.keys import KeyRing
from router.gateway.wish import Defaults, KeyTerms, ModelNames, WishRules
from router.store.state import State


@dataclass(frozen=True, slots=True)
class Rules:
    """`terms` and `budgets` (USD a day) are by key name, `fallbacks` by model; `created` is when the fleet was
    read (seconds since the epoch), `least_context_tokens` the shortest context of any candidate."""

    config: FleetConfig
    names: ModelNames
    wishes: WishRules
    keys: KeyRing
    terms: dict[str, KeyTerms]
    budgets: dict[str, float]
    fallbacks: dict[str, tuple[str, ...]]
    created: int
    least_context_tokens: int | None

    @classmethod
    def of(cls, config: FleetConfig, policies: tuple[str, ...], state: State) -> Self:
        """The rules of a fleet. `policies` are the known names; `state` holds the rate limits, which a change
        of the fleet must not refill."""
        names = ModelNames(
            [model.name for model in config.models],
            {alias: model.name for model in config.models for alias in model.aliases},
            policies,
        )
        defaults, keys = config.defaults, config.auth.keys
        server = Defaults(defaults.policy, defaults.slo.slo() if defaults.slo else None, defaults.on_miss)
        contexts = [
            candidate.context_tokens
            for instance in config.instances
            for candidate in config.candidates(instance).values()
            if candidate.context_tokens is not None
        ]
        return cls(
            config=config,
            names=names,
            wishes=WishRules(
                names,
                server,
                {model.name: Defaults(slo=model.slo.slo()) for model in config.models if model.slo},
            ),
            keys=KeyRing(keys, state),
            terms={
                key.name: KeyTerms(
                    key.name, key.policy, key.locked, key.max_cost_usd, key.min_quality, key.max_priority
                )
                for key in keys
            },
            budgets={key.name: key.budget_usd_per_day for key in keys if key.budget_usd_per_day is not None},
            fallbacks={model.name: model.fallbacks for model in config.models},
            created=int(time.time()),
            least_context_tokens=min(contexts, default=None),
        )
