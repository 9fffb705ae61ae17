"""The engine that batches continuously, compiled where it can be.

`backends.engine.native` has the same, compiled from the same files (a test compares both). `router.compiled` says when it is used.
"""

from __future__ import annotations

from pathlib import Path

from backends.engine.batching import Engine
from router.compiled import why_not

#: What the engine in `backends.engine.native` is compiled from, in this folder.
SOURCES = (
    "batching.py",
    "decoding.py",
    "kv.py",
    "series.py",
    "native/batching.pxd",
    "native/decoding.pxd",
    "native/kv.pxd",
    "native/series.pxd",
)
#: Why the compiled engine is not used; None if it is.
WHY_NOT_NATIVE = why_not(
    {
        "backends.engine.native.batching": (),
        "backends.engine.native.source": [Path(__file__).parent / name for name in SOURCES],
    }
)

if WHY_NOT_NATIVE is None:
    from backends.engine.native.batching import Engine  # type: ignore[no-redef]

__all__ = ["WHY_NOT_NATIVE", "Engine"]
