"""The engine that batches continuously, compiled where it can be.

`backends.engine.native` has the same, compiled from the same files (a test compares both). `router.compiled` says when it is used.
"""

from __future__ import annotations

from pathlib import Path

from backends.engine.batching import Engine
from router.compiled import compiled_from, why_not

#: Why the compiled engine is not used; None if it is.
WHY_NOT_NATIVE = why_not(
    {
        "backends.engine.native.batching": (),
        "backends.engine.native.source": compiled_from(Path(__file__).parent),
    }
)

if WHY_NOT_NATIVE is None:
    from backends.engine.native.batching import Engine  # type: ignore[no-redef]

__all__ = ["WHY_NOT_NATIVE", "Engine"]
