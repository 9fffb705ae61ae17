"""How a replica reaches Redis: users, passwords, TLS, and what is said when it does not."""

from __future__ import annotations

import asyncio
import ssl
from random import Random

import pytest
import trustme

from router.store.redis_link import Link, Script
from router.store.state import TOTAL, Bucket, Budget, Claim
from tests.integration.state.replicas import Replica, Way, fleet
from tests.servers.redis import RedisServer
from tests.waiting import until

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
    assert (await replica.state.take(Claim((), budget, 0.5, 0.5), 0)).given
    replica.state.settle(budget, 0.5, 0.25)
    replica.state.send_observations(b"an observation")
    await replica.state.change("keys", lambda content: {"made": 1})
    await until(lambda: not replica.state._ledger.unsent and not replica.state._observations)
    health = replica.state.health
    await replica.state.aclose()
    assert (health.failures, health.connected) == (0, True)


@pytest.mark.parametrize("user", ["headway:wr0ng-secret", "default:wr0ng-secret"])
async def test_a_refused_password_is_told_and_not_shown(guarded, user, caplog):
    replica = at(guarded, user)
    await replica.start()
    assert not replica.state.health.connected
    await replica.state.aclose()
    assert "the user or the password is not accepted" in caplog.text
    assert "wr0ng" not in caplog.text


async def test_a_user_without_rights_is_told(guarded, caplog):
    replica = Replica(f"redis://headway:{SECRET}@127.0.0.1:{guarded.port}", "not-its-fleet", "run-0")
    await replica.start()
    await replica.state.aclose()
    assert "the user may not do this" in caplog.text


async def test_a_key_that_another_program_uses_is_told(calm_server, caplog):
    name = fleet()
    other = Link(calm_server.url, 1.0)
    await other.run(Script("return redis.call('SET', KEYS[1], 'text')"), f"{{{name}}}:replicas")
    await other.aclose()
    replica = Replica(calm_server.url, name, "run-0")
    await replica.start()
    await replica.state.aclose()
    assert "another program uses a key with the fleet's prefix" in caplog.text


async def test_tls_with_a_ca_of_ones_own_and_never_with_an_unknown_server(calm_server, tmp_path, caplog):
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
        assert "its certificate is not accepted: unable to get local issuer certificate" in caplog.text


async def test_a_call_given_up_leaves_its_answer_to_nobody(calm_server):
    """The answer of a cancelled call must not be taken for that of the next one (CVE-2023-28858, CVE-2023-28859)."""
    link, echo = Link(f"redis://127.0.0.1:{calm_server.port}", 5.0), Script("return ARGV[1]")
    rng, given_up = Random(1), 0
    for number in range(300):
        call = asyncio.create_task(link.run(echo, "{x}:k", f"given-up-{number}"))
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        await asyncio.sleep(rng.random() * 4e-4 if rng.random() < 0.5 else 0)
        call.cancel()
        (answer,) = await asyncio.gather(call, return_exceptions=True)
        given_up += isinstance(answer, asyncio.CancelledError)
        assert await link.run(echo, "{x}:k", f"next-{number}") == f"next-{number}".encode()
    await link.aclose()
    assert given_up > 30


async def test_whoever_gives_up_a_take_has_taken_nothing(calm_server):
    """Clients leave while their take is on its way: in the end the bucket is full and nothing is reserved."""
    replica = Replica(f"redis://127.0.0.1:{calm_server.port}", fleet(), "run-0")
    await replica.start()
    bucket, budget, rng = Bucket("k/requests", 1000.0, 1e-6), Budget("k", TOTAL, 10.0), Random(2)
    claim = Claim([(bucket, 1.0)], [budget], 0.01, 0.0)
    for _ in range(30):
        takes = [asyncio.create_task(replica.state.take(claim, 0)) for _ in range(5)]
        await asyncio.sleep(rng.random() * 2e-3)
        for take in takes:
            take.cancel()
        for grant in await asyncio.gather(*takes, return_exceptions=True):
            if not isinstance(grant, BaseException):
                replica.state.settle([budget], grant.reserved_usd, 0.0)
                replica.state.give(bucket, 1.0, 0)
    await until(lambda: not replica.state._claims.waiting and not replica.state._ledger.unsent)
    await asyncio.sleep(0.1)
    grant = await replica.state.take(claim, 0)
    assert (round(grant.levels[0].level), grant.left_usd) == (999, 10.0)
    await replica.state.aclose()


@pytest.mark.parametrize(("rights", "warned"), [("+@all", True), ("-info", False)])
async def test_a_redis_that_may_drop_keys_is_told_at_the_start(tmp_path, caplog, rights, warned):
    memory = ("--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru")
    user = ("--user", "default", "on", "nopass", "~*", "&*", "+@all", rights)
    with RedisServer(tmp_path, *memory, *user) as server:
        replica = Replica(server.url, fleet(), "run-0")
        await replica.start()
        assert replica.state.health.connected
        await replica.state.aclose()
    words = "budgets and rate limits may be exceeded: set maxmemory-policy noeviction (now volatile-lru)"
    assert (words in caplog.text) is warned
    assert len(caplog.records) == warned


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_file_that_is_missing_is_named(tmp_path, option):
    with pytest.raises(ValueError, match=f"wrong {option}: .*/none.pem: No such file or directory"):
        Link(f"rediss://127.0.0.1:1?{option}={tmp_path}/none.pem", 1.0)
