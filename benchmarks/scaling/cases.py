"""The workloads of the experiment: ServeGen's day cycles, Azure's traces, and a made-up day that needs no data.

A day of ServeGen runs `COMPRESSION` times as fast as it was recorded, and so does the made-up one. The rates are scaled so
that a few instances carry them; of Azure's requests a share is kept. What a scaler may know of earlier days are the published rates of these days.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.compare.resample import Resampler
from benchmarks.workloads.clients import WINDOW_S, ClientPool, spread
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.sources import azure, servegen
from benchmarks.workloads.sources.generators import Lengths, generate
from benchmarks.workloads.sources.source import Choices, Source
from policies.scaling.types import ModelLoad, Observation

DAY_S = 86400.0
#: A recorded day takes three hours.
COMPRESSION = 8.0
#: The share of Azure's requests that are kept.
AZURE_SHARE = 0.5
#: The mean rate of the days before the one that runs.
DAY_RATE_PER_S = 1.6
#: Draws whose number is this or more are for tuning: other days of ServeGen, other draws of the rest.
TUNING = 100


@dataclass(frozen=True, slots=True)
class Case:
    """The requests of one draw, and what is known of the days before. The run begins at `epoch_s`."""

    requests: Sequence[WorkloadRequest]
    past: Sequence[Observation] = ()
    epoch_s: float = 0.0
    day_s: float = DAY_S


def case(name: str, draw: int, model: str, data: Path | None) -> Case:
    """A workload of CASES. Raises WorkloadError without its data."""
    if name == "made":
        return _made(draw, model)
    if data is None:
        raise WorkloadError(f"{name} needs data: give --data DIR or set HEADWAY_DATA")
    source = CASES[name]
    assert source is not None  # noqa: S101 (of all but `made`)
    found = source.read_folder(source.name, [data / file for file in source.folder_files], Choices())
    if isinstance(found, ClientPool):
        return _day(found, 5 + draw % 2 if draw >= TUNING else 8, draw, model)
    assert isinstance(found, list)  # noqa: S101 (a trace is a list)
    resampler, random = Resampler([each.arrival_s for each in found]), Random(f"{draw}/kept")
    drawn = resampler.put_together(found, resampler.draw(draw))
    return Case([each for each in drawn if random.random() < AZURE_SHARE])


#: By name; None: made up.
CASES: dict[str, Source | None] = {
    "servegen_m_large": servegen.M_LARGE,
    "servegen_m_small": servegen.M_SMALL,
    "azure_conv": azure.CONVERSATION,
    "azure_code": azure.CODE,
    "made": None,
}


def _day(pool: ClientPool, day: int, draw: int, model: str) -> Case:
    start_s = day * DAY_S
    factor = DAY_RATE_PER_S / COMPRESSION / pool.mean_rate_per_s(0.0, start_s)
    drawn = pool.draw(draw, start_s, start_s + DAY_S, factor)
    requests = [replace(each, arrival_s=each.arrival_s / COMPRESSION) for each in drawn]
    windows = range(0, round(start_s), WINDOW_S)
    rates = [pool.mean_rate_per_s(at_s, at_s + WINDOW_S) * factor * COMPRESSION for at_s in windows]
    return Case(requests, _past(rates, model), start_s / COMPRESSION, DAY_S / COMPRESSION)


def _past(rates_per_s: Sequence[float], model: str) -> list[Observation]:
    """Windows of earlier days, by their rates on the compressed clock."""
    seconds = WINDOW_S / COMPRESSION
    return [
        Observation((number + 1) * seconds, seconds, {}, {model: ModelLoad(round(rate * seconds))})
        for number, rate in enumerate(rates_per_s)
    ]


def _made(draw: int, model: str) -> Case:
    """The third of three days: two humps a day, the second one higher, and bursts of some minutes."""
    random = Random(f"{draw}/made day")
    windows = round(DAY_S / WINDOW_S)

    def rate(window: int) -> float:
        hour = window * WINDOW_S / 3600 % 24
        humps = math.exp(-(((hour - 10.5) / 2.5) ** 2)) + 1.3 * math.exp(-(((hour - 20.0) / 2.0) ** 2))
        return DAY_RATE_PER_S * (0.45 + 1.4 * humps) * random.lognormvariate(-0.02, 0.2)

    past = [rate(window) for window in range(2 * windows)]
    return Case(
        list(_bursty([rate(window) for window in range(windows)], random, draw)),
        _past(past, model),
        2 * DAY_S / COMPRESSION,
        DAY_S / COMPRESSION,
    )


def _bursty(rates_per_s: Sequence[float], random: Random, draw: int) -> Iterator[WorkloadRequest]:
    """Requests at these rates, window by window, with Gamma gaps of CV 2."""
    seconds = WINDOW_S / COMPRESSION
    lengths = generate("made", Lengths(600.0, 0.8, 60.0, 1.0), draw)
    for number, rate in enumerate(rates_per_s):
        for at_s in spread(random, round(rate * seconds), lambda: random.gammavariate(0.25, 1.0), seconds):
            yield replace(next(lengths), arrival_s=number * seconds + at_s)
