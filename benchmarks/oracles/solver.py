"""HiGHS through scipy."""

from __future__ import annotations

from typing import Any

from scipy.optimize import linprog

from benchmarks.workloads.format import WorkloadError


def solve(method: str = "highs", **problem: Any) -> Any:
    """`scipy.optimize.linprog` of `problem`: minimise c x under A_ub x <= b_ub, A_eq x = b_eq and bounds.
    None where the problem has no solution. Raises WorkloadError when HiGHS fails."""
    found = linprog(method=method, **problem)
    if found.status == 2:  # infeasible
        return None
    if found.status != 0:
        raise WorkloadError(f"HiGHS gave no optimum: {found.message}")
    return found
