"""Makes the metrics page of this process, and bounds how many pages are made and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from weakref import ReferenceType, WeakSet, ref

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from router.gateway.scraping.families import families
from router.gateway.service import Gateway
from router.gateway.telemetry.exposition import Family, Page, counter, gauge

#: Pages kept while clients read them.
MAX_PAGES = 3

#: What prometheus_client reports about this process.
PROCESS = CollectorRegistry(auto_describe=False)
ProcessCollector(registry=PROCESS)
PlatformCollector(registry=PROCESS)
GCCollector(registry=PROCESS)


async def metrics_page(gateway: Gateway, more: str = "") -> Page:
    """The page of a scrape; the event loop runs while it is made. `more` is a label for all samples (`worker="0"`)."""
    return await Page.of(chain(families(gateway), process_families()), more)


def process_families() -> Iterator[Family]:
    """The families of `PROCESS`."""
    for metric in PROCESS.collect():
        make = counter if metric.type == "counter" else gauge
        values = [(tuple(each.labels.values()), each.value) for each in metric.samples]
        yield make(metric.name, metric.documentation, tuple(metric.samples[0].labels), values)


class Scrapes:
    """Makes one page at a time. Callers that come while one is made share the next."""

    def __init__(self, make: Callable[[], Awaitable[Page]]) -> None:
        self._make = make
        self._running: asyncio.Task[Page] | None = None
        self._next: asyncio.Task[Page] | None = None
        self._kept: WeakSet[Page] = WeakSet()
        self._newest: ReferenceType[Page] | None = None

    async def page(self) -> Page:
        """A page made after this call.

        While clients still read `MAX_PAGES` pages, it is the newest of those: clients that do not read what they
        requested cannot fill the memory.
        """
        newest = None if self._newest is None else self._newest()
        if newest is not None and len(self._kept) >= MAX_PAGES:
            return newest
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running), name="metrics page")
        return await asyncio.shield(self._next)

    async def _after(self, running: asyncio.Task[Page] | None) -> Page:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None  # callers from here on share the page after this one
        try:
            page = await self._make()
        finally:
            self._running = None  # the task would keep the page in memory
        self._kept.add(page)
        self._newest = ref(page)
        return page
