"""One worker of a gateway that has several: `python -m router.worker FD`, started by `router.supervisor`.

FD is its end of a socket pair. Over it the worker asks what to serve (`begin`), says that it accepts connections
(`ready`) or why it cannot (`failed`), and asks for the URLs of emulated engines (`url`) and for the metrics of the
others (`scrape`). The supervisor asks it for its own metrics (`scrape`), for the fleet file that it serves by (`fleet`)
and to have the file read again (`reload`). When the link ends, so has the supervisor, and the worker drains as on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from typing import Any

import uvloop

from router.config import ConfigError, FleetConfig, InstanceConfig, Problem
from router.fleet_file import FleetFile, dump
from router.gateway.telemetry.exposition import Page
from router.gateway.telemetry.scrapes import metrics_page
from router.gateway.telemetry.worker_pages import add_text, merge, pack, unpack
from router.link import Link, LinkError
from router.listening import BACKLOG, share
from router.process import Process, run_gateway
from router.store.database import StoreError

#: For the supervisor's answers: it starts an engine, or asks all other workers.
ENGINE_TIMEOUT_S = 40.0
SCRAPE_TIMEOUT_S = 4.0


class SupervisorsEngines:
    """The emulated engines that the supervisor runs for all workers."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def start(self, instances: Sequence[InstanceConfig]) -> None:
        """Nothing: the supervisor started those of the fleet file, and starts others when it is asked for their URL."""

    async def url(self, instance: InstanceConfig) -> str:
        content = instance.model_dump(mode="json", exclude_unset=True)
        try:
            return str(await self._link.ask("url", content, timeout_s=ENGINE_TIMEOUT_S))
        except (LinkError, TimeoutError) as error:
            reason = str(error) or "the emulated engine did not start"
            raise ConfigError("instances", [Problem((instance.name,), reason)]) from error


class Worker:
    """What a process of the gateway has from its supervisor (`router.process.Place`)."""

    def __init__(self) -> None:
        self.number = 0
        self._link: Link | None = None
        self._file = FleetFile("")
        self._process: asyncio.Future[Process] = asyncio.get_running_loop().create_future()

    @property
    def link(self) -> Link:
        assert self._link is not None  # noqa: S101 (it is there from the first line of `work` on)
        return self._link

    @property
    def engines(self) -> SupervisorsEngines:
        return SupervisorsEngines(self.link)

    def opened(self, process: Process) -> None:
        self._process.set_result(process)

    async def work(self, end: socket.socket) -> int:
        """Serve until told to stop; the exit code."""
        self._link = await Link.open(end, self._answer)
        serving = asyncio.create_task(self._serve(), name="serve")
        ended = asyncio.create_task(self.link.ended(), name="supervisor")
        try:
            await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                self._orphaned(serving)
            await serving
        except asyncio.CancelledError:
            return 1  # nobody is left to serve for
        except (ConfigError, StoreError, OSError) as error:
            self.link.tell("failed", _failure(error))
            return 2
        finally:
            ended.cancel()
            await self.link.aclose()
        return 0

    def _orphaned(self, serving: asyncio.Task[None]) -> None:
        """The supervisor has gone."""
        if not self._process.done():
            serving.cancel()
        elif not self._process.result().gateway.draining:
            self._process.result().stop()

    async def _serve(self) -> None:
        try:
            orders = await self.link.ask("begin")
        except LinkError:
            return  # it has gone before we began
        self.number = orders["number"]
        self._file = FleetFile(**orders["file"])
        config = FleetConfig.model_validate(orders["fleet"])
        self._file.log(config, self.number)
        listener = share(config.server.host, config.server.port)

        def ready(_: str) -> None:
            listener.listen(BACKLOG)  # not before: from here on the kernel sends it its share of connections
            self.link.tell("ready")

        try:
            await run_gateway(config, listener, reload=self._file.read, on_ready=ready, place=self)
        finally:
            listener.close()

    async def scrape(self) -> Page:
        try:
            others = await self.link.ask("scrape", timeout_s=SCRAPE_TIMEOUT_S)
        except (LinkError, TimeoutError):
            others = {"pages": [], "supervisor": ""}  # better our own than none
        supervisor = Page()
        add_text(supervisor, others["supervisor"])
        return merge([await self._page(), *[await unpack(page) for page in others["pages"]], supervisor])

    async def _page(self) -> Page:
        """This worker's own metrics."""
        return await metrics_page((await self._process).gateway.metrics, f'worker="{self.number}"')

    async def _answer(self, what: str, content: Any) -> Any:
        process = await asyncio.shield(self._process)
        if what == "scrape":
            return await pack(await self._page())
        if what == "fleet":
            return dump(process.gateway.changes.file)
        if what == "reload":
            # The others, here and on other machines, hear of it through the shared state.
            return {"good": await process.reload(), "alone": not process.gateway.state.health.connected}
        raise LinkError(f"a worker does not know {what!r}")


def _failure(error: Exception) -> list[Any]:
    """What stops the start, as `Problem`s: source and problems."""
    if isinstance(error, ConfigError):
        return [error.source, [[each.path, each.reason, each.line] for each in error.problems]]
    if isinstance(error, StoreError):
        return ["store", [[["url"], str(error), None]]]
    name = getattr(error, "filename", None)
    return [name or "server", [[[], getattr(error, "strerror", None) or str(error), None]]]


async def _main(end: socket.socket) -> int:
    return await Worker().work(end)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as mine:
        mine.set_inheritable(False)
        raise SystemExit(uvloop.run(_main(mine)))
