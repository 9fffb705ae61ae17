"""Whether compiled modules are used instead of modules in Python.

They are compiled when Headway is installed, where there is a compiler, and used unless the environment variable HEADWAY_KERNELS
is `numpy`. Each choice is made once, when the module that offers both is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path

VARIABLE = "HEADWAY_KERNELS"


def why_not(modules: Mapping[str, Sequence[Path]]) -> str | None:
    """The reason why compiled modules are not used; None if they are used. `modules` has the sources of each module, whose
    `digest` is its SOURCE."""
    if os.environ.get(VARIABLE) == "numpy":
        return f"{VARIABLE} is numpy"
    for name, sources in modules.items():
        try:
            module = import_module(name)
        except ImportError as error:
            reason, _, _ = str(error).partition(" (")
            return f"not compiled ({reason})"
        # An installed package has no sources.
        if sources and all(path.is_file() for path in sources) and digest(sources) != module.SOURCE:
            return "compiled from other sources: install Headway again (make install)"
    return None


def digest(sources: Sequence[Path]) -> str:
    """A hash of a compiled module's sources."""
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
