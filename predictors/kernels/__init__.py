"""The arithmetic of predictions and of what is learned, compiled where it can be.

`predictors.kernels.reference` has it in NumPy. `predictors.kernels.native` has the same in Cython, with the same results but
for rounding (tests compare both); one call takes all candidates of a request. `router.compiled` says when it is used.
"""

from __future__ import annotations

from pathlib import Path

from predictors.kernels.reference.answer_length import answer_length
from predictors.kernels.reference.calibration import Accuracy, Coverage, GroupCalibration, Offsets
from predictors.kernels.reference.estimates import (
    Estimate,
    Estimates,
    Sources,
    analytic_estimates,
    answer_times,
    by_model,
    each_with,
    stats_of,
)
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
from predictors.kernels.reference.model_outputs import ModelOutputs, model_outputs
from predictors.kernels.reference.model_weights import ModelWeight
from predictors.kernels.reference.prompt_encoder import Encoder
from predictors.kernels.reference.quantiles import served_quantiles
from predictors.kernels.reference.relevance_network import RelevanceHeads, RelevanceNetwork
from predictors.kernels.reference.residuals import ResidualWindow, Shrinkage, StratifiedResiduals
from predictors.kernels.reference.words import ids_as_base64, read_words
from router.compiled import why_not

_HERE = Path(__file__).parent
_FIELDS = _HERE.parents[1] / "router" / "native" / "fields.pxd"
_SHARED = [*sorted((_HERE / "native").glob("*.pxd")), _FIELDS, _HERE / "reference" / "calibration.py"]
#: Why the compiled kernels are not used; None if they are.
WHY_NOT_NATIVE = why_not(
    {"predictors.kernels.native.calibration": ()}
    | {
        f"predictors.kernels.native.{name}": [*_SHARED, _HERE / "native" / f"{name}.pyx"]
        for name in ("distributions", "estimates", "histories", "networks", "residuals", "words")
    }
)

if WHY_NOT_NATIVE is None:
    from predictors.kernels.native.calibration import (  # type: ignore[no-redef]
        Accuracy,
        Coverage,
        GroupCalibration,
        Offsets,
    )
    from predictors.kernels.native.distributions import (  # type: ignore[no-redef]
        LearnedLengths,
        LengthTable,
        ModelWeight,
        answer_length,
        model_outputs,
        p_miss,
        served_quantiles,
        served_tables,
    )
    from predictors.kernels.native.estimates import (  # type: ignore[no-redef]
        Estimates,
        Sources,
        analytic_estimates,
        answer_times,
        by_model,
        each_with,
        stats_of,
    )
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
    from predictors.kernels.native.words import ids_as_base64, read_words  # type: ignore[no-redef]

__all__ = [
    "WHY_NOT_NATIVE", "Accuracy", "Coverage", "Encoder", "Estimate", "Estimates", "GroupCalibration", "InstanceHistory", "LatencyNetwork", "LearnedLengths", "LengthFleet",
    "LengthNetwork", "LengthTable", "MemoryNetwork", "ModelOutputs", "ModelWeight", "Offsets", "RelevanceHeads", "RelevanceNetwork", "ResidualWindow", "Shrinkage", "Sources",
    "StratifiedResiduals", "analytic_estimates", "answer_length", "answer_times", "by_model", "each_with", "ids_as_base64", "memory_rows", "model_outputs", "p_miss", "read_words", "served_quantiles", "served_tables", "stats_of", "target_rows",
]  # fmt: skip


def description() -> str:
    """One line for people: which kernels are used, and why."""
    if WHY_NOT_NATIVE is None:
        return "predictions use the compiled kernels"
    return f"predictions use NumPy, which is slower: {WHY_NOT_NATIVE}"
