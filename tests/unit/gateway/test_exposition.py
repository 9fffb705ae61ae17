"""A page of metrics: valid text, made in pieces, one at a time."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from bisect import bisect_left
from functools import reduce
from operator import add

import uvloop
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from router.core.histogram import Histogram
from router.core.types import Outcome
from router.gateway.scraping import MAX_PAGES, Scrapes, families, metrics_page
from router.gateway.telemetry import metrics as metrics_module
from router.gateway.telemetry.exposition import Page, counter, gauge, histogram, merge, pack, unpack
from router.gateway.telemetry.metrics import Metrics
from tests.longest_stall import LongestStall
from tests.metrics_page import idle_gateway
from tests.unit.gateway_keys.test_metrics import record

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_VALUES = st.dictionaries(
    st.tuples(_TEXT, _TEXT), st.floats(min_value=0, allow_nan=False, allow_infinity=False), max_size=250
)


def _told(page: Page) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = b"".join(page.pieces()).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(
    st.lists(st.floats(allow_infinity=True, allow_nan=True) | st.integers(-5, 5) | st.just(0.5), max_size=20)
)
def test_a_value_counts_for_the_first_bound_that_it_does_not_exceed(values: list[float]) -> None:
    one, both, bounds = Histogram((0.5, 2.0)), Histogram((0.5, 2.0)), (0.5, 2.0)
    for value in values:
        one.observe(value)
    both.add(one)
    both.add(one)
    counts = [sum(bisect_left(bounds, value) == at for value in values) for at in range(3)]
    assert one.counts == counts
    assert both.counts == [2 * count for count in counts]
    assert repr(one.total) == repr(reduce(add, values, 0.0))


@given(_VALUES, st.sampled_from(["", 'worker="3"']))
def test_what_is_told_is_read_back(values: dict[tuple[str, str], float], more: str) -> None:
    one = Histogram((0.5, 2.0))
    for value in values.values():
        one.observe(value)
    page = asyncio.run(
        Page.of(
            [
                gauge("depth", "How deep.", ("a", "b"), values.items()),
                counter("seen", "How many.", ("a", "b"), [*values.items(), *values.items()]),
                histogram("size", "How large.", (), [((), one)]),
                histogram("sizes", "How large each.", ("of",), [(("x",), one), (("x",), one)]),
            ],
            more,
        )
    )
    labels = [("worker", "3")] if more else []
    expected: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for (a, b), value in values.items():
        both = tuple(sorted([("a", a), ("b", b), *labels]))
        expected["depth", both] = value
        expected["seen_total", both] = value + value
    for name, extra, times in (("size", [], 1), ("sizes", [("of", "x")], 2)):
        if not values:
            continue
        around = tuple(sorted([*extra, *labels]))
        for bound in (0.5, 2.0, math.inf):
            le = "+Inf" if bound == math.inf else repr(bound)
            count = times * sum(value <= bound for value in values.values())
            expected[f"{name}_bucket", tuple(sorted([*extra, *labels, ("le", le)]))] = count
        expected[f"{name}_count", around] = times * len(values)
        expected[f"{name}_sum", around] = sum([one.total] * times)
    assert _told(page) == expected


def test_no_label_has_a_name_that_prometheus_keeps_for_itself() -> None:
    """`promtool check metrics` refuses them: of a histogram's bucket, and of a summary."""
    for family in families(idle_gateway(Metrics())):
        assert not {"le", "quantile"} & set(family.labels), family.name


def _full() -> Metrics:
    """Metrics with as many series as there may be, and more asked for."""
    metrics = Metrics()
    names = [f"instance-{number}-" + "x" * 40 for number in range(60)]
    keys = [f"key-{number}-" + "y" * 40 for number in range(3000)]
    metrics.set_fleet(
        policies=["latency", "price"], models=names, instances=dict.fromkeys(names, "vllm"), keys=keys
    )
    for number in range(metrics_module.MAX_SERIES + 1000):
        metrics.record(
            record(
                key_name=keys[number % len(keys)],
                model_requested=names[number % 60],
                model=names[number // 60 % 60],
                instance=names[number % 60],
            )
        )
    return metrics


def test_the_longest_page_does_not_hold_the_event_loop() -> None:
    metrics = _full()
    assert len(list(metrics.all_series())) <= metrics_module.MAX_SERIES + metrics_module.MAX_BY_MODEL + len(
        Outcome
    )
    assert len(list(metrics.spend())) <= metrics_module.MAX_SERIES + 60  # one for each model

    async def work() -> tuple[float, int]:
        """What part of all CPU time the longest stall took, and the size of both pages."""
        watch = LongestStall(0.005)
        watch.start()
        await asyncio.sleep(0.01)
        watch.reset()
        began = time.process_time()
        page = await metrics_page(idle_gateway(metrics), 'worker="0"')
        sibling = await unpack(await pack(page))
        merged = merge([page, sibling])
        await asyncio.sleep(0.01)
        watch.stop()
        busy_s = time.process_time() - began
        return watch.longest_busy_s / busy_s, sum(map(len, merged.pieces()))

    gc.collect()
    gc.freeze()  # as the gateway does at its start: the objects of a test run are not its own
    # Some 1 %. A thread that works while this one has no core looks like a stall.
    tries = (uvloop.run(work()) for _ in range(5))
    assert any(part < 0.05 and size > 2e6 for part, size in tries)


def test_who_asks_while_a_page_is_made_shares_the_next_one() -> None:
    made, goes_on = 0, asyncio.Event()

    async def make() -> Page:
        nonlocal made
        made += 1
        await goes_on.wait()
        return Page()

    async def work() -> None:
        scrapes = Scrapes(make)
        first = asyncio.create_task(scrapes.page())
        await asyncio.sleep(0)
        late = [asyncio.create_task(scrapes.page()) for _ in range(50)]
        await asyncio.sleep(0)
        late[0].cancel()  # one of them leaves
        goes_on.set()
        pages = await asyncio.gather(*late[1:])
        assert made == 2
        assert all(page is pages[0] for page in pages)
        assert pages[0] is not await first
        await scrapes.page()
        assert made == 3

    asyncio.run(work())


def test_pages_that_nobody_reads_to_the_end_are_few() -> None:
    async def make() -> Page:
        return Page()

    async def work() -> None:
        scrapes = Scrapes(make)
        read = [await scrapes.page() for _ in range(50)]
        assert len(set(map(id, read))) == MAX_PAGES
        assert read[-1] is read[MAX_PAGES - 1]
        newest = read[-1]
        read.clear()
        assert await scrapes.page() is not newest

    asyncio.run(work())
