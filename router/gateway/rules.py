"""What a fleet file fixes for the reading of requests; built anew as a whole on a reload."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Self

from router.config import FleetConfig
from router.core.types import Request
from router.gateway.keys import KeyRing
from router.gateway.prompt import PromptFacts
from router.gateway.wish import Defaults, KeyTerms, ModelNames, Wish, WishRules
from router.store.state import State


def session_id(key: str | None, told: str) -> str:
    """What stands for a client's conversation: not its own word, which is no business of a log's, and never that of
    another key."""
    scope = b"" if key is None else hashlib.sha256(key.encode()).digest()
    return hashlib.sha256(scope + told.encode("utf-8", "surrogatepass")).hexdigest()[:32]


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

    def request(
        self,
        wish: Wish,
        facts: PromptFacts,
        *,
        request_id: str,
        arrived_at: float,
        max_tokens: int | None,
        key: str | None = None,
        decodes: bool = True,
        choices: int = 1,
        hedges: bool = True,
        session: str | None = None,
    ) -> Request:
        """What the scheduler gets of a request; `arrived_at` in seconds on the runner's clock. `session` is the
        client's own word for the conversation."""
        models = wish.models
        fallbacks = tuple(
            dict.fromkeys(name for model in models for name in self.fallbacks[model] if name not in models)
        )
        return Request(
            id=request_id,
            arrived_at=arrived_at,
            policy=wish.policy,
            models=models,
            fallbacks=fallbacks,
            prompt_tokens=facts.tokens,
            prompt_tokens_bound=facts.tokens_bound,
            longest_prompt_tokens=facts.longest_tokens,
            max_tokens=max_tokens,
            slo=wish.slo,
            hard=wish.hard,
            max_cost_usd=wish.max_cost_usd,
            min_quality=wish.min_quality,
            priority=wish.priority,
            seed=wish.seed,
            key=key,
            expires_at=arrived_at + self.config.limits.request_timeout_s,
            decodes=decodes,
            choices=choices,
            hedges=hedges,
            session=None if session is None else session_id(key, session),
            prefix=facts.prefix,
            features=facts.features,
        )
