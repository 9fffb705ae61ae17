"""All clients' keys, and which key made which.

A key is made by an operator (in the fleet file or at run time) or by another key, its maker. A key's caps are the tightest
of its chain: its own, its maker's, its maker's maker's and so on, as they are now. So a key never has more than any key
above it, and it works only as long as all of them do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from router.config import KeyConfig
from router.core.quoting import quoted
from router.gateway.keys.accounts import Account, KeyBudget
from router.request.validation import path_of, sentence_of
from router.store.keys import StoredKey
from router.store.state import TOTAL, Bucket, Budget

#: The most keys in a chain, the operator's included.
MAX_DEPTH = 8
#: The most keys below an operator's key, revoked ones included. Its holders make them without the operator, and every
#: gateway reads all of them whenever one changes.
MAX_BELOW = 1000

#: Which of several values of a cap is the tightest. A made key may only tighten the caps of its maker.
_TIGHTEST: Mapping[str, Callable[..., Any]] = {
    "max_priority": min,
    "budget_usd_per_day": min,
    "budget_usd": min,
    "requests_per_minute": min,
    "tokens_per_minute": min,
    "max_concurrency": min,
    "max_cost_usd": min,
    "min_quality": max,
}

#: The settings of a key beside its name.
SETTINGS = tuple(name for name in KeyConfig.model_fields if name not in {"name", "sha256"})

_Value = TypeVar("_Value")


class BadKey(ValueError):
    """The key cannot be made. The message is one sentence for the caller, `field` the setting at fault."""

    def __init__(self, field: str | None, reason: str) -> None:
        super().__init__(reason if field is None else f"{field}: {reason}")
        self.field = field


class NameUsed(BadKey):
    """The name belongs, or belonged, to another key. Records of a revoked key keep its name."""

    def __init__(self, name: str) -> None:
        super().__init__("name", f"the name {name!r} is taken")


@dataclass(frozen=True, slots=True)
class Tenant:
    """One key. `stored` is its row in the table, None for a key of the fleet file."""

    settings: KeyConfig
    stored: StoredKey | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def maker(self) -> str | None:
        return None if self.stored is None else self.stored.maker

    @property
    def revoked(self) -> bool:
        return self.stored is not None and self.stored.revoked_at is not None


class Tenants:
    """All known keys, revoked ones included: their spending still counts for the keys that made them.

    `model_name` maps a model or alias to the fleet's name, None if there is none. `left_out` says which rows of the table
    are ignored, and why. `before` are the keys before a change of the table: of these, what did not change is the same object.
    """

    def __init__(
        self,
        configured: Iterable[KeyConfig] = (),
        stored: Sequence[StoredKey] = (),
        model_name: Callable[[str], str | None] = lambda name: name,
        before: Tenants | None = None,
    ) -> None:
        self._model_name = model_name
        known: dict[str, Tenant] = {} if before is None else before._tenants
        self._tenants: dict[str, Tenant] = {
            key.name: known.get(key.name) or Tenant(key) for key in configured
        }
        self.left_out: list[str] = []
        owner = {tenant.settings.sha256: name for name, tenant in self._tenants.items()}
        for row in stored:
            if row.name in self._tenants:
                self.left_out.append(
                    f"key {row.name} is in the fleet file and in the table: the fleet file's is used"
                )
            elif row.sha256 in owner:
                self.left_out.append(
                    f"key {row.name} of the table has the hash of {owner[row.sha256]} in the fleet file: the fleet"
                    " file's is used"
                )
            else:
                tenant = known.get(row.name)
                if tenant is None or tenant.stored != row:
                    settings = _read(row)
                    tenant = None if settings is None else Tenant(settings, row)
                if tenant is None:
                    self.left_out.append(
                        f"key {row.name} of the table has settings that this version does not know"
                    )
                else:
                    self._tenants[row.name] = tenant
        self._makes: dict[str, list[str]] = {}
        for tenant in self._tenants.values():
            if tenant.maker is not None:
                self._makes.setdefault(tenant.maker, []).append(tenant.name)

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def __getitem__(self, name: str) -> Tenant:
        return self._tenants[name]

    def get(self, name: str) -> Tenant | None:
        return self._tenants.get(name)

    # --- chains --------------------------------------------------------------------------------------
    def chain(self, name: str) -> tuple[Tenant, ...]:
        """The key, its maker, its maker's maker and so on, as far as they are known."""
        found: list[Tenant] = []
        tenant = self._tenants.get(name)
        while tenant is not None and len(found) <= MAX_DEPTH:
            found.append(tenant)
            tenant = None if tenant.maker is None else self._tenants.get(tenant.maker)
        return tuple(found)

    def alive(self, name: str) -> bool:
        """Whether a key works: neither it nor any key above it is revoked or gone."""
        return _works(self.chain(name))

    def alive_chains(self) -> Iterator[tuple[str, tuple[Tenant, ...]]]:
        """The keys that work, each with its chain."""
        return ((name, chain) for name in self._tenants if _works(chain := self.chain(name)))

    def made_by(self, name: str) -> list[str]:
        """All keys that a key made, directly or further down."""
        found: dict[str, None] = {}  # a set that keeps the order
        ahead = [name]
        while ahead:
            for made in self._makes.get(ahead.pop(), ()):
                if made not in found and made != name:
                    found[made] = None
                    ahead.append(made)
        return list(found)

    # --- what holds ----------------------------------------------------------------------------------
    def effective(self, name: str) -> KeyConfig:
        """The effective settings of a key: its own, within the caps of the keys above it, and theirs where it sets none.

        `models` are the fleet's names, None for all and empty for none.
        """
        chain = [tenant.settings for tenant in self.chain(name)]
        if len(chain) == 1 and chain[0].models is None:
            return chain[0]  # nothing holds but its own settings
        locks = [each for each in chain if each.locked]
        holds: dict[str, Any] = {
            "policy": locks[-1].policy if locks else _first(each.policy for each in chain),
            "locked": bool(locks),
            "models": self._models(chain),
            "quality": _first(each.quality for each in chain),
            "attainment": _first(each.attainment for each in chain),
            "makes_keys": all(each.makes_keys for each in chain),
            **{cap: tightest(_given(chain, cap), default=None) for cap, tightest in _TIGHTEST.items()},
        }
        return chain[0].model_copy(update=holds)

    def _models(self, chain: Sequence[KeyConfig]) -> tuple[str, ...] | None:
        allowed: tuple[str, ...] | None = None
        for each in chain:
            if each.models is not None:
                known = dict.fromkeys(found for name in each.models if (found := self._model_name(name)))
                allowed = tuple(name for name in (known if allowed is None else allowed) if name in known)
        return allowed

    def account(self, name: str) -> Account:
        """The limits and budgets that the key's requests count against, its own first."""
        chain = [tenant.settings for tenant in self.chain(name)]
        return Account(
            name,
            requests=_buckets(chain, "requests"),
            tokens=_buckets(chain, "tokens"),
            slots=tuple(
                Budget(f"{each.name}/slots", TOTAL, float(each.max_concurrency), whole=True)
                for each in chain
                if each.max_concurrency is not None
            ),
            key_budgets=tuple(
                KeyBudget(each.name, each.budget_usd_per_day, each.budget_usd) for each in chain
            ),
        )

    # --- making --------------------------------------------------------------------------------------
    def check(self, given: Mapping[str, Any], key: KeyConfig, maker: str | None) -> None:
        """Raise BadKey unless `maker` (None: an operator) may make `key`. `given` are the settings in the request; the
        others are the maker's."""
        if key.name in self._tenants:
            raise NameUsed(key.name)
        allowed = None
        if maker is not None:
            if not self.alive(maker):
                raise BadKey("maker", f"there is no key {maker!r}")
            if len(self.chain(maker)) >= MAX_DEPTH:
                raise BadKey(
                    "maker",
                    f"{maker} is the last of a chain of {MAX_DEPTH} keys that made each other, which is the maximum",
                )
            if len(self.made_by(self.chain(maker)[-1].name)) >= MAX_BELOW:
                raise BadKey("maker", f"no more than {MAX_BELOW} keys may be made below an operator's key")
            top = self.effective(maker)
            allowed = top.models
            self._check_caps(given, key, top)
        if key.models is not None and len(set(key.models)) < len(key.models):
            raise BadKey("models", "a model is given twice")
        for model in key.models or ():
            found = self._model_name(model)
            # The same words for an unknown model and for one that the maker may not use.
            if found is None or (allowed is not None and found not in allowed):
                raise BadKey("models", f"the model {model!r} does not exist")

    @staticmethod
    def _check_caps(given: Mapping[str, Any], key: KeyConfig, top: KeyConfig) -> None:
        for field, tightest in _TIGHTEST.items():
            cap, value = getattr(top, field), getattr(key, field)
            if field in given and cap is not None and tightest(value, cap) != value:
                beyond = "more" if value > cap else "less"
                raise BadKey(field, f"{value:g} is {beyond} than the {cap:g} that holds for {top.name}")
        if top.locked and key.policy not in {None, top.policy}:
            raise BadKey("policy", f"{top.name} is locked to {top.policy}")
        if top.locked and given.get("locked") is False:
            raise BadKey("locked", f"{top.name} is locked to {top.policy}")
        if key.makes_keys and not top.makes_keys:
            raise BadKey("makes_keys", f"{top.name} may not make keys, so neither may those below it")


