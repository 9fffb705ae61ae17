"""The table of keys, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from router.store.database import opened
from router.store.keys import KeyTable, StoredKey

pytestmark = pytest.mark.real_time


def row(name: str, at: float = 100.0, maker: str | None = None) -> StoredKey:
    return StoredKey(name, name.rjust(64, "0"), maker, '{"budget_usd": 1.5}', at)


@pytest.fixture
async def table(store_url: str):
    async with opened(store_url, create=True) as engine:
        yield KeyTable(engine)


async def test_what_is_kept_is_read_again(table: KeyTable) -> None:
    assert await table.rows() == ()
    await table.add(row("b", 101.0, "a"))
    await table.add(row("a", 100.0))
    assert await table.rows() == (row("a", 100.0), row("b", 101.0, "a"))


async def test_names_and_hashes_are_given_once(table: KeyTable) -> None:
    await table.add(row("a"))
    for again in (row("a"), StoredKey("other", row("a").sha256, None, "{}", 1.0)):
        assert not await table.add(again)
    await table.revoke(["a"], 5.0)
    assert not await table.add(StoredKey("a", "f" * 64, None, "{}", 1.0))
    assert [each.name for each in await table.rows()] == ["a"]


async def test_of_many_that_want_one_name_one_has_it(table: KeyTable) -> None:
    keys = [StoredKey("name", f"{number:064x}", None, "{}", 1.0) for number in range(8)]
    assert sum(await asyncio.gather(*map(table.add, keys))) == 1


async def test_revoking_tells_what_it_revoked(table: KeyTable) -> None:
    for name in ("a", "b", "c"):
        await table.add(row(name))
    assert await table.revoke(["b", "a", "nobody"], 7.0) == ["a", "b"]
    assert await table.revoke(["a", "b", "c"], 9.0) == ["c"]
    assert {each.name: each.revoked_at for each in await table.rows()} == {"a": 7.0, "b": 7.0, "c": 9.0}


async def test_every_change_is_seen_whatever_the_clocks_say(table: KeyTable) -> None:
    seen = [await table.version()]
    for change in (
        table.add(row("a", 1000.0)),
        table.add(row("b", 10.0)),  # from a machine whose clock is behind
        table.revoke(["a"], 5.0),
        table.revoke(["b"], 5.0),
    ):
        await change
        seen.append(await table.version())
        assert await table.version() == seen[-1]
    assert len(set(seen)) == len(seen)
    assert [at for _, _, at in seen] == sorted({at for _, _, at in seen})
