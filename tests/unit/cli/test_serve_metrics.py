"""The metrics of several workers are one page of valid families."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from router.core.histogram import Histogram
from router.gateway.scraping import process_families
from router.gateway.telemetry.exposition import Family, Page, counter, gauge, histogram, merge, pack, unpack
from router.worker import worker_families


def page(requests, *seconds, more=()) -> list[Family]:
    """What one worker reports."""
    times = Histogram((0.1, 1.0))
    for each in seconds:
        times.observe(each)
    return [
        counter("requests", "Labels.", ("model",), [((model,), count) for model, count in requests.items()]),
        gauge("depth", "No labels.", (), [((), len(seconds))]),
        histogram("seconds", "Time.", ("model",), [(("m",), times)]),
        *[gauge(name, "Only one has it.", (), [((), 1)]) for name in more],
    ]


def text_of(families) -> str:
    return "".join("".join([each.head, *each.samples("")]) for each in families)


def samples(text):
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {(each.name, *sorted(each.labels.items())): each.value for one in families for each in one.samples}


def together(pages, supervisor):
    """One page of what each worker told, sent to another as it is between processes."""

    async def send(families, more):
        return await unpack(await pack(await Page.of(families, more)))

    async def work():
        labelled = [await send(families, f'worker="{number}"') for number, families in pages.items()]
        return merge([*labelled, await send(worker_families(supervisor), "")])

    return b"".join(asyncio.run(work()).pieces()).decode()


def test_each_sample_is_there_once_with_its_worker():
    odd = 'a{b} "c", d\\\n# HELP e f'
    pages = {0: page({"m": 3, odd: 1}, 0.05, 0.5), 1: page({"m": 4}, 2.0, more=["extra"])}
    merged = together(pages, [[0, True, 2]])
    found = samples(merged)
    assert found["requests_total", ("model", "m"), ("worker", "0")] == 3
    assert found["requests_total", ("model", "m"), ("worker", "1")] == 4
    assert found["requests_total", ("model", odd), ("worker", "0")] == 1
    assert found["seconds_bucket", ("le", "1.0"), ("model", "m"), ("worker", "0")] == 2
    assert found["seconds_sum", ("model", "m"), ("worker", "1")] == 2.0
    assert found["depth", ("worker", "1")] == 1
    assert found["extra", ("worker", "1")] == 1
    assert found["headway_worker_up", ("worker", "0")] == 1
    assert found["headway_worker_restarts_total", ("worker", "0")] == 2
    # Nothing more than each has reported, and nothing less.
    told = [value for each in pages.values() for value in samples(text_of(each)).values()]
    assert sorted(found.values()) == sorted([1, 2, *told])
    # What belongs together stands together, its kind told once, before it.
    assert merged.count("# TYPE requests_total counter\n") == 1
    assert (
        merged.index("# TYPE seconds histogram")
        < merged.index("seconds_bucket{")
        < merged.index("seconds_sum{")
    )


def test_the_process_of_a_worker_is_part_of_its_page():
    found = samples(text_of(process_families()))
    assert {name for name, *_ in found} >= {"process_cpu_seconds_total", "process_open_fds", "python_info"}
    assert all(value >= 0 for value in found.values())
