"""The arithmetic of predictions and of what is learned, compiled where it can be.

`predictors.kernels.reference` has it in NumPy. `predictors.kernels.native` has the same in Cython, with the same results but
for rounding (tests compare both); one call takes all candidates of a request. It is compiled when Headway is installed,
where there is a compiler, and used unless the environment variable HEADWAY_KERNELS is `numpy`. What a name here stands for
is chosen once, at the first import.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from predictors.kernels.reference.estimates import AnalyticEstimate, Estimate, analytic_estimates
from predictors.kernels.reference.histories import InstanceHistory
from predictors.kernels.reference.latency_networks import (
    LatencyNetwork,
    MemoryNetwork,
    memory_rows,
    target_rows,
)
from predictors.kernels.reference.length_network import LengthFleet, LengthNetwork
from predictors.kernels.reference.lengths import LearnedLengths, LengthTable, served_tables
from predictors.kernels.reference.misses import p_miss
from predictors.kernels.reference.prompt_encoder import Encoder
from predictors.kernels.reference.quantiles import served_quantiles
from predictors.kernels.reference.relevance_network import RelevanceHeads, RelevanceNetwork
from predictors.kernels.reference.residuals import ResidualWindow, Shrinkage, StratifiedResiduals

VARIABLE = "HEADWAY_KERNELS"


def _why_not_native() -> str | None:
    if os.environ.get(VARIABLE) == "numpy":
        return f"{VARIABLE} is numpy"
    try:
        from predictors.kernels.native import distributions, estimates, histories, networks, residuals
    except ImportError as error:
        reason, _, _ = str(error).partition(" (")
        return f"they are not compiled ({reason})"
    folder = Path(__file__).parent / "native"
    for module in (distributions, estimates, histories, networks, residuals):
        sources = [*sorted(folder.glob("*.pxd")), folder / f"{module.__name__.rpartition('.')[2]}.pyx"]
        # An installed package has no sources.
        if all(path.is_file() for path in sources) and digest(sources) != module.SOURCE:
            return "they were compiled from other sources: install Headway again (make install)"
    return None


def digest(sources: list[Path]) -> str:
    """What identifies the sources of a compiled module."""
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


#: Why the compiled kernels are not used; None if they are.
WHY_NOT_NATIVE = _why_not_native()

if WHY_NOT_NATIVE is None:
    from predictors.kernels.native.distributions import (  # type: ignore[no-redef]
        LearnedLengths,
        LengthTable,
        p_miss,
        served_quantiles,
        served_tables,
    )
    from predictors.kernels.native.estimates import analytic_estimates  # type: ignore[no-redef]
    from predictors.kernels.native.histories import InstanceHistory  # type: ignore[no-redef]
    from predictors.kernels.native.networks import (  # type: ignore[no-redef]
        Encoder,
        LatencyNetwork,
        LengthFleet,
        LengthNetwork,
        MemoryNetwork,
        RelevanceHeads,
        RelevanceNetwork,
        memory_rows,
        target_rows,
    )
    from predictors.kernels.native.residuals import (  # type: ignore[no-redef]
        ResidualWindow,
        Shrinkage,
        StratifiedResiduals,
    )

__all__ = [
    "VARIABLE", "WHY_NOT_NATIVE", "AnalyticEstimate", "Encoder", "Estimate", "InstanceHistory", "LatencyNetwork", "LearnedLengths", "LengthFleet",
    "LengthNetwork", "LengthTable", "MemoryNetwork", "RelevanceHeads", "RelevanceNetwork", "ResidualWindow", "Shrinkage",
    "StratifiedResiduals", "analytic_estimates", "memory_rows", "p_miss", "served_quantiles", "served_tables", "target_rows",
]  # fmt: skip


def description() -> str:
    """One line for people: which kernels are used, and why."""
    if WHY_NOT_NATIVE is None:
        return "predictions use the compiled kernels"
    return f"predictions use NumPy, which is slower: {WHY_NOT_NATIVE}"
