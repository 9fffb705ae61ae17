"""What a gateway keeps of its clients' words does not grow with them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from types import ModuleType

import policies
from router.config import parse_instance
from tests.integration.gateway.live import Live, bearer, key, live, vllm

#: Containers that grow with what clients say, and with keys and instances, each up to a bound of its own, and the test of
#: that bound.
BOUNDED = {
    "PrefixIndex._seen": "tests/unit/predictors_online: max_blocks",
    "SessionIndex._held": "tests/unit/predictors_online: max_sessions",
    "RoutingRules._plain": "cleared at _CACHED",
    "RoutingRules._joint": "cleared at _CACHED",
    "Fleet._rosters": "cleared at _MOST_ROSTERS",
    "RoundRobinCursor._last": "tests/unit/policies/test_policies.py: 1024",
    "ResidualWindow._recent": "a window",
    "Metrics._series": "known names only, and MAX_SERIES",
    "Metrics._found": "known names only, and MAX_SERIES",
    "Metrics._spend": "known names only, and MAX_SERIES",
    "Metrics._instances": "tests/unit/scaling/test_load.py: dropped when half of MAX_SERIES is used",
    "Metrics._kinds": "tests/unit/scaling/test_load.py: dropped when half of MAX_SERIES is used",
    "Metrics._keys": "the keys of the database, revoked ones included",
    "ClientKeys.stored": "the keys of the database, revoked ones included",
    "ClientKeys._revoked_at": "the revoked keys of the database",
    "Tenants._tenants": "the keys of the database, revoked ones included",
    "BudgetAdmission._budgets": "keys that were used today",
    "MemoryState._levels": "keys that were used",
    "Ledger._balances": "keys that were used, and days that are kept",
    "Ledger._changed": "keys that were used, and days that are kept",
    "Tasks._tasks": "closing the adapters of instances that left",
    "FleetChanges._lost_at": "for as long as a request may take",
}
OURS = ("router.", "policies.", "predictors.", "backends.")
MODELS = [f"m{number}" for number in range(8)]
REQUESTS = 90
POLICIES = sorted(policies.POLICIES)
COME_AND_GO = 30


async def settled_sizes(gw: Live) -> dict[str, int]:
    """`sizes` of the gateway once no request runs and all records are written."""
    await gw.until(lambda: not gw.gateway.runner.scheduler.live and not gw.gateway.store.writer.pending)
    return sizes(gw.gateway)


def sizes(root: object) -> dict[str, int]:
    """The greatest container under each attribute of our objects that `root` leads to, by `Class.attribute`."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    ahead: deque[tuple[str, object]] = deque([("root", root)])
    while ahead:
        name, value = ahead.popleft()
        if id(value) in seen or isinstance(value, (type, ModuleType, str, bytes, int, float)):
            continue
        seen.add(id(value))
        if isinstance(value, (dict, list, set, frozenset, tuple, deque)):
            found[name] = max(found.get(name, 0), len(value))
            inner = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
            ahead.extend((name, each) for each in inner[:5000])
            continue
        kind = type(value)
        if not kind.__module__.startswith(OURS):
            continue
        slots = [slot for each in kind.__mro__ for slot in getattr(each, "__slots__", ())]
        for attribute in {*getattr(value, "__dict__", {}), *slots}:
            member = getattr(value, attribute, None)
            owner = getattr(member, "__self__", None)
            ahead.append((f"{kind.__name__}.{attribute}", member if owner is None else owner))
    return found


