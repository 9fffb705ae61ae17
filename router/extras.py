"""Optional packages: which extra of Headway installs each, and how to add it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

#: Optional packages, and the extra that installs each.
EXTRAS = {
    "asyncpg": "postgres",
    "httpx": "train",
    "httpx2": "train",
    "jinja2": "bench",
    "matplotlib": "bench",
    "networkx": "plan",
    "ollama": "train",
    "openai": "train",
    "pyarrow": "export",
    "ray": "ray",
    "scipy": "bench",
    "sklearn": "train",
    "threadpoolctl": "train",
    "tokenizers": "tokenizers",
    "torch": "train",
}


def lack_of(program: str, error: ImportError, bench: str = "bench") -> str | None:
    """What to install where an optional package is missing; None for another module. `bench` is the extra that brings
    `bench` and what else the program needs."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return f"{program} needs {error.name}: {_how_to_add(bench if extra == 'bench' else extra)}, in Headway's checkout"


def refuse_without_extras(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A `sys.excepthook` for programs that import optional packages where they begin: one line, exit code 2."""
    spec = sys.modules["__main__"].__spec__
    program = "" if spec is None else spec.name.removesuffix(".__main__")
    lack = lack_of(program, error) if isinstance(error, ModuleNotFoundError) else None
    if lack is None:
        sys.__excepthook__(kind, error, trace)
        return
    print(lack, file=sys.stderr)
    raise SystemExit(2)


def _how_to_add(extra: str) -> str:
    """The commands that add an extra to this environment. A checkout stays editable: a copy would hide later changes."""
    pip = f"{sys.prefix}/bin/pip install"
    if "site-packages" in Path(__file__).parts:
        return f"{pip} '.[{extra}]'"
    return f"make dev, or {pip} -e '.[{extra}]'"
