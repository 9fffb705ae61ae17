"""Arrival times (Poisson, bursty, day cycle) as endless streams in seconds from 0, and the rescaling of times that are there."""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections.abc import Callable, Iterator


def poisson(random_: random.Random, rate_per_s: float) -> Iterator[float]:
    """Independent exponential gaps (CV 1)."""
    return itertools.accumulate(iter(lambda: random_.expovariate(rate_per_s), None))


def gamma(random_: random.Random, rate_per_s: float, cv: float) -> Iterator[float]:
    """Independent Gamma gaps of coefficient of variation `cv` (above 1 bursty, below 1 regular): the usual renewal model of
    bursty LLM traffic (BurstGPT, arXiv 2401.17644; ServeGen, arXiv 2505.09999)."""
    shape = 1 / (cv * cv)
    scale = 1 / (rate_per_s * shape)
    return itertools.accumulate(iter(lambda: random_.gammavariate(shape, scale), None))


def day_cycle(
    random_: random.Random, rate_per_s: float, period_s: float = 86400.0, depth: float = 0.6
) -> Iterator[float]:
    """A Poisson process whose rate swings as a sine around `rate_per_s`, from (1 - depth) to (1 + depth)
    times it, starting at the low; drawn by thinning (Lewis and Shedler, 1979)."""
    peak = rate_per_s * (1 + depth)
    for at_s in poisson(random_, peak):
        rate = rate_per_s * (1 - depth * math.cos(2 * math.pi * at_s / period_s))
        if random_.random() * peak < rate:
            yield at_s


def spread(random_: random.Random, count: int, gap: Callable[[], float], length_s: float) -> list[float]:
    """`count` times in [0, length_s), rising, whose gaps are draws of `gap` stretched to fill the length. The gaps go round
    a circle that is cut at a random place, so that no part of the length is favoured. Only the shape of `gap` matters, not
    its scale."""
    gaps = array("d", (gap() for _ in range(count)))
    total = math.fsum(gaps)
    if not total > 0:  # gaps so uneven that all are below what a float holds: one burst
        return [random_.random() * length_s] * count
    offset_s = random_.random() * length_s
    scale = length_s / total
    around = (offset_s + elapsed * scale for elapsed in itertools.accumulate(gaps))
    # Rounding must not put a time at the very end, which belongs to the next stretch.
    return sorted(min(at_s % length_s, math.nextafter(length_s, 0.0)) for at_s in around)
