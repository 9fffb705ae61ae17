"""Keys that are made while the gateway runs: following the table that all replicas share, making and revoking."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.background import Tasks, failed
from router.config import ConfigError, FleetConfig, Problem
from router.gateway.keys.keyring import new_key
from router.gateway.keys.tenants import BadKey, NameUsed, Tenant, Tenants, key_of
from router.store.database import StoreError
from router.store.keys import KeyTable, NameTaken, StoredKey, Version

logger = logging.getLogger("headway")

#: The table is looked at this often.
FOLLOW_S = 1.0


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key that has just been made. `text` is the key itself, which is told once and kept nowhere."""

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
    """Make a key with the settings of `given` (the fleet file's words; null is not given), below `maker` or, without
    one, below nobody. Raises BadKey, and StoreError."""
    given = {field: value for field, value in given.items() if value is not None}
    text, sha256 = new_key()
    key = key_of(name, sha256, given)
    if key.policy is not None and key.policy not in policies:
        raise BadKey("policy", f"there is no such policy; known: {', '.join(policies)}")
    tenants.check(given, key, maker)
    stored = StoredKey(key.name, sha256, maker, json.dumps(given, sort_keys=True), time.time())
    try:
        await table.add(stored)
    except NameTaken:
        raise NameUsed(key.name) from None
    return MadeKey(text, stored)


async def revoke(table: KeyTable, tenants: Tenants, tenant: Tenant) -> Sequence[str]:
    """Revoke a key of the table and all that it made; the names of those that were not revoked before. Raises BadKey
    for a key of the fleet file, and StoreError."""
    if tenant.stored is None:
        raise BadKey("name", f"{tenant.name} stands in the fleet file: take it out there and reload")
    return await table.revoke([tenant.name, *tenants.made_by(tenant.name)], time.time())


def refuse_admin_key(config: FleetConfig, stored: Sequence[StoredKey], admin_key: str | None) -> None:
    """Raise ConfigError if a client has the admin key."""
    if admin_key is None:
        return
    digest = hashlib.sha256(admin_key.encode()).hexdigest()
    for position, key in enumerate(config.auth.keys):
        if key.sha256 == digest:
            raise ConfigError(
                "auth", [Problem(("keys", position, "sha256"), f"key {key.name} is the admin key")]
            )
    for row in stored:
        if row.sha256 == digest and row.revoked_at is None:
            raise ConfigError(
                "auth", [Problem(("admin_key_env",), f"the admin key is that of client {row.name}")]
            )


class ClientKeys:
    """The rows of the table as this gateway knows them, at most `FOLLOW_S` and a query old. While the database is away
    those that are known go on. `apply` is called whenever they have changed, `tell` when they were changed here: others
    need not wait until they look again."""

    def __init__(
        self,
        table: KeyTable,
        admin_key: str | None,
        apply: Callable[[Sequence[StoredKey]], None],
        tell: Callable[[], Awaitable[None]],
    ) -> None:
        self.table = table
        self.stored: Sequence[StoredKey] = ()
        self.lost = False  # at the start there were none left of the keys that there had been
        self._admin_key = admin_key
        self._apply = apply
        self._tell = tell
        self._version: Version | None = None
        self._tasks = Tasks()
        self._revoked_at: dict[str, float] = {}  # by hash
        self._lock = asyncio.Lock()

    async def start(self, config: FleetConfig) -> None:
        """Read the keys and begin to follow them. Raises ConfigError if a client has the admin key, StoreError."""
        await self.refresh()
        refuse_admin_key(config, self.stored, self._admin_key)
        if self.lost and not config.auth.keys:
            logger.error(
                "the database had keys and has none now: nobody is answered until one is made (to open the gateway, "
                "remove %s and start it again)",
                self.table.keyed,
            )
        elif not config.auth.keys and not self.stored:
            logger.warning(
                "there are no keys and they are required: nobody is answered until one is made"
                if config.auth.required
                else "there are no keys: anyone who reaches the port may use the models"
            )
        self._tasks.start(self._follow(), "client-keys")

    def check(self, config: FleetConfig) -> None:
        """Raise ConfigError if the fleet file gives a client the admin key."""
        refuse_admin_key(config, self.stored, self._admin_key)

    async def stop(self) -> None:
        """Follow no longer."""
        await self._tasks.stop()

    async def refresh(self) -> None:
        """Take over what has changed. Raises StoreError."""
        async with self._lock:  # an older answer must not come after a newer one
            version = await self.table.version()
            if version == self._version:
                return
            rows = await self.table.rows()
            self._note_loss(rows)
            self.stored = tuple(map(self._still_revoked, rows))
            self._apply(self.stored)
            # The one from before the rows: what changed in between is read again the next time.
            self._version = version

    def _note_loss(self, rows: Sequence[StoredKey]) -> None:
        """A table that had keys before must not look like one that never had any."""
        if rows:
            self.table.note_keys()
        elif self._version is None:
            self.lost = self.table.held_keys()
        elif self.stored:
            logger.error("the database has lost its keys: those that it held are not answered any more")

    def _still_revoked(self, row: StoredKey) -> StoredKey:
        """A row as it is, or revoked, if it has been: a table that was restored does not give a key back."""
        if row.revoked_at is not None:
            self._revoked_at[row.sha256] = row.revoked_at
        elif row.sha256 in self._revoked_at:
            return replace(row, revoked_at=self._revoked_at[row.sha256])
        return row

    async def make(
        self,
        tenants: Tenants,
        policies: Collection[str],
        name: object,
        given: Mapping[str, Any],
        maker: str | None = None,
    ) -> MadeKey:
        """`make`, known here when it returns. Raises BadKey, StoreError."""
        made = await make(self.table, tenants, policies, name, given, maker)
        await self.refresh_soon()
        await self._tell()
        return made

    async def revoke(self, tenants: Tenants, tenant: Tenant) -> Sequence[str]:
        """`revoke`, known here when it returns. Raises BadKey, StoreError."""
        revoked = await revoke(self.table, tenants, tenant)
        await self.refresh_soon()
        await self._tell()
        return revoked

    async def refresh_soon(self) -> None:
        """What was asked for is done: that it cannot be read now must not be told as its failure."""
        try:
            await self.refresh()
        except StoreError as error:
            logger.warning("the keys are known later: %s", error)

    async def _follow(self) -> None:
        away = False
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self.refresh()
            except StoreError as error:
                if not away:
                    logger.warning("the keys are not followed: %s; those that are known go on", error)
                away = True
            except Exception as error:  # noqa: BLE001 (the task's root: those that are known go on)
                failed("client-keys", error)
            else:
                if away:
                    logger.info("the keys are followed again")
                away = False
