"""The arithmetic of predictions and of what is learned, compiled where it can be.

`predictors.kernels.reference` has it in NumPy. `predictors.kernels.native` has the same in Cython, with the same results but
for rounding (tests compare both); one call takes all candidates of a request. `router.compiled` says when it is used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from predictors.kernels.reference.calibration import Accuracy, Coverage, GroupCalibration, Offsets
from predictors.kernels.reference.estimates import (
    Estimate,
    Estimates,
    Sources,
    analytic_estimates,
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
from predictors.kernels.reference.lengths import LearnedLengths, LengthTable, answer_length, served_tables
from predictors.kernels.reference.misses import p_miss
from predictors.kernels.reference.model_outputs import ModelOutputs, model_outputs
from predictors.kernels.reference.prompt_encoder import Encoder
from predictors.kernels.reference.quantiles import ModelWeight, served_quantiles
from predictors.kernels.reference.relevance_network import RelevanceHeads, RelevanceNetwork
from predictors.kernels.reference.residuals import ResidualWindow, Shrinkage, StratifiedResiduals
from predictors.kernels.reference.words import ids_as_base64, read_words
from router.compiled import why_not

#: The compiled modules. They have the names below that `predictors.kernels.reference` has.
_NATIVE = ("calibration", "distributions", "estimates", "histories", "networks", "residuals", "words")
_HERE = Path(__file__).parent
_FIELDS = _HERE.parents[1] / "router" / "native" / "fields.pxd"
_SHARED = [*sorted((_HERE / "native").glob("*.pxd")), _FIELDS, _HERE / "reference" / "calibration.py"]
#: Why the compiled kernels are not used; None if they are.
WHY_NOT_NATIVE = why_not(
    {
        f"predictors.kernels.native.{name}": (
            [] if name == "calibration" else [*_SHARED, _HERE / "native" / f"{name}.pyx"]
        )
        for name in _NATIVE
    }
)

__all__ = [
    "WHY_NOT_NATIVE", "Accuracy", "Coverage", "Encoder", "Estimate", "Estimates", "GroupCalibration", "InstanceHistory", "LatencyNetwork", "LearnedLengths", "LengthFleet",
    "LengthNetwork", "LengthTable", "MemoryNetwork", "ModelOutputs", "ModelWeight", "Offsets", "RelevanceHeads", "RelevanceNetwork", "ResidualWindow", "Shrinkage", "Sources",
    "StratifiedResiduals", "analytic_estimates", "answer_length", "by_model", "each_with", "ids_as_base64", "memory_rows", "model_outputs", "p_miss", "read_words", "served_quantiles", "served_tables", "stats_of", "target_rows",
]  # fmt: skip

if WHY_NOT_NATIVE is None:
    for _name in _NATIVE:
        _module = vars(import_module(f"predictors.kernels.native.{_name}"))
        globals().update({name: _module[name] for name in __all__ if name in _module})


def description() -> str:
    """One line for people: which kernels are used, and why."""
    if WHY_NOT_NATIVE is None:
        return "predictions use the compiled kernels"
    return f"predictions use NumPy, which is slower: {WHY_NOT_NATIVE}"
