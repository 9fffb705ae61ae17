"""What reads an engine's stream: `SseScanner` and `Assembler`, compiled where they can be.

`backends.sse` and `backends.assemble` have them in Python. `backends.native` has the same, compiled from the same files
(tests compare both). It is compiled when Headway is installed, where there is a compiler, and used unless the environment
variable HEADWAY_KERNELS is `numpy`. What a name here stands for is chosen once, at the first import.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from backends.assemble import Assembler
from backends.sse import SseScanner

VARIABLE = "HEADWAY_KERNELS"
#: What `backends.native` is compiled from, in this folder.
SOURCES = ("assemble.py", "sse.py", "native/assemble.pxd", "native/scanner.pyx", "native/sse.pxd")


def digest(folder: Path) -> str:
    """What identifies the sources in the folder of this package."""
    return sha256(b"".join((folder / name).read_bytes() for name in SOURCES)).hexdigest()[:16]


def _why_not_native() -> str | None:
    if os.environ.get(VARIABLE) == "numpy":
        return f"{VARIABLE} is numpy"
    try:
        from backends.native import assemble, scanner  # noqa: F401
    except ImportError as error:
        reason, _, _ = str(error).partition(" (")
        return f"it is not compiled ({reason})"
    folder = Path(__file__).parent
    # An installed package has no sources.
    if (folder / SOURCES[-1]).is_file() and digest(folder) != scanner.SOURCE:
        return "it was compiled from other sources: install Headway again (make install)"
    return None


#: Why the compiled reading is not used; None if it is.
WHY_NOT_NATIVE = _why_not_native()

if WHY_NOT_NATIVE is None:
    from backends.native.assemble import Assembler  # type: ignore[no-redef]
    from backends.native.scanner import SseScanner  # type: ignore[no-redef]

__all__ = ["VARIABLE", "WHY_NOT_NATIVE", "Assembler", "SseScanner"]


def description() -> str:
    """One line for people: which reading is used, and why."""
    if WHY_NOT_NATIVE is None:
        return "streams are read by compiled code"
    return f"streams are read by Python code, which is slower: {WHY_NOT_NATIVE}"
