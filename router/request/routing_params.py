"""Merges a client's routing parameters with the operator's defaults and caps.

A client gives parameters in the body's `routing` object, in headers (`router.request.routing_input` reads both), and in the
model name (`auto`, `auto:latency`, `NAME:policy`). Precedence:

    operator's lock > body > headers > suffix > key's default > model's default > server's default

A null or absent field leaves the choice to the next level. A given `slo` replaces the complete default, so `"slo": {}`
means no target. `models` replaces the model of the request's `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from router.core.errors import invalid_request
from router.core.quoting import quoted
from router.core.types import Slo
from router.request.model_names import ModelNames
from router.request.routing_input import OnMiss, RoutingInput

_NO_TARGET = Slo()


@dataclass(frozen=True, slots=True, eq=False)
class KeyTerms:
    """A client key's default policy and caps. There is one object for each key, compared by identity.

    `locked`: clients cannot choose the policy (the key's applies, else the model's or the server's default).
    `max_cost_usd`, `min_quality` and `max_priority` are caps that a client may tighten. `models` are the fleet's models that
    the key may use (None: all); others do not exist for it. `owner` is the operator's key above it, or itself. `prefix_salt`
    separates its prompt hashes from those of other keys, `cache_salt` its prompts in engines' caches.
    """

    name: str | None = None
    policy: str | None = None
    locked: bool = False
    max_cost_usd: float | None = None
    min_quality: float | None = None
    max_priority: int | None = None
    models: frozenset[str] | None = None
    owner: str | None = None
    prefix_salt: int = 0
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class RoutingParams:
    """The merged parameters. `models` are fleet names, never empty. `slo` is None without a target. `hard`: a missed target
    refuses or ends the request. `on_miss` is None where nobody sets it. `fallbacks` are tried in order when none of `models`
    can serve."""

    policy: str
    models: tuple[str, ...]
    slo: Slo | None = None
    hard: bool = False
    max_cost_usd: float | None = None
    min_quality: float | None = None
    priority: int = 0
    seed: int | None = None
    on_miss: OnMiss | None = None
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults of the server or of one model; None leaves a value to the next level."""

    policy: str | None = None
    slo: Slo | None = None
    on_miss: OnMiss | None = None


# --- merging -----------------------------------------------------------------------------------------
_NOTHING = RoutingInput()
_OPEN = KeyTerms()
_CACHED = 10_000
_CACHED_NAMES = 1_000


class RoutingRules:
    """Merges parameters with the defaults of one version of the fleet.

    `server` must name a policy; `models` has the defaults of those models that have any, `fallbacks` the fallbacks.
    """

    def __init__(
        self,
        names: ModelNames,
        server: Defaults,
        models: Mapping[str, Defaults] | None = None,
        fallbacks: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if server.policy is None:
            raise ValueError("the server's defaults must name a policy")
        self.names = names
        self._server_policy = server.policy
        self._server = server
        self._models = dict(models or {})
        self._fallbacks = dict(fallbacks or {})
        self._merge_plain = lru_cache(_CACHED)(self._merge)
        self._defaults = lru_cache(_CACHED)(self._joint_defaults)
        self._only = lru_cache(_CACHED_NAMES)(names.only)

    def names_for(self, key: KeyTerms | None) -> ModelNames:
        """The model names that exist for a key."""
        models = None if key is None else key.models
        return self.names if models is None else self._only(models)

    def merge(
        self,
        model: object,
        key: KeyTerms | None = None,
        body: RoutingInput | None = None,
        headers: RoutingInput | None = None,
    ) -> RoutingParams:
        """The parameters of one request for `model` with `key` (None on an open gateway).

        Raises the Refusals of `ModelNames.resolve`, and a 400 for an unknown policy or an unknown name in `models`, with
        `param` naming the field.
        """
        terms = _OPEN if key is None else key
        if body is None and headers is None and isinstance(model, str):
            return self._merge_plain(model, terms)
        return self._merge(model, terms, body or _NOTHING, headers or _NOTHING)

    def _merge(
        self, model: object, key: KeyTerms, body: RoutingInput = _NOTHING, headers: RoutingInput = _NOTHING
    ) -> RoutingParams:
        names = self.names_for(key)
        models, suffix = names.resolve(model)
        # Both are checked, also the one that another overrides.
        self._check_policy(body.policy, "routing.policy")
        self._check_policy(headers.policy, "x-headway-policy")
        header_models = _named(names, headers.models, "x-headway-models")
        models = _named(names, body.models, "routing.models") or header_models or models

        default = self._defaults(models)
        policy = key.policy or default.policy or self._server_policy
        if not key.locked:
            policy = body.policy or headers.policy or suffix or policy
        slo = default.slo if headers.slo is None else headers.slo
        slo = slo if body.slo is None else body.slo
        if slo == _NO_TARGET:
            slo = None
        on_miss = body.on_miss or headers.on_miss or default.on_miss

        priority = headers.priority if body.priority is None else body.priority
        priority = 0 if priority is None else priority
        if key.max_priority is not None:
            priority = min(priority, key.max_priority)
        cost_usd = headers.max_cost_usd if body.max_cost_usd is None else body.max_cost_usd
        quality = headers.min_quality if body.min_quality is None else body.min_quality
        return RoutingParams(
            policy=policy,
            models=models,
            slo=slo,
            hard=on_miss == "reject" and slo is not None,
            max_cost_usd=_tighter(min, cost_usd, key.max_cost_usd),
            min_quality=_tighter(max, quality, key.min_quality),
            priority=priority,
            seed=body.seed,
            on_miss=on_miss,
            fallbacks=self._fallbacks_of(models, key),
        )

    def _fallbacks_of(self, models: tuple[str, ...], key: KeyTerms) -> tuple[str, ...]:
        found: dict[str, None] = {}  # an ordered set
        for model in models:
            for name in self._fallbacks.get(model, ()):
                if name not in models and (key.models is None or name in key.models):
                    found[name] = None
        return tuple(found)

    def _check_policy(self, policy: str | None, param: str) -> None:
        if policy is not None and policy not in self.names.policies:
            known = ", ".join(self.names.policies)
            raise invalid_request(f"unknown policy {quoted(policy)}; known: {known}", param)

    def _joint_defaults(self, models: tuple[str, ...]) -> Defaults:
        """The defaults of a request that any of `models` may serve: a policy or `on_miss` that all of them share, and the
        loosest of each SLO target, so that no model is held to another model's target."""
        each = [self._models.get(name, Defaults()) for name in models]
        policies = {one.policy for one in each}
        misses = {one.on_miss or self._server.on_miss for one in each}
        slos = [one.slo or self._server.slo or _NO_TARGET for one in each]
        return Defaults(
            policy=policies.pop() if len(policies) == 1 else None,
            slo=Slo(
                ttft_s=_loosest(slo.ttft_s for slo in slos),
                tpot_s=_loosest(slo.tpot_s for slo in slos),
                e2e_s=_loosest(slo.e2e_s for slo in slos),
            ),
            on_miss=misses.pop() if len(misses) == 1 else self._server.on_miss,
        )


def _named(names: ModelNames, given: tuple[str, ...] | None, param: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    found: dict[str, None] = {}  # an ordered set
    for name in given:
        known = names.name_of(name)
        if known is None:
            raise invalid_request(f"unknown model {quoted(name)} in {param}", param)
        found[known] = None
    return tuple(found)


def _loosest(targets: Iterable[float | None]) -> float | None:
    largest = 0.0
    for target in targets:
        if target is None:
            return None
        largest = max(largest, target)
    return largest


def _tighter(pick: Callable[[float, float], float], given: float | None, cap: float | None) -> float | None:
    if given is None:
        return cap
    return given if cap is None else pick(given, cap)
