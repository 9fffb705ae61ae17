"""The fits: arrays in, constants and the errors of the fit out."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls
from tables import LayerTimes

from benchmarks.calibrate.lines import Array, Errors, errors, line

#: Tokens of a batch: up to the first, reading the weights dominates; from the second on, arithmetic does.
MEMORY_BOUND, COMPUTE_BOUND = 32, 1024


def spread(values: list[float]) -> Errors:
    """How far single figures are from their median."""
    return errors(float(np.median(values)), np.array(values))


def matmul(times: LayerTimes, bytes_per_s: float, flops: float) -> tuple[float, float, float, Errors]:
    """Memory share, FLOPS share and fixed seconds of fixed + max(reading the weights, arithmetic), for the matrix
    products of one 16-bit layer.

    Each side is fitted where it dominates. The errors are over the whole table, the bend between them included.
    """
    small, large = times.tokens <= MEMORY_BOUND, times.tokens >= COMPUTE_BOUND
    read_s, ideal_s = 2 * times.params / bytes_per_s, 2 * times.params * times.tokens / flops
    fixed_s, reading, _ = line(read_s[small], times.matmul_s[small])
    slower = float(np.median((times.matmul_s[large] - fixed_s) / ideal_s[large]))
    fitted = fixed_s + np.maximum(reading * read_s, slower * ideal_s)
    return 1 / reading, 1 / slower, fixed_s, errors(fitted, times.matmul_s)


def elementwise(times: LayerTimes, bytes_per_s: float) -> tuple[float, float, float, Errors]:
    """Fixed seconds, and how often activations of hidden and of intermediate width cross the memory; none is
    negative."""
    activations = [2 * times.tokens * width / bytes_per_s for width in (times.hidden, times.intermediate)]
    columns = np.stack([np.ones_like(times.tokens), *activations], axis=1)
    # Divided by the measurement, least squares minimise the relative error.
    weighted = columns / times.elementwise_s[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    found = nnls(weighted / scale, np.ones_like(times.tokens))[0] / scale
    fixed_s, hidden, intermediate = found.tolist()
    return fixed_s, hidden, intermediate, errors(columns @ found, times.elementwise_s)


def slope(x: Array, y: Array, low: float, high: float) -> float:
    """Slope of an ordinary straight line through the points with low <= x <= high."""
    inside = (x >= low) & (x <= high)
    return float(np.polyfit(x[inside], y[inside], 1)[0])


def bus_bytes_per_s(seconds_per_byte: float, gpus: int) -> float:
    """Bus bandwidth of an all-reduce over `gpus` GPUs."""
    return 2 * (gpus - 1) / gpus / seconds_per_byte
