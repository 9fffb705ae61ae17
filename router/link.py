"""Requests and answers between two processes of one gateway, over a socket pair.

A frame is its length (4 bytes) and JSON. `{"id", "request", "content"}` is a request; without an id it expects no answer.
`{"id", "answer"}` and `{"id", "refusal"}` are answers. When a process ends, its socket closes, and the other process
notices.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any, Self

import orjson

from router.background import Tasks, failed

CLOSE_TIMEOUT_S = 1.0

#: Answers a request of the other side, given the request's name and content. A LinkError that it raises is sent back.
Answer = Callable[[str, Any], Awaitable[Any]]


class LinkError(Exception):
    """The other process has ended or refuses; the text gives the reason."""


class Link:
    """One end of the connection. `open` creates it, `aclose` closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._answering = Tasks()
        self._reading = asyncio.create_task(self._read(), name="link")

    @classmethod
    async def open(cls, end: socket.socket, answer: Answer) -> Self:
        """Use one end of a socket pair."""
        end.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, answer)

    def notify(self, what: str, content: Any = None) -> None:
        """Send a request that expects no answer. It is lost if the other process has ended."""
        self._send({"request": what, "content": content})

    async def request(self, what: str, content: Any = None, *, timeout_s: float | None = None) -> Any:
        """Send a request and return the answer. Raises LinkError, and TimeoutError after `timeout_s`."""
        if self._reading.done():
            raise LinkError("the other process has ended")
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"id": number, "request": what, "content": content})
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            del self._pending[number]

    async def ended(self) -> None:
        """Wait until the other process has closed its end."""
        await asyncio.wait([self._reading])

    async def aclose(self) -> None:
        """Close the socket. Pending requests raise LinkError."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._answering.stop()
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):  # the last frames are still sent
                await self._writer.wait_closed()

    def _send(self, frame: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            data = orjson.dumps(frame)
            self._writer.write(len(data).to_bytes(4, "big") + data)

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                self._take(orjson.loads(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            pass  # the other process has ended
        except Exception as error:  # noqa: BLE001 (an invalid frame: the same as an end)
            failed("link", error)
        finally:
            for waiting in self._pending.values():
                if not waiting.done():
                    waiting.set_exception(LinkError("the other process has ended"))

    def _take(self, frame: dict[str, Any]) -> None:
        if "request" in frame:
            self._answering.start(self._respond(frame), f"link {frame['request']}")
            return
        waiting = self._pending.get(frame["id"])
        if waiting is None or waiting.done():
            return  # the caller no longer waits
        if "refusal" in frame:
            waiting.set_exception(LinkError(frame["refusal"]))
        else:
            waiting.set_result(frame["answer"])

    async def _respond(self, frame: dict[str, Any]) -> None:
        reply: dict[str, Any]
        try:
            reply = {"answer": await self._answer(frame["request"], frame["content"])}
        except LinkError as error:
            reply = {"refusal": str(error)}
        except Exception as error:  # noqa: BLE001 (the root of this task: an internal error ends neither process)
            failed("link", error)
            reply = {"refusal": "it failed"}
        if "id" in frame:
            self._send(reply | {"id": frame["id"]})
