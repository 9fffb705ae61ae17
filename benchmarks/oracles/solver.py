"""HiGHS through scipy, an optional extra."""

from __future__ import annotations

from typing import Any

from benchmarks.workloads.format import WorkloadError


def require() -> None:
    """Raises WorkloadError, one line for a person, where scipy is missing."""
    try:
        import scipy.optimize
        import scipy.sparse  # noqa: F401
    except ImportError as error:
        raise WorkloadError("oracles need scipy: pip install '.[bench]' in Headway's checkout") from error


def solve(method: str = "highs", **problem: Any) -> Any:
    """`scipy.optimize.linprog` of `problem`: minimise c x under A_ub x <= b_ub, A_eq x = b_eq and bounds.
    None where the problem has no solution. Raises WorkloadError without scipy or when HiGHS fails."""
    require()
    from scipy.optimize import linprog

    found = linprog(method=method, **problem)
    if found.status == 2:  # infeasible
        return None
    if found.status != 0:
        raise WorkloadError(f"HiGHS gave no optimum: {found.message}")
    return found
