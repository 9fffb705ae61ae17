"""`headway keys`: creates, lists and revokes clients' keys in the fleet's database, whether gateways run or not."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from sqlalchemy.engine import URL

from benchmarks.terminal import table_console
from policies import POLICIES
from router.config import FleetConfig, load
from router.config.secrets import store_url
from router.gateway.keys.client_keys import make, revoke
from router.gateway.keys.tenants import BadKey, Tenant, Tenants
from router.store import runs
from router.store.database import StoreError, location, opened, parse_url, sqlite_path
from router.store.keys import KeyTable
from router.store.queries import Store
from router.store.spend_report import day, spend_report

ERRORS = (BadKey, StoreError)


# --- arguments ----------------------------------------------------------------------------------------
#: Settings of a key that are numbers. The options of `headway keys create` have their names.
_NUMBERS = (
    ("max_priority", int, "largest priority of its requests (default 0)"),
    ("min_quality", float, "least predicted quality of each answer, 0 to 1"),
    ("quality", float, "target mean quality, 0 to 1"),
    ("attainment", float, "target share of met SLOs, 0 to 1"),
    ("budget_usd_per_day", float, "USD that it may spend in a day (UTC)"),
    ("budget_usd", float, "USD that it may ever spend"),
    ("requests_per_minute", int, "requests in a minute"),
    ("tokens_per_minute", int, "tokens in a minute, prompts and answers"),
    ("max_concurrency", int, "open requests at once"),
    ("max_cost_usd", float, "USD that one request may cost"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="create|list|revoke", required=True)
    fleet = argparse.ArgumentParser(add_help=False)
    fleet.add_argument("--config", required=True, metavar="FLEET", help="the fleet file (YAML)")

    about = "Make a key. It is printed once, alone on stdout; only its hash is stored."
    create = actions.add_parser("create", parents=[fleet], help="make a key", description=about)
    create.add_argument("--name", required=True, help="the key's name in records and reports")
    create.add_argument(
        "--maker", metavar="NAME", help="the parent key: the new key never has more rights or budget"
    )
    create.add_argument("--policy", help="policy of requests that name none")
    create.add_argument("--locked", action="store_true", help="its requests may not choose another policy")
    create.add_argument("--models", metavar="A,B", help="the only models that it may use")
    for setting, kind, text in _NUMBERS:
        create.add_argument(f"--{setting.replace('_', '-')}", type=kind, metavar="N", help=text)
    create.add_argument("--makes-keys", action="store_true", help="its holder may make keys below it")

    about = "List all keys with their limits and the spending of each key and the keys below it."
    listing = actions.add_parser("list", parents=[fleet], help="list keys", description=about)
    listing.add_argument("--json", action="store_true", help="machine-readable output")

    about = "Revoke a key and all keys below it, permanently."
    revoking = actions.add_parser("revoke", parents=[fleet], help="revoke a key", description=about)
    revoking.add_argument("name", metavar="NAME", help="the key's name")


def run(args: argparse.Namespace) -> int:
    """Make, list or revoke; returns the exit code. Raises ConfigError for a bad fleet file, BadKey, StoreError."""
    config = load(args.config)
    act = {"create": _create, "list": _list, "revoke": _revoke}[args.action]
    return asyncio.run(act(config, store_url(config, os.environ), args))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


async def known_keys(config: FleetConfig, url: str) -> Tenants:
    """The keys of the fleet file and of the database, if there is one. Raises StoreError, TimeoutError."""
    path = sqlite_path(parse_url(url))
    if path is not None and not path.exists():
        return Tenants(config.auth.keys, (), lambda _: None)
    async with asyncio.timeout(3.0), opened(url) as engine:
        return await _known(config, KeyTable(engine))


def lost_keys(config: FleetConfig, url: str) -> Path | None:
    """The marker file of a database that had keys, if it exists."""
    mark = runs.keyed_path(runs.file_prefix(parse_url(url), _spool_directory(config)))
    return mark if mark.exists() else None


def _spool_directory(config: FleetConfig) -> Path | None:
    directory = config.store.spool_directory
    return None if directory is None else Path(directory)


async def _known(config: FleetConfig, table: KeyTable) -> Tenants:
    def model_name(requested: str) -> str | None:
        model = config.model(requested)
        return None if model is None else model.name

    return Tenants(config.auth.keys, await table.rows(), model_name)


async def _tenants(config: FleetConfig, table: KeyTable) -> Tenants:
    tenants = await _known(config, table)
    for reason in tenants.left_out:
        _say(f"warning: {reason}")
    return tenants


# --- create -------------------------------------------------------------------------------------------
def _given(args: argparse.Namespace) -> dict[str, Any]:
    settings = ["policy", *[setting for setting, _, _ in _NUMBERS]]
    given = {name: value for name in settings if (value := getattr(args, name)) is not None}
    if args.models is not None:
        given["models"] = [name.strip() for name in args.models.split(",") if name.strip()]
    return given | {name: True for name in ("locked", "makes_keys") if getattr(args, name)}


def _is_new(config: FleetConfig, url: URL) -> bool:
    """True if the database must be created. Raises StoreError if a gateway had a database there."""
    path = sqlite_path(url)
    if path is None or path.exists():
        return False
    if left := runs.traces_of_gateway(url, _spool_directory(config)):
        raise StoreError(
            f"no database at {location(url)}, but a gateway had one there ({left[0].name} still exists): restore it, "
            f"or remove {left[0].absolute()} to create a new one"
        )
    return True


async def _create(config: FleetConfig, url: str, args: argparse.Namespace) -> int:
    parsed = parse_url(url)
    new = _is_new(config, parsed)
    async with opened(url, create=True) as engine:
        table = KeyTable(engine)
        tenants = await _tenants(config, table)
        made = await make(table, tenants, tuple(POLICIES), args.name, _given(args), args.maker)
        first = not config.auth.keys and len(await table.rows()) == 1
    below = "" if args.maker is None else f", below {args.maker}"
    _say(f"The key {made.stored.name} is made{below}. It is shown only once:")
    print(made.text, flush=True)
    where = location(parsed)
    if new:
        _say(f"A new database was created, {where}: only gateways with this file accept the key.")
        return 0
    _say(f"Gateways with this database, {where}, accept it within two seconds.")
    if first:
        closed = config.auth.required or lost_keys(config, url) is not None
        before = "refused every request" if closed else "were open to everyone"
        _say(f"It is the first key: the gateways {before} until now, and require a key from now on.")
    return 0


# --- revoke -------------------------------------------------------------------------------------------
async def _revoke(config: FleetConfig, url: str, args: argparse.Namespace) -> int:
    async with opened(url) as engine:
        table = KeyTable(engine)
        tenants = await _tenants(config, table)
        tenant = tenants.get(args.name)
        if tenant is None:
            raise BadKey(None, f"there is no key {args.name!r}")
        if tenant.stored is not None:
            made = [name for name in tenants.made_by(args.name) if tenants.alive(name)]
            _say(f"Keys below it, revoked with it: {', '.join(made) or 'none'}.")
        revoked = await revoke(table, tenants, tenant)
        tenants = await _tenants(config, table)
    if not revoked:
        _say(f"{args.name} is already revoked.")
        return 0
    print("\n".join(revoked), flush=True)
    _say("Gateways with this database refuse them within two seconds.")
    if not any(tenants.alive(each.name) for each in tenants):
        _say("No key is left: gateways answer every request with 401 until a new key is made.")
    return 0


# --- list ---------------------------------------------------------------------------------------------
async def _list(config: FleetConfig, url: str, args: argparse.Namespace) -> int:
    async with opened(url) as engine:
        tenants = await _tenants(config, KeyTable(engine))
        today = await _spent_usd(Store(engine), day("today", time.time()))
        total = await _spent_usd(Store(engine), None)
    rows = [_row(tenants, tenant, today, total) for tenant in tenants]
    if args.json:
        print(json.dumps({"keys": rows}, indent=2))
        return 0
    table_console().print(_table(rows))
    return 0


async def _spent_usd(store: Store, since: str | None) -> dict[str, float]:
    report = await spend_report(store, ["key"], since)
    return {row["key"]: row["cost_usd"] for row in report.rows}


def _row(
    tenants: Tenants, tenant: Tenant, today: Mapping[str, float], total: Mapping[str, float]
) -> dict[str, Any]:
    held = tenants.effective(tenant.name)
    family = [tenant.name, *tenants.made_by(tenant.name)]
    stored = tenant.stored
    return {
        "name": tenant.name,
        "state": "works" if tenants.alive(tenant.name) else "revoked" if tenant.revoked else "maker gone",
        "source": "table" if stored else "fleet",
        "maker": tenant.maker,
        "created_at": stored.created_at if stored else None,
        "revoked_at": stored.revoked_at if stored else None,
        "spent_today_usd": sum(today.get(name, 0.0) for name in family),
        "spent_total_usd": sum(total.get(name, 0.0) for name in family),
        **held.model_dump(mode="json", exclude={"name", "sha256"}),
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("key", "state", "maker", "made"):
        table.add_column(column, overflow="fold")
    for column in ("USD today", "of", "USD in total", "of", "requests/min", "tokens/min"):
        table.add_column(column, justify="right")
    table.add_column("other terms", overflow="fold")
    for row in rows:
        made = row["created_at"]
        table.add_row(
            row["name"],
            row["state"],
            row["maker"] or "",
            "fleet file" if made is None else datetime.fromtimestamp(made, UTC).strftime("%Y-%m-%d %H:%M"),
            f"{row['spent_today_usd']:.6f}",
            _amount(row["budget_usd_per_day"]),
            f"{row['spent_total_usd']:.6f}",
            _amount(row["budget_usd"]),
            _amount(row["requests_per_minute"]),
            _amount(row["tokens_per_minute"]),
            _other(row),
        )
    return table


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"


def _other(row: Mapping[str, Any]) -> str:
    terms = []
    if row["policy"] is not None:
        terms.append(f"{'locked to ' if row['locked'] else 'policy '}{row['policy']}")
    if row["models"] is not None:
        terms.append(f"models {','.join(row['models']) or 'none'}")
    if row["max_concurrency"]:
        terms.append(f"{row['max_concurrency']} at once")
    if row["max_priority"]:
        terms.append(f"priority <= {row['max_priority']}")
    for name, words in (
        ("min_quality", "quality >="),
        ("quality", "mean quality"),
        ("attainment", "attainment"),
        ("max_cost_usd", "USD a request <="),
    ):
        if row[name] is not None:
            terms.append(f"{words} {row[name]:g}")
    if row["makes_keys"]:
        terms.append("makes keys")
    return "; ".join(terms)
