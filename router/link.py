"""Two processes of one gateway that ask each other over a socket pair.

A frame is its length (4 bytes) and JSON: `{"id", "ask", "content"}` asks (without an id nobody waits for the answer),
`{"id", "answer"}` and `{"id", "refusal"}` answer. Whoever ends closes its socket, however it ends, and the other
one notices.
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

#: Answers what the other side asks: the name of the question and its content. What it raises as LinkError is told
#: to who asked.
Answer = Callable[[str, Any], Awaitable[Any]]


class LinkError(Exception):
    """The other side has gone, or refuses; the text says why."""


class Link:
    """One end. Made by `open`; `aclose` ends it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering = Tasks()
        self._reading = asyncio.create_task(self._read(), name="link")

    @classmethod
    async def open(cls, end: socket.socket, answer: Answer) -> Self:
        """Take over one end of a socket pair."""
        end.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, answer)

    def tell(self, what: str, content: Any = None) -> None:
        """Ask without waiting for an answer; lost if the other side has gone."""
        self._send({"ask": what, "content": content})

    async def ask(self, what: str, content: Any = None, *, timeout_s: float | None = None) -> Any:
        """The other side's answer. Raises LinkError, and TimeoutError after `timeout_s`."""
        if self._reading.done():
            raise LinkError("the other process has ended")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"id": number, "ask": what, "content": content})
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            del self._asked[number]

    async def ended(self) -> None:
        """Return when the other side has gone."""
        await asyncio.wait([self._reading])

    async def aclose(self) -> None:
        """Let go of the socket; who still waits for an answer gets LinkError."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._answering.stop()
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):  # what was told last is still sent
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
            pass  # the other side has gone
        except Exception as error:  # noqa: BLE001 (out of step: as if it had gone)
            failed("link", error)
        finally:
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(LinkError("the other process has ended"))

    def _take(self, frame: dict[str, Any]) -> None:
        if "ask" in frame:
            self._answering.start(self._respond(frame), f"link {frame['ask']}")
            return
        waiting = self._asked.get(frame["id"])
        if waiting is None or waiting.done():
            return  # it waits no longer
        if "refusal" in frame:
            waiting.set_exception(LinkError(frame["refusal"]))
        else:
            waiting.set_result(frame["answer"])

    async def _respond(self, frame: dict[str, Any]) -> None:
        reply: dict[str, Any]
        try:
            reply = {"answer": await self._answer(frame["ask"], frame["content"])}
        except LinkError as error:
            reply = {"refusal": str(error)}
        except Exception as error:  # noqa: BLE001 (the root of this task: a fault of ours ends neither process)
            failed("link", error)
            reply = {"refusal": "it failed"}
        if "id" in frame:
            self._send(reply | {"id": frame["id"]})
