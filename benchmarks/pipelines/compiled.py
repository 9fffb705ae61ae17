"""What simulates pipelines: the modules `engine` and `schedulers`, compiled where they can be.

`benchmarks.pipelines.native` has the same, compiled from the same files (tests compare both). `router.compiled` says when it is
used.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.pipelines import engine, schedulers
from router.compiled import compiled_from, why_not

#: Why the compiled simulation is not used; None if it is.
WHY_NOT_NATIVE = why_not(
    {
        "benchmarks.pipelines.native.schedulers": (),
        "benchmarks.pipelines.native.source": compiled_from(Path(__file__).parent),
    }
)

if WHY_NOT_NATIVE is None:
    from benchmarks.pipelines.native import engine, schedulers  # type: ignore[attr-defined, no-redef]

__all__ = ["WHY_NOT_NATIVE", "engine", "schedulers"]
