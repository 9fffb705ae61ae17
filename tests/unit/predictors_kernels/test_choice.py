"""Which kernels are used, and what is said of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from predictors import kernels

_SAY = "from predictors import kernels; print(kernels.description(), kernels.LengthTable.__module__)"


def said(program: str = _SAY, **environment: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != kernels.VARIABLE}
    return subprocess.check_output(
        [sys.executable, "-c", program], env={**variables, **environment}, text=True, timeout=60
    )


def test_the_variable_turns_compiled_kernels_off() -> None:
    assert said(HEADWAY_KERNELS="numpy") == (
        "predictions use NumPy, which is slower: HEADWAY_KERNELS is numpy predictors.kernels.reference.lengths\n"
    )


def test_what_is_said_is_what_is_used() -> None:
    native = kernels.WHY_NOT_NATIVE is None
    assert kernels.LengthTable.__module__.startswith("predictors.kernels.native") == native
    assert kernels.description().startswith(
        "predictions use the compiled" if native else "predictions use NumPy"
    )


def test_kernels_of_other_sources_are_not_used(tmp_path: Path) -> None:
    """As after a checkout of another version, which does not compile them."""
    for name in ("distributions", "estimates", "histories", "networks", "residuals"):
        (tmp_path / f"{name}.py").write_text("SOURCE = 'of another version'\n")
    program = (
        "import sys, types\n"
        "native = types.ModuleType('predictors.kernels.native')\n"
        f"native.__path__ = [{str(tmp_path)!r}]\n"
        "sys.modules['predictors.kernels.native'] = native\n" + _SAY
    )
    assert "compiled from other sources: install Headway again" in said(program)
