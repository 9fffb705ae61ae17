"""A workload as a figure: arrivals over time and lengths. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.workloads import sketch
from benchmarks.workloads.describe import Description
from benchmarks.workloads.format import Header, WorkloadError, writing


def plot(path: Path, header: Header, description: Description) -> None:
    """Arrivals over time and lengths as one figure; the format follows the file's ending (.png, .svg, .pdf)."""
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise WorkloadError(f"{path}: plots are written as .png, .svg or .pdf")
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    axes = figure.subplot_mosaic([["arrivals", "arrivals"], ["prompt", "output"]])
    _plot_arrivals(axes["arrivals"], description.arrivals_s)
    for name, title, values in (
        ("prompt", "Input tokens", description.prompt_tokens),
        ("output", "Output tokens", description.output_tokens),
    ):
        _plot_lengths(axes[name], title, values)
    figure.suptitle(f"{header.source}: {description.requests:,} requests")
    with writing(path):
        figure.savefig(path, dpi=150)


def _plot_arrivals(axes: Any, arrivals_s: Sequence[float]) -> None:
    bins = min(200, max(10, len(arrivals_s) // 20))
    rates, width_s = sketch.per_second(arrivals_s, bins)
    first_s = arrivals_s[0] if arrivals_s else 0.0
    axes.stairs(rates, [first_s + index * width_s for index in range(bins + 1)], fill=True, alpha=0.6)
    axes.set(
        title=f"Arrivals (mean over {width_s:.3g} s)", xlabel="time (s)", ylabel="requests/s", ylim=(0, None)
    )


def _plot_lengths(axes: Any, title: str, values: Sequence[int]) -> None:
    if not values:
        axes.set(title=f"{title}: unknown")
        return
    axes.ecdf(values, compress=True)
    axes.set(title=title, xscale="log", xlabel="tokens", ylabel="share at or below", ylim=(0, 1))
    axes.grid(alpha=0.3)
