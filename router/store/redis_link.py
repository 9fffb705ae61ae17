"""The connection to Redis: one call at a time, with a time limit. Every failure is a `StateError` without credentials.

A connection is closed after a call that failed, timed out or was cancelled: its answer may still arrive and would be read
as that of the next call (redis-py's issues 2624 and 2665). redis-py would reconnect and send again by itself; here nothing
is sent twice unless the caller does so.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import ssl
from typing import TYPE_CHECKING, Any

from router.store.faults import tls_file_fault
from router.store.state import StateError, StateRefused

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

#: Options in a URL's query beside the number of the database. All others are set here.
_OPTIONS = ("db", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")


class Script:
    """A Lua script: sent by its hash, and in full to a server that does not know the hash."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


#: Its user may not be allowed to ask.
_MEMORY = Script("""
local memory = redis.pcall('INFO', 'memory')
return type(memory) == 'string' and memory or ''
""")


class Link:
    """Connects when needed. `url` is redis:// or rediss://, with user and password if necessary.

    Raises ImportError without redis-py, ValueError for a wrong option.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        try:
            from redis.asyncio.connection import Connection, parse_url
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            raise ImportError(
                "a shared state needs the Redis client: pip install '.[redis]' in Headway's checkout"
            ) from error
        try:
            parsed: dict[str, Any] = dict(parse_url(url))
        except ValueError:  # its text may contain part of a password
            raise ValueError("the URL of the shared state cannot be read") from None
        self._class: type[AbstractConnection] = parsed.pop("connection_class", Connection)
        known = ("host", "port", "username", "password", *_OPTIONS)
        unknown = sorted(set(parsed) - set(known))
        if unknown:
            raise ValueError(f"unknown option in the URL of the shared state: {', '.join(unknown)}")
        of_tls = sorted(name for name in parsed if name.startswith("ssl_"))
        if of_tls and not url.startswith("rediss://"):
            raise ValueError(f"the URL of the shared state has {of_tls[0]}, which needs rediss://")
        for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
            if name in parsed and (fault := tls_file_fault(parsed[name], has_key=name == "ssl_keyfile")):
                raise ValueError(f"the URL of the shared state has a wrong {name}: {fault}")
        # RESP2, no driver name, no time limits of its own: the call as a whole has one.
        self._settings = parsed | {
            "protocol": 2,
            "driver_info": None,
            "socket_timeout": None,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
        }
        self._timeout_s = timeout_s
        self._connection: AbstractConnection | None = None

    async def run(self, script: Script, key: str, *arguments: str) -> Any:
        """Run a script. `key` is one of the keys that it uses (a Cluster routes by its hash tag). Raises StateError."""
        from redis.exceptions import NoScriptError, RedisError

        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    return await self._call("EVALSHA", script.sha1, "1", key, *arguments)
                except NoScriptError:
                    return await self._call("EVAL", script.text, "1", key, *arguments)
        except TimeoutError:
            await self.aclose()
            raise StateError(f"no answer within {self._timeout_s:g} s") from None
        except (RedisError, OSError) as error:
            await self.aclose()
            raise _in_words(error) from None
        except BaseException:
            await self.aclose()
            raise

    async def drops_keys(self, key: str) -> str | None:
        """What Redis says of dropping keys when its memory is full; None if it drops none, or does not say. `key` as in `run`.
        Raises StateError."""
        text: bytes = await self.run(_MEMORY, key)
        memory = dict(re.findall(r"^(\w+):(\S+)", text.decode(), re.MULTILINE))
        policy = memory.get("maxmemory_policy", "noeviction")
        if policy == "noeviction" or memory.get("maxmemory") == "0":
            return None
        return (
            "the shared state drops keys when its memory is full, and then budgets and rate limits may be exceeded: set"
            f" maxmemory-policy noeviction (now {policy})"
        )

    async def _call(self, *command: str) -> Any:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._class(**self._settings)
            await connection.connect()  # type: ignore[no-untyped-call]
        # redis-py's own packing takes several times as long.
        words = [word.encode() for word in command]
        packed = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        await connection.send_packed_command(b"*%d\r\n%b" % (len(words), b"".join(packed)))
        return await connection.read_response()

    async def aclose(self) -> None:
        """Close the connection. The next call opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


_OF_A_CLUSTER = "it is a node of a Redis Cluster without the fleet's keys: use one Redis server"
#: Words for an error that lasts until someone acts, by its class in redis-py.
_REFUSALS = {
    "NoPermissionError": "the user may not do this",
    "AuthenticationError": "the user or the password is not accepted",
    **dict.fromkeys(("MovedError", "ClusterDownError"), _OF_A_CLUSTER),
}
#: Words for any other error, by its class, or by Redis' code if redis-py has no class for it or it is a script's.
_WORDS = {
    "BusyLoadingError": "it is still loading its data",
    **dict.fromkeys(("OutOfMemoryError", "OOM"), "it is out of memory"),
    **dict.fromkeys(("ReadOnlyError", "READONLY"), "it is a read-only replica"),
    "WRONGTYPE": "another program uses a key with the fleet's prefix",
}


def _in_words(error: Exception) -> StateError:
    """An error's kind only: its text may contain keys or values."""
    name, text, cause = type(error).__name__, str(error), error.__context__
    if name in _REFUSALS:
        return StateRefused(_REFUSALS[name])
    if isinstance(cause, ssl.SSLCertVerificationError):
        return StateRefused(f"its certificate is not accepted: {cause.verify_message}")
    if name == "ConnectionError" and isinstance(cause, OSError) and cause.errno is not None:
        return StateError(os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror))
    if name == "ResponseError" and text.startswith("unknown command"):
        return StateRefused("it does not run scripts: is it a Sentinel, or are its commands renamed?")
    code = re.search(r"(?:^|: -?)([A-Z]{2,}) ", text) if name == "ResponseError" else None
    return StateError(_WORDS.get(found := code[1] if code else name, found))
