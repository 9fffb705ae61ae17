"""Checks between parts of the fleet file: names that must differ, and names that must exist.

They read plain data and skip values of the wrong shape. So one run reports all other problems of a file with a bad
value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from backends.engine import profiles
from policies import POLICIES
from router.config.errors import Path, masked

#: A path, and what is wrong there.
Finding = tuple[Path, str]

#: The rows of a section, each with its path.
_Rows = Sequence[tuple[Path, Mapping[str, Any]]]

#: An unknown name is compared with the known ones if they are no more: thousands of both would take minutes.
_MOST_COMPARED = 200

#: The model name that means "any model"; no model or alias may have it.
ANY_MODEL = "auto"


def crosscheck(data: Mapping[str, Any], *, any_profile: bool = False) -> list[Finding]:
    """All problems between the parts of the fleet file. `any_profile`: engine profiles need not be in the catalog."""
    return [
        *_server(data),
        *_passwords(data),
        *_keys(data),
        *_models(data),
        *_instances(data),
        *_discovery(data),
        *_pools(data),
        *_judge(data, "judge"),
        *_judge(data, "second_look"),
        *_policies(data),
        *(() if any_profile else _profiles(data)),
    ]


def check_instances(data: Mapping[str, Any]) -> list[Finding]:
    """The problems of instances, and of pools beside them."""
    return [*_instances(data), *_pools(data)]


def _policies(data: Mapping[str, Any]) -> Iterator[Finding]:
    keys = (((*path, "policy"), key.get("policy")) for path, key in _rows(data, "auth", "keys"))
    named = [(("defaults", "policy"), _value(data, "defaults", "policy")), *keys]
    end = f"; known: {', '.join(sorted(POLICIES))}"
    yield from ((path, reason + end) for path, reason in _unknown("policy", named, POLICIES))


def _profiles(data: Mapping[str, Any]) -> Iterator[Finding]:
    """Unknown engine profiles of emulated instances and of pools."""
    named: list[tuple[Path, object]] = []
    for path, instance in _rows(data, "instances"):
        named.append(((*path, "profile"), instance.get("profile")))
        for model, served in _mapping(instance.get("serves")).items():
            named.append(((*path, "serves", str(model), "profile"), _mapping(served).get("profile")))
    named += [((*path, "profile"), pool.get("profile")) for path, pool in _rows(data, "scaling", "pools")]
    yield from _unknown("engine profile", named, profiles.names())


def _server(data: Mapping[str, Any]) -> Iterator[Finding]:
    workers = _value(data, "server", "workers")
    url = _mapping(data.get("state")).get("url", "memory://")
    if isinstance(workers, int) and workers > 1 and url == "memory://":
        yield (
            ("server", "workers"),
            "several workers share limits, budgets and load: state.url must be redis://...",
        )


def _passwords(data: Mapping[str, Any]) -> Iterator[Finding]:
    for section, local in (("store", "sqlite"), ("state", "memory:")):
        settings = _mapping(data.get(section))
        if settings.get("password_env") is not None and str(settings.get("url", local)).startswith(local):
            yield (section, "password_env"), f"is for a server: {section}.url names none"


def _keys(data: Mapping[str, Any]) -> Iterator[Finding]:
    rows = _rows(data, "auth", "keys")
    yield from _repeated(rows, "key")
    seen: dict[str, Any] = {}
    for path, key in rows:
        digest = key.get("sha256")
        if not isinstance(digest, str):
            continue
        if digest.lower() in seen:
            yield (*path, "sha256"), f"is the hash of key {masked(seen[digest.lower()])} too"
        else:
            seen[digest.lower()] = key.get("name")
    known = _known_models(data)
    for path, key in rows:
        models = _strings(key.get("models"))
        yield from _unknown("model", (((*path, "models", at), model) for at, model in models), known)


def _models(data: Mapping[str, Any]) -> Iterator[Finding]:
    rows = _rows(data, "models")
    yield from _repeated(rows, "model")
    names = _names(rows)
    owner_of: dict[str, str] = {}
    for path, model in rows:
        name = model.get("name")
        if name == ANY_MODEL:
            yield (*path, "name"), f"{ANY_MODEL!r} means any model and cannot name one"
        for position, alias in _strings(model.get("aliases")):
            at = (*path, "aliases", position)
            if alias == ANY_MODEL:
                yield at, f"{ANY_MODEL!r} means any model and cannot be an alias"
            elif alias in names:
                yield at, f"alias {masked(alias)} is the name of a model"
            elif alias in owner_of:
                yield at, f"alias {masked(alias)} already stands for {masked(owner_of[alias])}"
            else:
                owner_of[alias] = str(name)
        taken = set()
        for position, fallback in _strings(model.get("fallbacks")):
            at = (*path, "fallbacks", position)
            if fallback == name:
                yield at, f"model {masked(fallback)} cannot be its own fallback"
            elif fallback not in names:
                yield at, f"unknown model {masked(fallback)}{_near(fallback, names)}"
            elif fallback in taken:
                yield at, f"model {masked(fallback)} is listed twice"
            taken.add(fallback)


def _instances(data: Mapping[str, Any]) -> Iterator[Finding]:
    rows, models = _rows(data, "instances"), _names(_rows(data, "models"))
    yield from _repeated(rows, "instance")
    for path, instance in rows:
        yield from _served(models, path, instance)
        for model, served in _mapping(instance.get("serves")).items():
            if _mapping(served).get("profile") is not None and instance.get("kind") != "emulated":
                yield (*path, "serves", str(model), "profile"), "is for kind: emulated"


def _discovery(data: Mapping[str, Any]) -> Iterator[Finding]:
    models = _names(_rows(data, "models"))
    for path, found in _rows(data, "discovery"):
        yield from _served(models, (*path, "instance"), found.get("instance"))


def _pools(data: Mapping[str, Any]) -> Iterator[Finding]:
    pools, actuator = _rows(data, "scaling", "pools"), _value(data, "scaling", "actuator")
    yield from _repeated(pools, "pool")
    discovered = [_pool_of(_mapping(entry.get("instance"))) for _, entry in _rows(data, "discovery")]
    seen: dict[tuple[tuple[str, ...], str], object] = {}
    instances, models = _names(_rows(data, "instances")), _names(_rows(data, "models"))
    for path, pool in pools:
        name = pool.get("name")
        if isinstance(name, str) and name in instances:
            yield (*path, "name"), f"an instance is named {masked(name)} too"
        instance = _mapping(pool.get("instance"))
        yield from _served(models, (*path, "instance"), instance)
        of = _pool_of(instance)
        if of[0] and of in seen:
            yield path, f"pool {masked(seen[of])} has this model on this hardware too"
        seen[of] = name
        if actuator == "processes" and not pool.get("command"):
            yield (*path, "command"), "is missing: the actuator processes starts engines with it"
        if actuator == "kubernetes":
            if not pool.get("deployment"):
                yield (*path, "deployment"), "is missing: the actuator kubernetes scales it"
            elif of not in discovered:
                yield (
                    (*path, "deployment"),
                    "needs an entry of discovery with the pool's model and hardware, which finds its pods",
                )


def _judge(data: Mapping[str, Any], section: str) -> Iterator[Finding]:
    for field, known in (("model", _known_models(data)), ("key", _names(_rows(data, "auth", "keys")))):
        name = _value(data, section, field)
        if isinstance(name, str) and name not in known:
            yield (section, field), f"unknown {field} {masked(name, (field,))}{_near(name, known)}"


def _served(models: Collection[str], path: Path, instance: object) -> Iterator[Finding]:
    """The models that an instance serves, and that the file does not have (`models`)."""
    serves = map(str, _mapping(_mapping(instance).get("serves")))
    named = (((*path, "serves", model), model) for model in serves if model not in models)
    yield from _unknown("model", named, models)


def _unknown(what: str, named: Iterable[tuple[Path, object]], known: Collection[str]) -> Iterator[Finding]:
    """Those of the named that are not `known`."""
    for path, name in named:
        if isinstance(name, str) and name not in known:
            yield path, f"unknown {what} {masked(name)}{_near(name, known)}"


def _known_models(data: Mapping[str, Any]) -> Collection[str]:
    """The names and aliases of models."""
    models = _rows(data, "models")
    aliases = (alias for _, row in models for _, alias in _strings(row.get("aliases")))
    return dict.fromkeys([*_names(models), *aliases])


def _pool_of(instance: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """What instances of one pool have in common."""
    return tuple(map(str, _mapping(instance.get("serves")))), str(instance.get("hardware"))


def _repeated(rows: _Rows, what: str) -> Iterator[Finding]:
    seen = set()
    for path, row in rows:
        value = row.get("name")
        if not isinstance(value, str):
            continue
        if value in seen:
            yield (*path, "name"), f"another {what} is named {masked(value)}"
        seen.add(value)


def _names(rows: _Rows) -> Collection[str]:
    """In their order."""
    return dict.fromkeys(row["name"] for _, row in rows if isinstance(row.get("name"), str))


def _rows(data: Mapping[str, Any], *path: str) -> _Rows:
    """The mappings in the list at a path, each with its own path."""
    listed = _value(data, *path)
    rows = enumerate(listed) if isinstance(listed, list | tuple) else ()
    return [((*path, position), row) for position, row in rows if isinstance(row, Mapping)]


def _value(data: object, *path: str) -> object:
    """The value at a path; None if there is none."""
    for key in path:
        data = _mapping(data).get(key)
    return data


def _strings(value: object) -> Iterator[tuple[int, str]]:
    if isinstance(value, list | tuple):
        yield from ((position, item) for position, item in enumerate(value) if isinstance(item, str))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _near(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name[:200], known, n=1) if len(known) <= _MOST_COMPARED else ()
    return f" (did you mean {near[0]!r}?)" if near else ""
