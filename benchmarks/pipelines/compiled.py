"""What simulates pipelines: the modules `engine` and `schedulers`, compiled where they can be.

`benchmarks.pipelines.native` has the same, compiled from the same files (tests compare both). `router.compiled` says when it is
used.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.pipelines import engine, schedulers
from router.compiled import why_not

#: What `benchmarks.pipelines.native` is compiled from, in this folder.
SOURCES = ("engine.py", "native/engine.pxd", "native/schedulers.pxd", "schedulers.py")
#: Why the compiled simulation is not used; None if it is.
WHY_NOT_NATIVE = why_not(
    {
        "benchmarks.pipelines.native.schedulers": (),
        "benchmarks.pipelines.native.source": [Path(__file__).parent / name for name in SOURCES],
    }
)

if WHY_NOT_NATIVE is None:
    from benchmarks.pipelines.native import engine, schedulers  # type: ignore[attr-defined, no-redef]

__all__ = ["WHY_NOT_NATIVE", "engine", "schedulers"]
