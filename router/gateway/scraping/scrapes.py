"""Makes the metrics page of this process, and bounds how many pages are made and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from weakref import WeakSet, ref

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
        self._making = asyncio.Lock()
        self._begun = self._newest_number = 0  # pages
        self._kept: WeakSet[Page] = WeakSet()
        self._newest: Callable[[], Page | None] = lambda: None

    async def page(self) -> Page:
        """A page made after this call.

        While clients still read `MAX_PAGES` pages, it is the newest of those: clients that do not read what they
        requested cannot fill the memory.
        """
        begun = self._begun
        async with self._making:
            page = self._newest()
            if page is None or (self._newest_number <= begun and len(self._kept) < MAX_PAGES):
                self._begun += 1
                page = await self._make()
                self._kept.add(page)
                self._newest, self._newest_number = ref(page), self._begun
            return page
