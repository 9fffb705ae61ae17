"""Counts what a piece of code does: a measure of its cost that is the same on every machine, for one version of Python."""

from __future__ import annotations

import ctypes
import inspect
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

_SOURCE = Path(__file__).with_name("allocations.c")


class Counts(NamedTuple):
    """What one step does. `calls`: Python functions (each step of a coroutine is one) and functions written in C.
    `numpy`: those of them that are NumPy's. `awaits`: steps of coroutines. `allocations`: of objects and their memory."""

    calls: float
    numpy: float
    awaits: float
    allocations: float


class _Calls:
    """Counts calls in the thread that starts it."""

    def __init__(self) -> None:
        self._calls = self._numpy = self._awaits = 0
        self._ufuncs: dict[str, Any] = {}

    def start(self) -> None:
        self._calls = self._numpy = self._awaits = 0
        # The profiler does not see calls of ufuncs, which are objects of their own type.
        self._ufuncs = {name: each for name, each in vars(np).items() if isinstance(each, np.ufunc)}
        for name, ufunc in self._ufuncs.items():
            setattr(np, name, self._counted(ufunc))
        sys.setprofile(self._event)

    def stop(self) -> tuple[int, int, int]:
        sys.setprofile(None)
        for name, ufunc in self._ufuncs.items():
            setattr(np, name, ufunc)
        return self._calls, self._numpy, self._awaits

    def _counted(self, ufunc: np.ufunc) -> Any:
        class Counted:
            """Passes everything on."""

            def __getattr__(_, name: str) -> Any:  # noqa: N805
                return getattr(ufunc, name)

            def __call__(_, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
                self._numpy += 1
                return ufunc(*args, **kwargs)

        return Counted()

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename == __file__:  # `_counted`
            return
        if event == "call":
            self._calls += 1
            self._awaits += bool(code.co_flags & inspect.CO_COROUTINE)
            self._numpy += "/numpy/" in code.co_filename
        elif event == "c_call":
            self._calls += 1
            owner = getattr(argument, "__self__", None)
            module = getattr(argument, "__module__", None) or ""
            self._numpy += isinstance(owner, np.ndarray | np.generic) or module.startswith("numpy")


class Counter:
    """Counts in the thread that calls `start`, either calls or allocations, since counting the first allocates."""

    def __init__(self) -> None:
        self._calls = _Calls()
        self._allocations = _load_allocations()

    def start(self, *, allocations: bool) -> None:
        if allocations:
            self._allocations.start()
        else:
            self._calls.start()

    def stop(self, *, allocations: bool) -> tuple[int, ...]:
        """The counts since `start`: (allocations,) or (calls, numpy, awaits)."""
        return (self._allocations.stop(),) if allocations else self._calls.stop()

    def count(self, step: Callable[[], object], repeats: int = 20) -> Counts:
        """The least counts of some calls of `step`."""
        found = []
        for allocations in (False, True):
            counts = []
            for _ in range(repeats):
                self.start(allocations=allocations)
                step()
                counts.append(self.stop(allocations=allocations))
            found += [min(column) for column in zip(*counts, strict=True)]
        return Counts(*found)


def _load_allocations() -> ctypes.PyDLL:
    """Build the counter of allocations and load it. Raises RuntimeError without a C compiler."""
    with TemporaryDirectory(prefix="headway-counts-") as folder:
        library = Path(folder) / "allocations.so"
        compiler = (sysconfig.get_config_var("CC") or "cc").split()
        include = sysconfig.get_path("include")
        command = [*compiler, "-O2", "-shared", "-fPIC", f"-I{include}", "-o", str(library), str(_SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True)  # noqa: S603 (our own source)
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", b"") or b""
            raise RuntimeError(f"cannot build {_SOURCE.name}: {error} {detail.decode()}") from error
        loaded = ctypes.PyDLL(str(library))
    loaded.stop.restype = ctypes.c_ulonglong
    return loaded
