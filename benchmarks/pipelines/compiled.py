"""What simulates pipelines: the modules `engine` and `schedulers`, compiled where they can be.

`benchmarks.pipelines.native` has the same, compiled from the same files (tests compare both). It is used unless the environment
variable HEADWAY_KERNELS is `numpy`. What a name here stands for is chosen once, at the first import.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from benchmarks.pipelines.engine import Engine, KvCacheFull, Link, Node, Query, Scheduler
from benchmarks.pipelines.schedulers import MaxFlow, RandomChoice, ShortestQueue, Swarm

#: What `benchmarks.pipelines.native` is compiled from, in this folder.
SOURCES = ("engine.py", "native/engine.pxd", "native/schedulers.pxd", "schedulers.py")


def digest(folder: Path) -> str:
    """What identifies the sources in the folder of this package."""
    return sha256(b"".join((folder / name).read_bytes() for name in SOURCES)).hexdigest()[:16]


def _why_not_native() -> str | None:
    if os.environ.get("HEADWAY_KERNELS") == "numpy":
        return "HEADWAY_KERNELS is numpy"
    try:
        import benchmarks.pipelines.native.schedulers  # noqa: F401
        from benchmarks.pipelines.native.source import SOURCE
    except ImportError as error:
        reason, _, _ = str(error).partition(" (")
        return f"it is not compiled ({reason})"
    folder = Path(__file__).parent
    # An installed package has no sources.
    if (folder / SOURCES[1]).is_file() and digest(folder) != SOURCE:
        return "it was compiled from other sources: install Headway again (make install)"
    return None


#: Why the compiled simulation is not used; None if it is.
WHY_NOT_NATIVE = _why_not_native()

if WHY_NOT_NATIVE is None:
    from benchmarks.pipelines.native.engine import (  # type: ignore[no-redef]
        Engine,
        KvCacheFull,
        Link,
        Node,
        Query,
        Scheduler,
    )
    from benchmarks.pipelines.native.schedulers import (  # type: ignore[no-redef]
        MaxFlow,
        RandomChoice,
        ShortestQueue,
        Swarm,
    )

__all__ = [
    "WHY_NOT_NATIVE",
    "Engine",
    "KvCacheFull",
    "Link",
    "MaxFlow",
    "Node",
    "Query",
    "RandomChoice",
    "Scheduler",
    "ShortestQueue",
    "Swarm",
]
