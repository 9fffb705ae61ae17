"""Keys that are made at run time: makes and revokes them, and follows the table that all replicas share."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.background import Tasks, failed
from router.config import ConfigError, FleetConfig, Problem
from router.gateway.keys.keyring import new_key
from router.gateway.keys.tenants import BadKey, NameUsed, Tenant, Tenants, key_of
from router.store.database import StoreError
from router.store.keys import KeyTable, StoredKey, Version
from router.store.state import State, StateError

logger = logging.getLogger("headway")

#: The interval between two looks at the table.
FOLLOW_S = 1.0
#: The shared document that changes whenever keys are made or revoked. The keys themselves are in the database.
DOCUMENT = "keys"


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key that has just been made. `text` is the key itself: it is shown once and stored nowhere."""

    text: str
    stored: StoredKey

    def __repr__(self) -> str:
        return f"MadeKey({self.stored.name!r})"  # never the key: this may end in a log


async def make(
    table: KeyTable,
    tenants: Tenants,
    policies: Collection[str],
    name: object,
    given: Mapping[str, Any],
    maker: str | None = None,
) -> MadeKey:
    """Make a key with the settings in `given`, named as in the fleet file; null is not given.

    The key is below `maker` (None: an operator). Raises BadKey, StoreError.
    """
    given = {field: value for field, value in given.items() if value is not None}
    text, sha256 = new_key()
    key = key_of(name, sha256, given)
    if key.policy is not None and key.policy not in policies:
        raise BadKey("policy", f"there is no such policy; known: {', '.join(policies)}")
    tenants.check(given, key, maker)
    stored = StoredKey(key.name, sha256, maker, json.dumps(given, sort_keys=True), time.time())
    if not await table.add(stored):
        raise NameUsed(key.name)
    return MadeKey(text, stored)


async def revoke(table: KeyTable, tenants: Tenants, tenant: Tenant) -> Sequence[str]:
    """Revoke a key of the table and all keys below it; returns the names that were not revoked before.

    Raises BadKey for a key of the fleet file, and StoreError.
    """
    if tenant.stored is None:
        raise BadKey("name", f"{tenant.name} is in the fleet file: remove it there and reload")
    return await table.revoke([tenant.name, *tenants.made_by(tenant.name)], time.time())


class ClientKeys:
    """The rows of the table as this gateway knows them, at most `FOLLOW_S` and one query old.

    While the database is away the known keys keep working. `on_change` is called after each change. Other replicas are
    notified through the shared state; without it they see a change at their next look.
    """

    def __init__(self, table: KeyTable, state: State, admin_key: str | None) -> None:
        self.table = table
        self.stored: Sequence[StoredKey] = ()
        self.lost = False  # the table was empty at the start although it had held keys before
        self.on_change: Callable[[Sequence[StoredKey]], None] = _ignore
        self._state = state
        self._admin_key = admin_key
        self.has_admin_key = admin_key is not None
        self._version: Version | None = None
        self._tasks = Tasks()
        self._revoked_at: dict[str, float] = {}  # by hash
        self._lock = asyncio.Lock()

    async def start(self, config: FleetConfig) -> None:
        """Read the keys and begin to follow them. Raises ConfigError if a client has the admin key, StoreError."""
        await self.refresh()
        self.check(config)
        if self.lost and not config.auth.keys:
            logger.error(
                "the database had keys and has none now: every request is refused until one is made (to open the gateway, "
                "remove %s and start it again)",
                self.table.keyed,
            )
        elif not config.auth.keys and not self.stored:
            logger.warning(
                "there are no keys and they are required: every request is refused until one is made"
                if config.auth.required
                else "there are no keys: anyone who reaches the port may use the models"
            )
        self._tasks.start(self._follow(), "client-keys")

    def check(self, config: FleetConfig) -> None:
        """Raise ConfigError if a client has the admin key."""
        if self._admin_key is None:
            return
        digest = hashlib.sha256(self._admin_key.encode()).hexdigest()
        another = "give one of them another value"
        for position, key in enumerate(config.auth.keys):
            if key.sha256 == digest:
                reason = f"key {key.name} has the value of the admin key: {another}"
                raise ConfigError("auth", [Problem(("keys", position, "sha256"), reason)])
        for row in self.stored:
            if row.sha256 == digest and row.revoked_at is None:
                reason = (
                    f"the admin key has the value of the key {row.name}, which is in the database: {another}"
                )
                raise ConfigError("auth", [Problem(("admin_key_env",), reason)])

    async def stop(self) -> None:
        """Stop following the table."""
        await self._tasks.stop()

    async def refresh(self) -> None:
        """Read the table if it has changed. Raises StoreError."""
        async with self._lock:  # an older answer must not replace a newer one
            version = await self.table.version()
            if version == self._version:
                return
            rows = await self.table.rows()
            self._note_loss(rows)
            self.stored = tuple(map(self._still_revoked, rows))
            self.on_change(self.stored)
            # The version from before the rows: changes made in between are read the next time.
            self._version = version

    def _note_loss(self, rows: Sequence[StoredKey]) -> None:
        """Detect a table that has lost its keys, as opposed to one that never had any."""
        if rows:
            self.table.note_keys()
        elif self._version is None:
            self.lost = self.table.held_keys()
        elif self.stored:
            logger.error("the database has lost its keys: requests with them are refused")

    def _still_revoked(self, row: StoredKey) -> StoredKey:
        """The row, marked as revoked if it was ever revoked: an older, restored table must not make a revoked key valid
        again."""
        if row.revoked_at is not None:
            self._revoked_at[row.sha256] = row.revoked_at
        elif row.sha256 in self._revoked_at:
            return replace(row, revoked_at=self._revoked_at[row.sha256])
        return row

    async def changed_here(self, revoked: Collection[str] = ()) -> None:
        """This gateway has made or `revoked` keys: read the table again, and have other replicas do so. The revoked keys stop
        working even if the database cannot be read now."""
        await self._refresh_if_possible()
        ended = [each for each in self.stored if each.name in revoked and each.revoked_at is None]
        if ended:
            self._revoked_at |= {each.sha256: time.time() for each in ended}
            self.stored = tuple(map(self._still_revoked, self.stored))
            self.on_change(self.stored)
        with contextlib.suppress(StateError):
            await self._state.change(DOCUMENT, lambda seen: {"changes": seen.get("changes", 0) + 1})

    def document_changed(self, _: Mapping[str, Any]) -> None:
        """Another replica has changed keys."""
        self._tasks.start(self._refresh_if_possible(), "client-keys refresh")

    async def _refresh_if_possible(self) -> None:
        """Refresh. The change itself is done, so a failed read is only logged."""
        try:
            await self.refresh()
        except StoreError as error:
            logger.warning("the keys cannot be read yet: %s", error)

    async def _follow(self) -> None:
        away = False
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self.refresh()
            except StoreError as error:
                if not away:
                    logger.warning("the keys cannot be read: %s; the known keys keep working", error)
                away = True
            except Exception as error:  # noqa: BLE001 (the task's root: the known keys keep working)
                failed("client-keys", error)
            else:
                if away:
                    logger.info("the keys can be read again")
                away = False


def _ignore(_: Sequence[StoredKey]) -> None:
    """The `on_change` where nothing follows the table."""
