"""Probes, metrics scrapes and other calls that are not part of a request, on connections of their own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from backends.connection import Connection
from backends.http1 import ConnectionLost, Origin
from backends.pool import Pool
from router.core.errors import UpstreamError, UpstreamTimeout

MAX_ANSWER_BYTES = 2 * 1024 * 1024
#: Longer than the usual time between two probes, shorter than vLLM keeps idle connections.
_IDLE_CONNECTION_S = 4.0


class Control:
    """Sends GETs to one engine."""

    def __init__(
        self, origin: Origin, *, headers: Mapping[str, str], tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        self._origin = origin
        lines = {
            "host": origin.authority,
            "user-agent": "headway",
            "accept": "*/*",
            # Compressed data may be a thousand times as large when decompressed.
            "accept-encoding": "identity",
            **headers,
        }
        self._lines = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
        self._pool = Pool(origin, tls=tls, connect_timeout_s=timeout_s, idle_connection_s=_IDLE_CONNECTION_S)
        self._timeout_s = timeout_s

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET. Raises UpstreamError if there is no answer in time."""
        head = f"GET {self._origin.target(path)} HTTP/1.1\r\n{self._lines}\r\n".encode("latin-1")
        try:
            async with asyncio.timeout(self._timeout_s):
                idle = self._pool.take_idle()
                if idle is not None:
                    try:
                        return await _exchange(idle, head)
                    except ConnectionLost:
                        if idle.answering:
                            raise
                return await _exchange(await self._pool.connect(), head)
        except TimeoutError as error:
            raise UpstreamTimeout(f"no answer to {path} in time") from error

    async def check(self, path: str) -> None:
        """Raises UpstreamError, with the reason, unless a GET gets a 200 in time."""
        status, _ = await self.get(path)
        if status != 200:
            raise UpstreamError(f"the engine answers {status} to {path}", status)

    async def aclose(self) -> None:
        await self._pool.aclose()


async def _exchange(connection: Connection, head: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to a request. Raises UpstreamError."""
    arrived = asyncio.Event()
    connection.listener = arrived.set
    connection.send(head, b"")
    body = bytearray()
    try:
        while (data := connection.take()) != b"":
            if data is None:
                await arrived.wait()
                arrived.clear()
                continue
            body += data
            if len(body) > MAX_ANSWER_BYTES:
                raise UpstreamError("the engine's answer is too large")
    except BaseException:
        connection.abort()
        raise
    status = connection.status
    connection.release()
    return status, bytes(body)
