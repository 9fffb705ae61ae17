"""Whether compiled modules are used instead of modules in Python.

They are compiled when Headway is installed, where there is a compiler, and used unless the environment variable HEADWAY_KERNELS
is `numpy`. Each choice is made once, when the module that offers both is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

VARIABLE = "HEADWAY_KERNELS"
C = TypeVar("C", bound=type)


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


def compiled_from(folder: Path) -> list[Path]:
    """What the modules in a folder's `native` are compiled from: modules of the folder, each with a declaration of its name there,
    and all that is in Cython there. Empty for an installed package."""
    native = sorted(path for suffix in ("pxd", "pyx") for path in (folder / "native").glob(f"*.{suffix}"))
    beside = (folder / f"{path.stem}.py" for path in native)
    return [*(path for path in beside if path.is_file()), *native]


def digest(sources: Sequence[Path]) -> str:
    """A hash of a compiled module's sources."""
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def compiled_init(kind: C) -> C:
    """Decorates a named tuple or a dataclass with slots, of which each request makes some. Its constructor only sets fields.
    Compiled, a call of the class does this at once, in a fifth of the instructions, and all else is as without."""
    return kind


def reader(kind: type, *names: str) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these fields, two or more, of an object of a class that may have `compiled_init`. Compiled it takes a
    twentieth of the instructions."""
    return attrgetter(*names)


def openings(data: bytes) -> int:
    """How many objects and lists a JSON document begins, with the same signs in its texts."""
    return data.count(b"{") + data.count(b"[")


def first_step(coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
    """Take a coroutine's first step: (True, its result) if that ends it, else (False, what it waits for). Compiled, no
    exception brings the result."""
    try:
        return False, coroutine.send(None)
    except StopIteration as ended:
        return True, ended.value


_CONSTRUCTION = Path(__file__).parent / "native" / "construction.pyx"
#: Whether `router.native.construction` is used.
CONSTRUCTS = why_not({"router.native.construction": [_CONSTRUCTION]}) is None
if CONSTRUCTS:
    from router.native.construction import (  # type: ignore[no-redef]  # noqa: F401
        compiled_init,
        first_step,
        openings,
        reader,
    )
