"""Which compiled modules take the place of Python's, and what is said of it."""

from __future__ import annotations

import os
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

import pytest

from backends import scanning
from backends.engine import compiled as engine
from benchmarks.pipelines import compiled as pipelines
from predictors import kernels
from router.compiled import VARIABLE, compiled_from, digest
from router.core import option_columns

ROOT = Path(scanning.__file__).parents[1]


class Choice(NamedTuple):
    """`module` chooses between `python` and a module in `native`, for `example`."""

    module: str
    example: str
    python: str
    native: str
    why_not: str | None
    compiled: tuple[str, ...]


CHOICES = [
    Choice(
        "predictors.kernels", "LengthTable", "predictors.kernels.reference.lengths", "predictors.kernels.native",
        kernels.WHY_NOT_NATIVE, ("calibration", "distributions", "estimates", "histories", "networks", "residuals"),
    ),
    Choice(
        "router.core.option_columns", "delays_s", "router.core.option_columns", "router.native",
        option_columns.WHY_NOT_NATIVE, ("fields", "options"),
    ),
    Choice(
        "backends.scanning", "SseScanner", "backends.sse", "backends.native",
        scanning.WHY_NOT_NATIVE, ("assemble", "scanner", "stream"),
    ),
    Choice(
        "backends.engine.compiled", "Engine", "backends.engine.batching", "backends.engine.native",
        engine.WHY_NOT_NATIVE, ("batching", "source"),
    ),
    Choice(
        "benchmarks.pipelines.compiled", "schedulers.MaxFlow", "benchmarks.pipelines.schedulers", "benchmarks.pipelines.native",
        pipelines.WHY_NOT_NATIVE, ("schedulers", "source"),
    ),
]  # fmt: skip
each = pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.module)


def said(before: str = "", **environment: str) -> list[tuple[str, ...]]:
    """Of each choice, why another process does not use the compiled modules, and where its example is from."""
    program = (
        f"import importlib, operator\n{before}for name, example in {[choice[:2] for choice in CHOICES]}:\n"
    )
    program += "    it = importlib.import_module(name)\n"
    program += "    print(it.WHY_NOT_NATIVE, operator.attrgetter(example)(it).__module__, sep='\\t')\n"
    variables = {name: value for name, value in os.environ.items() if name != VARIABLE}
    output = subprocess.check_output(
        [sys.executable, "-c", program], env={**variables, **environment}, text=True, timeout=60
    )
    return [tuple(line.split("\t")) for line in output.splitlines()]


def test_the_variable_turns_compiled_modules_off() -> None:
    assert said(HEADWAY_KERNELS="numpy") == [
        ("HEADWAY_KERNELS is numpy", choice.python) for choice in CHOICES
    ]


@each
def test_what_is_said_is_what_is_used(choice: Choice) -> None:
    module = attrgetter(choice.example)(sys.modules[choice.module]).__module__
    assert module.startswith(choice.native) if choice.why_not is None else module == choice.python


def test_modules_of_other_sources_are_not_used(tmp_path: Path) -> None:
    """As after a checkout of another version, which does not compile them."""
    before = "import sys, types\n"
    for choice in CHOICES:
        folder = tmp_path / choice.native
        folder.mkdir()
        for name in choice.compiled:
            (folder / f"{name}.py").write_text("SOURCE = 'of another version'\n")
        before += f"sys.modules[{choice.native!r}] = native = types.ModuleType({choice.native!r})\n"
        before += f"native.__path__ = [{str(folder)!r}]\n"
    why_not = "compiled from other sources: install Headway again (make install)"
    assert said(before) == [(why_not, choice.python) for choice in CHOICES]


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py compiles, by name."""
    found: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", found.update)
    monkeypatch.chdir(ROOT)
    run_path("setup.py")
    return {module.name: module for module in found["ext_modules"]}


@each
def test_setup_compiles_what_is_chosen(choice: Choice, extensions: dict[str, Any]) -> None:
    assert {f"{choice.native}.{name}" for name in choice.compiled} <= extensions.keys()


@pytest.mark.parametrize("folder", ["backends", "backends/engine", "benchmarks/pipelines"])
def test_setup_compiles_a_package_from_the_sources_that_are_checked(
    folder: str, extensions: dict[str, Any]
) -> None:
    """Else what was compiled would never be used."""
    package = f"{folder.replace('/', '.')}.native."
    found = {name: module for name, module in extensions.items() if name.startswith(package)}
    sources = compiled_from(ROOT / folder)
    assert {str(ROOT / path) for module in found.values() for path in module.depends} == set(
        map(str, sources)
    )
    assert {str(ROOT / module.sources[0]) for module in found.values()} == {
        str(path) for path in sources if path.suffix != ".pxd"
    }
    macros = {dict(module.define_macros)["HEADWAY_SOURCE"] for module in found.values()}
    assert macros == {f'"{digest(sources)}"'}


def test_no_compiler_fuses_a_product_and_a_sum(extensions: dict[str, Any]) -> None:
    """By default one for ARM does, and the last bits differ from Python's and NumPy's."""
    for module in extensions.values():
        assert "-ffp-contract=off" in module.extra_compile_args, module.name


def test_a_line_for_people() -> None:
    native = kernels.WHY_NOT_NATIVE is None, scanning.WHY_NOT_NATIVE is None
    assert kernels.description().startswith(
        "predictions use the compiled" if native[0] else "predictions use NumPy"
    )
    assert scanning.description().startswith(
        "streams are read by compiled" if native[1] else "streams are read by Python"
    )