async def test_distinct_words_of_clients_fill_nothing_without_a_bound(tmp_path):
    rng = random.Random(0)
    models = [{"name": name, "aliases": [f"alias-{name}"], "quality": 0.5} for name in MODELS]
    engine = vllm("a", speed=500.0)
    serves = dict.fromkeys(MODELS, "up/llama-3.1-8b")
    keys = [key("team", budget_usd=9.0, requests_per_minute=10_000)]
    async with live(
        tmp_path, engine, models=models, instance={"a": {"serves": serves}}, auth={"keys": keys},
        environment={"HEADWAY_ADMIN_KEY": "root"},
    ) as gw:  # fmt: skip

        async def ask(number: int) -> None:
            wanted = rng.sample(MODELS, rng.randint(1, len(MODELS)))
            policy = rng.choice(sorted(gw.gateway.fleet.policies))
            headers = {
                **bearer("team"),
                "x-session-id": f"session-{number}",
                "x-request-id": f"client-{number}",
                "x-stainless-retry-count": str(number),
                "traceparent": f"00-{number:032x}-{number:016x}-01",
            }
            body = {
                "model": rng.choice(["auto", *MODELS, *(f"alias-{name}" for name in MODELS)]),
                "messages": [{"role": "user", "content": f"Number {number}. " * 100}],
                "max_tokens": 1 + number % 7,
                "user": f"user-{number}",
                "prompt_cache_key": f"cache-{number}",
                "routing": {
                    "models": wanted,
                    "policy": policy,
                    "slo": {"ttft_ms": 1000 + number},
                    "seed": number,
                },
                f"unknown-{number}": number,
            }
            status, _, answer = await gw.chat(headers=headers, **body)
            assert status == 200, answer
            await gw.chat(headers=bearer("team"), model=f"unknown-{number}")
            await gw.chat(headers=bearer(f"wrong-{number}"))
            await gw.get(f"/v1/models/unknown-{number}", headers=bearer("team"))
            await gw.post("/v1/routing/predict", body, headers=bearer("team"))
            await gw.get(f"/admin/requests?key=key-{number}", headers=bearer("root"))

        await asyncio.gather(*map(ask, range(20)))
        before = await settled_sizes(gw)
        for start in range(20, 20 + REQUESTS, 30):
            await asyncio.gather(*map(ask, range(start, start + 30)))
        after = await settled_sizes(gw)
        grown = {name for name, size in after.items() if size - before.get(name, 0) >= REQUESTS / 3}
        assert grown - BOUNDED.keys() == set(), {name: after[name] for name in grown}
        assert len(before) > 100  # it has looked at the gateway, not at its shell


async def test_instances_and_keys_that_come_and_go_leave_nothing(tmp_path):
    engine = vllm("a", speed=500.0)
    serves = {"llama-3.1-8b": "up/llama-3.1-8b"}
    async with live(
        tmp_path, engine, environment={"HEADWAY_ADMIN_KEY": "root"}, auth={"required": True}
    ) as gw:
        root = bearer("root")
        # The fleet file's own instance leaves, so that every request goes to the pod of the moment.
        assert (await gw.delete("/admin/instances/a", headers=root))[0] == 200

        async def turn(number: int) -> None:
            pod = {
                "name": f"pod-{number}",
                "kind": "vllm",
                "url": engine.url,
                "serves": serves,
                "hardware": "l4",
            }
            await gw.gateway.changes.found(0, [parse_instance(pod)])
            limits = {"requests_per_minute": 100, "budget_usd_per_day": 1.0, "max_concurrency": 3}
            status, made = await gw.post("/admin/keys", {"name": f"k-{number}", **limits}, headers=root)
            assert status == 201, made
            policy = POLICIES[number % len(POLICIES)]
            body = {
                "routing": {"policy": policy},
                "headers": bearer(made["key"]) | {"x-session-id": f"s-{number}"},
            }
            await gw.until(lambda: gw.instances[f"pod-{number}"].healthy)
            status, _, answer = await gw.chat(
                **body, messages=[{"role": "user", "content": f"{number} " * 200}]
            )
            assert status == 200, answer
            assert (await gw.delete(f"/admin/keys/k-{number}", headers=root))[0] == 200

        for number in range(COME_AND_GO):
            await turn(number)
        before = await settled_sizes(gw)
        for number in range(COME_AND_GO, 3 * COME_AND_GO):
            await turn(number)
        after = await settled_sizes(gw)
        grown = {
            name: (before.get(name, 0), size)
            for name, size in after.items()
            if size - before.get(name, 0) >= COME_AND_GO
        }
        assert grown.keys() - BOUNDED.keys() == set(), grown
