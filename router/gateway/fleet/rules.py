"""What the fleet file and the clients' keys fix for each request. A reload or a change of keys makes new rules."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypedDict

from policies.second_look import dprime
from router.config import FleetConfig, KeyConfig
from router.config.sections import SecondLookConfig
from router.core.types import AnswerCheck, Candidate, Price
from router.gateway.http.own_pages import OwnPages
from router.gateway.keys.accounts import Account
from router.gateway.keys.keyring import KeyRing
from router.gateway.keys.tenants import Tenants
from router.judging import FORM_TOKENS, USUAL_VERDICT_TOKENS
from router.request.field_rules import FieldRules
from router.request.model_names import ModelNames
from router.request.routing_params import Defaults, KeyTerms, RoutingRules
from router.store.keys import StoredKey

logger = logging.getLogger("headway")


class WorkingKey(NamedTuple):
    """A key that works: its effective settings, the terms of its requests, and what they count against."""

    settings: KeyConfig
    terms: KeyTerms
    account: Account


class _KeyRules(TypedDict):
    """The fields of `Rules` that depend on keys."""

    tenants: Tenants
    keys: KeyRing
    working: Mapping[str, WorkingKey]


@dataclass(frozen=True, slots=True)
class Rules:
    """One version of the rules.

    `pages`: the web pages that may call while no key is needed. `fields`: members that bodies must not have.
    `stored`: the keys that are not in the fleet file. `working`: the keys that work, by name. `created`: when the fleet was
    read, in seconds since the epoch. `least_context_tokens`: the shortest context of any candidate.
    `most_context_tokens`: the longest one (None: one is unknown). `check`: how answers may be checked before their clients
    get them (None: they are not). The fields after it are settings of `config` that each request needs: to read them there
    takes ten times as long.
    """

    config: FleetConfig
    pages: OwnPages
    fields: FieldRules
    names: ModelNames
    routing_rules: RoutingRules
    stored: Sequence[StoredKey]
    tenants: Tenants
    keys: KeyRing
    working: Mapping[str, WorkingKey]
    created: int
    least_context_tokens: int | None
    most_context_tokens: int | None
    check: AnswerCheck | None
    max_body_mb: float
    request_timeout_s: float
    keep_prompts: bool
    refuse_when_full: bool
    log_requests: bool

    @classmethod
    def of(
        cls,
        config: FleetConfig,
        policies: tuple[str, ...],
        stored: Sequence[StoredKey] = (),
        candidates: Sequence[Candidate] | None = None,
        before: Rules | None = None,
    ) -> Self:
        """The rules of a fleet file and of keys made at run time (`stored`). `policies` are the known policies, `candidates` all
        of the fleet (None: they are made here). What `before` has of keys stays, unless the file's keys or models differ."""
        if candidates is None:
            candidates = [one for each in config.instances for one in config.candidates(each).values()]
        host = (
            config.server.host if before is None else before.pages.host
        )  # a reload does not move the listener
        if before is not None and (before.config.auth, before.config.models) != (config.auth, config.models):
            before = None
        names = ModelNames(
            [model.name for model in config.models],
            {alias: model.name for model in config.models for alias in model.aliases},
            policies,
        )
        defaults = config.defaults
        server = Defaults(defaults.policy, defaults.slo.slo() if defaults.slo else None, defaults.on_miss)
        contexts = [each.context_tokens for each in candidates]
        known = [each for each in contexts if each is not None]
        return cls(
            config=config,
            pages=OwnPages(host, config.server.allowed_hosts),
            fields=FieldRules(config.limits.forbidden_fields, config.limits.media_urls),
            names=names,
            routing_rules=RoutingRules(
                names,
                server,
                {model.name: Defaults(slo=model.slo.slo()) for model in config.models if model.slo},
                {model.name: model.fallbacks for model in config.models},
            ),
            stored=stored,
            **_key_rules(config, names, stored, before),
            created=int(time.time()),
            least_context_tokens=min(known, default=None),
            most_context_tokens=max(known, default=None) if len(known) == len(contexts) else None,
            check=None if config.second_look is None else _check(config, config.second_look, candidates),
            max_body_mb=config.limits.max_body_mb,
            request_timeout_s=config.limits.request_timeout_s,
            keep_prompts=config.store.keep_prompts,
            refuse_when_full=config.store.when_full == "refuse",
            log_requests=config.observability.log_requests,
        )

    def with_keys(self, stored: Sequence[StoredKey]) -> Self:
        """The same rules with other keys beside those of the fleet file."""
        return replace(self, stored=stored, **_key_rules(self.config, self.names, stored, self))


def _key_rules(
    config: FleetConfig, names: ModelNames, stored: Sequence[StoredKey], before: Rules | None = None
) -> _KeyRules:
    """The rules of all keys that work. `before` are the rules before a change of `stored`: their warnings were logged, and what
    they have of keys whose chains are the same still holds."""
    if before is not None and stored is before.stored:
        return {"tenants": before.tenants, "keys": before.keys, "working": before.working}
    known_tenants, known_keys = (Tenants(), {}) if before is None else (before.tenants, before.working)
    tenants = Tenants(config.auth.keys, stored, names.name_of, known_tenants)
    for reason in tenants.left_out:
        if reason not in known_tenants.left_out:
            logger.warning("%s", reason)
    working: dict[str, WorkingKey] = {}
    for name, chain in tenants.alive_chains():
        known = known_keys.get(name)
        if known is None or any(known_tenants.get(each.name) is not each for each in chain):
            key = tenants.effective(name)
            known = WorkingKey(key, _terms(config, names, key, chain[-1].name), tenants.account(name))
        working[name] = known
    closed = bool(config.auth.required or config.auth.keys or stored)
    ring = KeyRing([each.settings for each in working.values()], closed=closed)
    return {"tenants": tenants, "keys": ring, "working": working}


def _terms(config: FleetConfig, names: ModelNames, key: KeyConfig, owner: str) -> KeyTerms:
    """The terms of a key whose effective settings are `key`; `owner` is the operator's key at the top of its chain."""
    policy = key.policy
    if policy is not None and policy not in names.policies:
        logger.warning("key %s: there is no policy %s; the default applies", key.name, policy)
        policy = None
    return KeyTerms(
        key.name,
        policy,
        key.locked,
        key.max_cost_usd,
        key.min_quality,
        key.max_priority,
        None if key.models is None else frozenset(key.models),
        owner,
        0 if config.auth.share_prefixes else int.from_bytes(_salt("prefix", key.sha256)[:4], "big"),
        _salt("cache", key.sha256).hex() if config.auth.cache_salt else None,
    )


def _check(config: FleetConfig, wanted: SecondLookConfig, candidates: Sequence[Candidate]) -> AnswerCheck:
    """How answers are checked. The price is that of the model's most expensive candidate."""
    model = config.model(wanted.model)
    assert model is not None  # noqa: S101 (the fleet file is checked for it)
    prices = [Price() if model.price is None else model.price.price()]
    prices += [each.price for each in candidates if each.model == model.name]
    price = max(prices, key=lambda each: each.cost_usd(FORM_TOKENS, USUAL_VERDICT_TOKENS))
    return AnswerCheck(dprime(wanted.auc), price, FORM_TOKENS, USUAL_VERDICT_TOKENS, wanted.timeout_s)


def _salt(purpose: str, sha256: str) -> bytes:
    """A salt that all replicas derive alike, and that nobody can guess without the key."""
    return hashlib.sha256(purpose.encode() + bytes.fromhex(sha256)).digest()
