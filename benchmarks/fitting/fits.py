"""The fits: each takes arrays and gives constants with the errors of the fit. No files here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from benchmarks.fitting.tables import Array, LayerTimes

READING, SUMMING = 32, 1024


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of a fit over its table."""

    rows: int
    median: float
    p90: float

    @classmethod
    def of(cls, fitted: Array, measured: Array) -> Errors:
        relative = np.abs(fitted / measured - 1)
        return cls(len(measured), float(np.median(relative)), float(np.quantile(relative, 0.9)))


@dataclass(frozen=True, slots=True)
class MatmulFit:
    memory_share: float
    flops_share: float
    fixed_s: float
    errors: Errors


@dataclass(frozen=True, slots=True)
class ElementwiseFit:
    fixed_s: float
    hidden_factor: float
    intermediate_factor: float
    errors: Errors


@dataclass(frozen=True, slots=True)
class LineFit:
    """y = fixed + slope * x."""

    fixed: float
    slope: float
    errors: Errors


def matmul(times: LayerTimes, bytes_per_s: float, flops: float) -> MatmulFit:
    """fixed + max(reading the weights, doing the sums) for the matrix products of one 16-bit layer.

    Each side is fitted where it holds: reading, and the fixed time, on batches of at most READING tokens,
    sums on those of at least SUMMING. The errors are over the whole table, the bend between them included.
    """
    small, large = times.tokens <= READING, times.tokens >= SUMMING
    reading = line(2 * times.params[small] / bytes_per_s, times.matmul_s[small])
    ideal_s = 2 * times.params[large] * times.tokens[large] / flops
    slower = float(np.median((times.matmul_s[large] - reading.fixed) / ideal_s))
    fitted = reading.fixed + np.maximum(
        reading.slope * 2 * times.params / bytes_per_s, slower * 2 * times.params * times.tokens / flops
    )
    return MatmulFit(1 / reading.slope, 1 / slower, reading.fixed, Errors.of(fitted, times.matmul_s))


def elementwise(times: LayerTimes, bytes_per_s: float) -> ElementwiseFit:
    """fixed + crossings of memory by activations of hidden and intermediate width, none negative."""
    columns = np.stack(
        [
            np.ones_like(times.tokens),
            2 * times.tokens * times.hidden / bytes_per_s,
            2 * times.tokens * times.intermediate / bytes_per_s,
        ],
        axis=1,
    )
    # Scaled by the measurement, least squares minimise the relative error.
    weighted = columns / times.elementwise_s[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    found = nnls(weighted / scale, np.ones_like(times.tokens))[0] / scale
    fixed, hidden, intermediate = (float(value) for value in found)
    return ElementwiseFit(fixed, hidden, intermediate, Errors.of(columns @ found, times.elementwise_s))


def line(x: Array, y: Array) -> LineFit:
    """A straight line with the least sum of squared relative errors."""
    columns = np.stack([np.ones_like(x), x], axis=1)
    scale = np.array([1.0, float(np.max(x))])
    found = np.linalg.lstsq(columns / scale / y[:, None], np.ones_like(y), rcond=None)[0] / scale
    return LineFit(float(found[0]), float(found[1]), Errors.of(columns @ found, y))


def slope(x: Array, y: Array, low: float, high: float) -> float:
    """Slope of an ordinary straight line through the points with low <= x <= high."""
    inside = (x >= low) & (x <= high)
    return float(np.polyfit(x[inside], y[inside], 1)[0])


def bus_bytes_per_s(seconds_per_byte: float, gpus: int) -> float:
    """Bus bandwidth of an all-reduce over `gpus` GPUs."""
    return 2 * (gpus - 1) / gpus / seconds_per_byte
