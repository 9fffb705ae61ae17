"""The metrics of several workers are one page of valid families."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.gateway.telemetry.exposition import Page
from router.gateway.telemetry.worker_pages import add_text, merge, pack, unpack


def page(requests, *seconds, more=()) -> str:
    """What one worker tells."""
    registry = CollectorRegistry()
    counter = Counter("requests", 'Help with a \\ and a\nnew "line".', ["model"], registry=registry)
    for model, count in requests.items():
        counter.labels(model).inc(count)
    Gauge("depth", "No labels.", registry=registry).set(len(seconds))
    histogram = Histogram("seconds", "Time.", ["model"], buckets=(0.1, 1.0), registry=registry)
    for each in seconds:
        histogram.labels("m").observe(each)
    for name in more:
        Gauge(name, "Only one has it.", registry=registry).set(1)
    return generate_latest(registry).decode()


def samples(text):
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {(each.name, *sorted(each.labels.items())): each.value for one in families for each in one.samples}


def together(pages, supervisor):
    """One page of what each worker told, sent to another as it is between processes."""

    async def send(text, more):
        sent = Page()
        add_text(sent, text, more)
        return await unpack(await pack(sent))

    async def work():
        labelled = [await send(text, f'worker="{number}"') for number, text in pages.items()]
        return merge([*labelled, await send(supervisor, "")])

    return b"".join(asyncio.run(work()).pieces()).decode()


def test_each_sample_is_there_once_with_its_worker():
    odd = 'a{b} "c", d\\\n# HELP e f'
    pages = {0: page({"m": 3, odd: 1}, 0.05, 0.5), 1: page({"m": 4}, 2.0, more=["extra"])}
    merged = together(pages, '# HELP up Is it?\n# TYPE up gauge\nup{worker="0"} 1\n')
    found = samples(merged)
    assert found["requests_total", ("model", "m"), ("worker", "0")] == 3
    assert found["requests_total", ("model", "m"), ("worker", "1")] == 4
    assert found["requests_total", ("model", odd), ("worker", "0")] == 1
    assert found["seconds_bucket", ("le", "1.0"), ("model", "m"), ("worker", "0")] == 2
    assert found["seconds_sum", ("model", "m"), ("worker", "1")] == 2.0
    assert found["depth", ("worker", "1")] == 1
    assert found["extra", ("worker", "1")] == 1
    assert found["up", ("worker", "0")] == 1
    # Nothing more than each had told, and nothing less.
    assert len(found) == 1 + sum(len(samples(each)) for each in pages.values())
    assert sorted(found.values()) == sorted(
        [1, *(v for each in pages.values() for v in samples(each).values())]
    )
    # What belongs together stands together, its kind told once, before it.
    assert merged.count("# TYPE requests_total counter\n") == 1
    assert (
        merged.index("# TYPE seconds histogram")
        < merged.index("seconds_bucket{")
        < merged.index("seconds_sum{")
    )


def test_nothing_to_tell():
    assert together({}, "") == together({3: ""}, "") == ""
