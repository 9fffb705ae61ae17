"""How a replica reaches Redis: users, passwords, TLS, and what is said when it does not."""

from __future__ import annotations

import ssl
import sys

import pytest
import trustme

from router.store.open_state import open_state
from router.store.state import Budget, MemoryState, Want
from tests.integration.state.replicas import Ear, Replica, Way, fleet, until
from tests.servers.redis import RedisServer

SECRET = "p%40ss-word"  # p@ss-word
#: docs/replicas.md names these.
COMMANDS = (
    "evalsha eval time exists get set del expire ttl incr hget hset hmget hdel hkeys "
    "zadd zrem zrangebyscore zrandmember xadd xrange xrevrange"
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A Redis where one user may do what docs/replicas.md says, and nobody else anything."""
    rights = [f"+{command}" for command in COMMANDS.split()]
    user = ("--user", "headway", "on", ">p@ss-word", "~{fleet-*}:*", "resetchannels", "-@all", *rights)
    with RedisServer(tmp_path_factory.mktemp("redis"), "--requirepass", "another", *user) as started:
        yield started


def at(server: RedisServer, user: str) -> Replica:
    return Replica(f"redis://{user}@127.0.0.1:{server.port}", fleet(), "run-0")


async def test_a_user_with_the_rights_that_are_documented_is_enough(guarded):
    replica = at(guarded, f"headway:{SECRET}")
    await replica.start()
    budget = [Budget("k", "2026-11-22", 1.0)]
    assert (await replica.state.take(Want((), budget, 0.5, 0.5), 0)).given
    replica.state.settle(budget, 0.5, 0.25)
    replica.state.tell(b"a lesson")
    await replica.state.change("keys", lambda content: {"made": 1})
    await until(lambda: not replica.state._books.untold and not replica.state._lessons)
    health = replica.state.health
    await replica.state.aclose()
    assert (health.failures, health.connected) == (0, True)


@pytest.mark.parametrize("user", ["headway:wr0ng-secret", "default:wr0ng-secret"])
async def test_a_refused_password_is_told_and_not_shown(guarded, user, caplog):
    replica = at(guarded, user)
    await replica.start()
    assert not replica.state.health.connected
    await replica.state.aclose()
    assert "user or password are not accepted" in caplog.text
    assert "wr0ng" not in caplog.text


async def test_a_user_without_rights_is_told(guarded, caplog):
    replica = Replica(f"redis://headway:{SECRET}@127.0.0.1:{guarded.port}", "not-its-fleet", "run-0")
    await replica.start()
    await replica.state.aclose()
    assert "the user may not do this" in caplog.text


async def test_tls_with_a_ca_of_ones_own_and_never_with_a_stranger(calm_server, tmp_path, caplog):
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with Way(calm_server.port, context) as way:
        url = f"rediss://127.0.0.1:{way.port}"
        trusting = Replica(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}", fleet(), "run-0")
        await trusting.start()
        assert trusting.state.health.connected
        await trusting.state.aclose()
        careful = Replica(url, fleet(), "run-0")
        await careful.start()
        assert not careful.state.health.connected
        await careful.state.aclose()


async def test_memory_is_opened_by_its_name():
    state = open_state("memory://", name="x", run_id="r", timeout_s=1, interval_s=1)
    assert isinstance(state, MemoryState)
    await state.start(Ear())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1", "must be memory://"),
        ("redis://:hush@h?socket_timeout=3", "option.*socket_timeout"),
    ],
)
def test_another_url_is_refused(url, said):
    with pytest.raises(ValueError, match=said) as refused:
        open_state(url, name="x", run_id="r", timeout_s=1, interval_s=1)
    assert "hush" not in str(refused.value)


def test_a_missing_client_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio.connection", None)
    with pytest.raises(ImportError, match=r"\.\[redis\]"):
        open_state("redis://127.0.0.1", name="x", run_id="r", timeout_s=1, interval_s=1)
