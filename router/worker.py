"""One of several workers of a gateway: `python -m router.worker FD`, started by `router.supervisor`.

FD is the worker's end of a socket pair. The worker requests its fleet (`begin`), reports that it accepts connections
(`ready`) or why it cannot (`failed`), and requests the URLs of emulated engines (`url`) and the metrics of the other
workers (`scrape`). The supervisor requests the worker's metrics (`scrape`) and its fleet (`fleet`), and makes it reload the
fleet file (`reload`). If the link ends, the supervisor has ended too, and the worker drains as on SIGTERM.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import uvloop

from router.config import ConfigError, FleetConfig, InstanceConfig, Problem
from router.fleet_file import FleetFile, dump
from router.gateway.scraping import metrics_page
from router.gateway.telemetry.exposition import Family, Page, counter, gauge, merge, pack, unpack
from router.link import Link, LinkError
from router.listening import BACKLOG, share
from router.process import Process, run_gateway
from router.store.database import StoreError

#: Time limits for the supervisor's answers: it may have to start an engine, or to query all other workers.
ENGINE_TIMEOUT_S = 40.0
SCRAPE_TIMEOUT_S = 4.0


class Worker:
    """A worker's connection to its supervisor."""

    def __init__(self) -> None:
        self.number = 0
        self._link: Link | None = None
        self._file = FleetFile("")
        self._process: asyncio.Future[Process] = asyncio.get_running_loop().create_future()

    @property
    def link(self) -> Link:
        assert self._link is not None  # noqa: S101 (`work` sets it first)
        return self._link

    async def work(self, end: socket.socket) -> int:
        """Serve until stopped; returns the exit code."""
        self._link = await Link.open(end, self._answer)
        serving = asyncio.create_task(self._serve(), name="serve")
        ended = asyncio.create_task(self.link.ended(), name="supervisor")
        try:
            await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                self._orphaned(serving)
            await serving
        except asyncio.CancelledError:
            return 1  # the supervisor has gone before the worker served
        except (ConfigError, StoreError, OSError) as error:
            self.link.notify("failed", _failure(error))
            return 2
        finally:
            ended.cancel()
            await self.link.aclose()
        return 0

    def _orphaned(self, serving: asyncio.Task[None]) -> None:
        """Stop, because the supervisor has ended."""
        if not self._process.done():
            serving.cancel()
        else:
            self._process.result().drain()

    async def _serve(self) -> None:
        try:
            orders = await self.link.request("begin")
        except LinkError:
            return  # the supervisor has ended already
        self.number = orders["number"]
        self._file = FleetFile(**orders["file"])
        config = FleetConfig.model_validate(orders["fleet"])
        self._file.log(config, self.number)
        with share(config.server.host, config.server.port) as listener:

            def ready(_: str) -> None:
                listener.listen(BACKLOG)  # only now: from here on the kernel sends connections to this worker
                self.link.notify("ready")

            await run_gateway(
                config,
                listener,
                reload=self._file.read,
                on_ready=ready,
                on_open=self._process.set_result,
                engine_url=self._engine_url,
                scrape=self._scrape,
            )

    async def _engine_url(self, instance: InstanceConfig) -> str:
        """The URL of an emulated engine, which the supervisor runs for all workers."""
        content = instance.model_dump(mode="json", exclude_unset=True)
        try:
            return str(await self.link.request("url", content, timeout_s=ENGINE_TIMEOUT_S))
        except (LinkError, TimeoutError) as error:
            reason = str(error) or "the emulated engine did not start"
            raise ConfigError("instances", [Problem((instance.name,), reason)]) from error

    async def _scrape(self) -> Page:
        """The metrics of all workers."""
        try:
            others = await self.link.request("scrape", timeout_s=SCRAPE_TIMEOUT_S)
        except (LinkError, TimeoutError):
            return await self._page()  # this worker's metrics alone are better than none
        workers = await Page.of(worker_families(others["workers"]))
        return merge([await self._page(), *[await unpack(page) for page in others["pages"]], workers])

    async def _page(self) -> Page:
        """This worker's own metrics."""
        return await metrics_page((await self._process).gateway, f'worker="{self.number}"')

    async def _answer(self, what: str, content: Any) -> Any:
        process = await asyncio.shield(self._process)
        if what == "scrape":
            return await pack(await self._page())
        if what == "fleet":
            return dump(process.gateway.changes.file)
        if what == "reload":
            return await process.reload()
        raise LinkError(f"a worker does not know {what!r}")


def worker_families(workers: Sequence[tuple[int, bool, int]]) -> Iterator[Family]:
    """What the supervisor knows of the workers: of each its number, whether its metrics are there, and how often it was
    restarted."""
    up = [((str(number),), float(answers)) for number, answers, _ in workers]
    yield gauge("headway_worker_up", "1 if the worker's metrics are on this page.", ("worker",), up)
    restarts = [((str(number),), float(count)) for number, _, count in workers]
    yield counter(
        "headway_worker_restarts", "Restarts of a worker after it had ended.", ("worker",), restarts
    )


def _failure(error: Exception) -> list[Any]:
    """The reason of a failed start: a source, and its problems as lists of `Problem` fields."""
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