def key_of(name: object, sha256: str, given: Mapping[str, Any]) -> KeyConfig:
    """A key's settings from parsed JSON. Raises BadKey for an unknown setting and for a wrong value.

    The message never repeats a value: it may be a secret in the wrong place.
    """
    for field in given:
        if field not in SETTINGS:
            raise BadKey(None, f"unknown setting {quoted(field)}; known: {', '.join(SETTINGS)}")
    try:
        return KeyConfig.model_validate({**given, "name": name, "sha256": sha256})
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = path_of(first["loc"]) or None
        raise BadKey(where, sentence_of(first)) from None


def _works(chain: Sequence[Tenant]) -> bool:
    return (
        0 < len(chain) <= MAX_DEPTH
        and chain[-1].maker is None
        and not any(tenant.revoked for tenant in chain)
    )


def _read(row: StoredKey) -> KeyConfig | None:
    try:
        return key_of(row.name, row.sha256, dict(json.loads(row.settings)))
    except (ValueError, TypeError):
        return None


def _first(values: Iterable[_Value | None]) -> _Value | None:
    return next((value for value in values if value is not None), None)


def _given(chain: Iterable[KeyConfig], field: str) -> list[float]:
    return [value for each in chain if (value := getattr(each, field)) is not None]


def _buckets(chain: Iterable[KeyConfig], what: str) -> tuple[Bucket, ...]:
    limits = ((each.name, getattr(each, f"{what}_per_minute")) for each in chain)
    return tuple(
        Bucket(f"{name}/{what}", per_minute, per_minute / 60.0)
        for name, per_minute in limits
        if per_minute is not None
    )
