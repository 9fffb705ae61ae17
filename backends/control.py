"""Probes, metrics scrapes and other calls that are not part of a request, by aiohttp."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import aiohttp

from backends.http1 import Origin
from router.core.errors import UpstreamError, UpstreamTimeout

MAX_ANSWER_BYTES = 2 * 1024 * 1024


class Control:
    """Sends GETs to one engine. A session that is passed in is shared and stays open; otherwise one is created when
    first needed and closed by `aclose`."""

    def __init__(
        self,
        origin: Origin,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
        session: aiohttp.ClientSession | None,
        timeout_s: float,
    ) -> None:
        self._origin = origin
        # Compressed data may be a thousand times as large when decompressed.
        self._headers = {"accept-encoding": "identity", **headers}
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._session = session
        self._owned = session is None
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET. Raises UpstreamError if there is no answer in time."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=4, keepalive_timeout=2)
            )
        try:
            async with self._session.get(
                self._origin.url(path),
                headers=self._headers,
                ssl=self._tls,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise UpstreamError(f"the engine's answer to {path} is packed")
                body = await response.content.read(MAX_ANSWER_BYTES)
                while not response.content.at_eof():
                    more = await response.content.read(MAX_ANSWER_BYTES)
                    body += more
                    if len(body) > MAX_ANSWER_BYTES:
                        raise UpstreamError(f"the engine's answer to {path} is too large")
                return response.status, body
        except TimeoutError as error:
            raise UpstreamTimeout(f"no answer to {path} in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamError(f"no answer to {path} ({type(error).__name__})") from error

    async def ok(self, path: str) -> bool:
        """Whether a GET gets a 200 in time."""
        try:
            status, _ = await self.get(path)
        except UpstreamError:
            return False
        return status == 200

    async def aclose(self) -> None:
        if self._owned and self._session is not None:
            await self._session.close()
            self._session = None
