"""What a fleet file fixes for the reading of requests; built anew as a whole on a reload."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from router.config import FleetConfig
from router.core.types import Need, Request
from router.gateway.http.callers import OwnPages
from router.gateway.http.fields import FieldRules
from router.gateway.keys.accounts import Account
from router.gateway.keys.keyring import KeyRing
from router.gateway.keys.tenants import Tenants
from router.request.prompt import PromptFacts
from router.request.routing_params import Defaults, KeyTerms, ModelNames, RoutingParams, RoutingRules
from router.store.keys import StoredKey
from router.store.state import State

logger = logging.getLogger("headway")


def session_id(key: str | None, told: str) -> str:
    """What stands for a client's conversation: not its own word, which is no business of a log's, and never that of
    another key."""
    scope = b"" if key is None else hashlib.sha256(key.encode()).digest()
    return hashlib.sha256(scope + told.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def salted(prefix: tuple[int, ...], salt: int) -> tuple[int, ...]:
    """Hashes of a prompt's leading blocks as one key's: no other key's prompts have the same, so no prediction tells one
    key what another has asked."""
    return tuple([block ^ salt for block in prefix]) if salt and prefix else prefix


def _salt(purpose: str, sha256: str) -> bytes:
    """The same at all replicas, and not to be guessed without the key."""
    return hashlib.sha256(purpose.encode() + bytes.fromhex(sha256)).digest()


@dataclass(frozen=True, slots=True)
class Rules:
    """`terms` are by the name of a key that works. `accounts` are by the name of any key that is known: what a dead one
    spent counts for those that made it. `fallbacks` are by model; `created` is when the fleet was read (seconds since the
    epoch), `least_context_tokens` the shortest context of any candidate. `stored` are the keys that are not of the fleet
    file, `state` knows what is left of limits and budgets, `pages` which web pages may ask while no key is needed,
    `fields` what bodies must not hold."""

    config: FleetConfig
    pages: OwnPages
    fields: FieldRules
    names: ModelNames
    routing_rules: RoutingRules
    state: State
    stored: Sequence[StoredKey]
    tenants: Tenants
    keys: KeyRing
    terms: dict[str, KeyTerms]
    accounts: Mapping[str, Account]
    fallbacks: dict[str, tuple[str, ...]]
    created: int
    least_context_tokens: int | None

    @classmethod
    def of(
        cls,
        config: FleetConfig,
        policies: tuple[str, ...],
        state: State,
        stored: Sequence[StoredKey] = (),
    ) -> Self:
        """The rules of a fleet. `policies` are the known names; `state` knows what is left of the keys' limits, which a
        change of the fleet must not refill. `stored` are the keys that were made while the gateway ran."""
        names = ModelNames(
            [model.name for model in config.models],
            {alias: model.name for model in config.models for alias in model.aliases},
            policies,
        )
        defaults = config.defaults
        server = Defaults(defaults.policy, defaults.slo.slo() if defaults.slo else None, defaults.on_miss)
        contexts = [
            candidate.context_tokens
            for instance in config.instances
            for candidate in config.candidates(instance).values()
            if candidate.context_tokens is not None
        ]
        return cls(
            config=config,
            pages=OwnPages(config.server.host, config.server.allowed_hosts),
            fields=FieldRules(config.limits.forbidden_fields, config.limits.media_urls),
            names=names,
            routing_rules=RoutingRules(
                names,
                server,
                {model.name: Defaults(slo=model.slo.slo()) for model in config.models if model.slo},
            ),
            state=state,
            stored=stored,
            **_keys(config, names, stored),
            fallbacks={model.name: model.fallbacks for model in config.models},
            created=int(time.time()),
            least_context_tokens=min(contexts, default=None),
        )

    def with_keys(self, stored: Sequence[StoredKey]) -> Self:
        """The same rules with other keys beside those of the fleet file. Closed rules stay closed, whatever the keys."""
        if stored is self.stored:
            return self
        rules = replace(self, stored=stored, **_keys(self.config, self.names, stored, self.tenants.left_out))
        rules.stay_closed(self)
        return rules

    def stay_closed(self, before: Rules) -> None:
        """Need a key, also without any that works, if the rules before needed one."""
        if not before.keys.open:
            self.keys.close()

    def request(
        self,
        params: RoutingParams,
        facts: PromptFacts,
        *,
        request_id: str,
        arrived_at: float,
        max_tokens: int | None,
        key: str | None = None,
        decodes: bool = True,
        choices: int = 1,
        hedges: bool = True,
        client_streams: bool = True,
        engine_streams: bool = True,
        needs: tuple[Need, ...] = (),
        session: str | None = None,
    ) -> Request:
        """What the scheduler gets of a request; `arrived_at` in seconds on the runner's clock. `session` is the
        client's own word for the conversation."""
        models = params.models
        terms = None if key is None else self.terms.get(key)
        allowed = None if terms is None else terms.models
        fallbacks = tuple(
            dict.fromkeys(
                name
                for model in models
                for name in self.fallbacks[model]
                if name not in models and (allowed is None or name in allowed)
            )
        )
        return Request(
            id=request_id,
            arrived_at=arrived_at,
            policy=params.policy,
            models=models,
            fallbacks=fallbacks,
            prompt_tokens=facts.tokens,
            prompt_tokens_bound=facts.tokens_bound,
            longest_prompt_tokens=facts.longest_tokens,
            max_tokens=max_tokens,
            slo=params.slo,
            hard=params.hard,
            max_cost_usd=params.max_cost_usd,
            min_quality=params.min_quality,
            priority=params.priority,
            seed=params.seed,
            key=key,
            owner=None if terms is None else terms.owner,
            cache_salt=None if terms is None else terms.cache_salt,
            expires_at=arrived_at + self.config.limits.request_timeout_s,
            decodes=decodes,
            choices=choices,
            needs=needs,
            hedges=hedges,
            client_streams=client_streams,
            engine_streams=engine_streams,
            session=None if session is None else session_id(key, session),
            prefix=facts.prefix if terms is None else salted(facts.prefix, terms.prefix_salt),
            features=facts.features,
        )


def _keys(
    config: FleetConfig, names: ModelNames, stored: Sequence[StoredKey], told: Sequence[str] = ()
) -> dict[str, Any]:
    """The members of `Rules` that say who may ask, and for what. `told` has been logged before."""
    tenants = Tenants(config.auth.keys, stored, names.name_of)
    for reason in tenants.left_out:
        if reason not in told:
            logger.warning("%s", reason)
    live = [tenants.effective(tenant.name) for tenant in tenants if tenants.alive(tenant.name)]
    terms = {}
    for key in live:
        policy = key.policy
        if policy is not None and policy not in names.policies:
            logger.warning("key %s: there is no policy %s; the default holds", key.name, policy)
            policy = None
        terms[key.name] = KeyTerms(
            key.name,
            policy,
            key.locked,
            key.max_cost_usd,
            key.min_quality,
            key.max_priority,
            None if key.models is None else frozenset(key.models),
            tenants.chain(key.name)[-1].name,
            0 if config.auth.share_prefixes else int.from_bytes(_salt("prefix", key.sha256)[:4], "big"),
            _salt("cache", key.sha256).hex() if config.auth.cache_salt else None,
        )
    return {
        "tenants": tenants,
        "keys": KeyRing(live, closed=bool(config.auth.required or config.auth.keys or stored)),
        "terms": terms,
        "accounts": {tenant.name: tenants.account(tenant.name) for tenant in tenants},
    }
