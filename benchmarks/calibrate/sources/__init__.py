"""Readers of published measurements of real engines. `headway calibrate --source NAME --data DIR`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.calibrate.measured import Splitter, Study
from benchmarks.calibrate.sources import aibrix, helix, vllm_burst, vllm_throughput

#: Each takes the data folder and how to split levels, and gives a study for each engine in it.
SOURCES: dict[str, Callable[[Path, Splitter], list[Study]]] = {
    "aibrix": aibrix.read,
    "helix": helix.read,
    "vllm_burst": vllm_burst.read,
    "vllm_throughput": vllm_throughput.read,
}
