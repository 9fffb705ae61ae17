"""A request that the gateway sends to itself, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from router.gateway.http.client_request import ClientRequest, Handler


class _NoConnection:
    """Stands in for the connection of such a request."""

    def __init__(self) -> None:
        self.transport = asyncio.Transport()
        self.flow = FlowControl(self.transport)
        self.loop = asyncio.get_running_loop()
        self.tasks: set[Any] = set()
        self.common_lines: Callable[[], bytes] = bytes

    def on_response_complete(self) -> None:
        """There is no next request."""


class InternalRequest(ClientRequest):
    """A POST that wants no stream, for the handler of the hot paths. Used once."""

    __slots__ = ("_answered",)

    def __init__(self, handler: Handler, path: str, body: bytes) -> None:
        super().__init__(
            _NoConnection(),
            handler,
            b"POST",
            path,
            headers := [(b"content-length", b"%d" % len(body))],
            dict(headers),
            chunked=True,
            keep_alive=True,
            expects_continue=False,
            paused=False,
        )
        self._answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._parts = [body]
        self.more_body = False

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the response. If nobody waits for it any more, the request ends as if its client had left."""
        self.start()
        try:
            return await self._answered
        finally:
            self.leave()

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """The complete response."""
        self.response_started = self.response_complete = True
        self._answer(status, body)

    def gone(self) -> None:
        """There is no response."""
        super().gone()
        self._answer(500, b"")

    def abort(self) -> None:
        """There is no response, and no connection to close."""
        self.gone()

    def _answer(self, status: int, body: bytes) -> None:
        if not self._answered.done():
            self._answered.set_result((status, body))
