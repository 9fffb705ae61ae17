"""Replicas of one fleet over a real Redis, and what they hear."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from router.store.redis_state import RedisState
from router.store.state import Peers, ReplicaReport
from tests.waiting import until

#: How long those that are back decide alone. The others come back within `conftest.RETRY_S`.
SETTLE_S = 0.8
#: Each fleet of a test has its own keys, so that tests share one server.
_fleets = itertools.count()


def fleet() -> str:
    """A name that no other test uses."""
    return f"fleet-{next(_fleets)}"


class Ear:
    """A listener that keeps what it received, and reports what it is set to."""

    def __init__(self) -> None:
        self.tells = ReplicaReport()
        self.peers: list[Peers] = []
        self.observations: list[bytes] = []
        self.documents: dict[str, Mapping[str, Any]] = {}

    def report(self) -> ReplicaReport:
        told, self.tells = (
            self.tells,
            ReplicaReport(self.tells.work, self.tells.ejections, {}, self.tells.queued),
        )
        return told

    def receive_peers(self, peers: Peers) -> None:
        self.peers.append(peers)

    def receive_observations(self, observations: Sequence[bytes]) -> None:
        self.observations += observations

    def document_changed(self, document: str, content: Mapping[str, Any]) -> None:
        self.documents[document] = content


class Replica:
    """A state and its listener. A busy machine has time to answer: who wants no answer gives a shorter `timeout_s`."""

    def __init__(self, url: str, name: str, run_id: str, *, timeout_s: float = 20.0) -> None:
        self.state = RedisState(url, name=name, run_id=run_id, timeout_s=timeout_s, interval_s=0.02)
        self.state._settle_s = SETTLE_S
        self.ear = Ear()

    async def start(self) -> None:
        await self.state.start(self.ear)

    async def die(self) -> None:
        """As a killed process does: without a word."""
        task = self.state._task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.state._link.aclose()


@asynccontextmanager
async def replicas(url: str, count: int, *, timeout_s: float = 20.0) -> AsyncIterator[list[Replica]]:
    """So many of a new fleet, which know of each other."""
    name = fleet()
    async with AsyncExitStack() as stack:
        started = []
        for number in range(count):
            replica = Replica(url, name, f"run-{number}", timeout_s=timeout_s)
            await replica.start()
            stack.push_async_callback(replica.state.aclose)
            started.append(replica)
        await until(lambda: all(each.state.health.replicas == count for each in started))
        yield started


class Way:
    """A way to Redis that can be closed while those of others stay open, and along which answers can be lost. With `tls`
    it is encrypted up to here."""

    def __init__(self, to_port: int, tls: ssl.SSLContext | None = None) -> None:
        self._to_port = to_port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.deaf = False
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:  # Redis is down
            writer.close()
            return
        self._writers += [writer, to_writer]
        await asyncio.gather(self._pass(reader, to_writer, True), self._pass(to_reader, writer, False))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: bool) -> None:
        try:
            while data := await reader.read(65536):
                if there or not self.deaf:
                    writer.write(data)
        except OSError:
            pass  # it was closed: so is the other end now
        finally:
            writer.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for each in self._writers:
            each.close()
        await asyncio.gather(*(each.wait_closed() for each in self._writers), return_exceptions=True)
        self._writers.clear()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
