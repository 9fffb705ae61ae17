"""What a fleet file fixes for the reading of requests; built anew as a whole on a reload."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from router.config import FleetConfig
from router.gateway.http.own_pages import OwnPages
from router.gateway.keys.accounts import Account
from router.gateway.keys.keyring import KeyRing
from router.gateway.keys.tenants import Tenants
from router.request.field_rules import FieldRules
from router.request.key_terms import KeyTerms
from router.request.model_names import ModelNames
from router.request.routing_params import Defaults, RoutingRules
from router.store.keys import StoredKey
from router.store.state import State

logger = logging.getLogger("headway")


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
