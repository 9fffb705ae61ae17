"""The five packages have plain names: they must be ours, all five in the wheel, and nothing else with them."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import router

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("router", "policies", "predictors", "backends", "benchmarks")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a compiler."""
    return _built(tmp_path_factory.mktemp("wheel"), {"CC": "false"})


def _built(folder: Path, environment: dict[str, str]) -> Path:
    """A wheel, built from a copy so that nothing compiled in the checkout gets into it; C that Cython has made is used."""
    source = folder / "source"
    source.mkdir()
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # As pip calls it, which would read `setup.py` three times.
    program = f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, **environment}
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=600, env=environment)
    return next(folder.glob("*.whl"))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_the_one_of_this_repository(name: str) -> None:
    file = importlib.import_module(name).__file__
    assert file is not None
    assert Path(file).resolve() == ROOT / name / "__init__.py"


def test_versions_agree() -> None:
    assert router.__version__ == PROJECT["version"]


def test_the_wheel_has_the_five_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_has_every_module_and_data_file(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for pattern in ("*.py", "*.yaml", "*.json", "py.typed")
        for path in (ROOT / name).rglob(pattern)
    }
    assert expected <= inside
    assert "router/config/demo.yaml" in expected


def test_the_five_packages_import_from_the_wheel(wheel: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); import {', '.join(PACKAGES)}; "
        f"import router.demo; router.demo.fleet(); "
        f"print([m.__file__.startswith({str(wheel)!r}) for m in ({', '.join(PACKAGES)})])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (str([True] * len(PACKAGES)), "")


def test_without_a_compiler_the_kernels_are_numpys(wheel: Path) -> None:
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert _kernels(wheel).startswith("predictions use NumPy, which is slower: not compiled")


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_with_a_compiler_the_wheel_has_the_kernels(tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(_built(tmp_path, {})).extractall(unpacked)
    assert _kernels(unpacked) == "predictions use the compiled kernels"


def _kernels(place: Path) -> str:
    program = f"import sys; sys.path.insert(0, {str(place)!r}); from predictors import kernels; print(kernels.description())"
    return subprocess.check_output([sys.executable, "-I", "-c", program], text=True, timeout=60).strip()


def test_what_builds_the_project_is_pinned() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    names = {_normal(re.split(r"[<>=!~; ]", requirement)[0]) for requirement in build}
    assert names == {"cython", "setuptools"}
    assert names <= set(_pins("runtime"))
    assert names <= set(_pins("dev"))


@pytest.mark.parametrize("name", ["runtime", "dev"])
def test_pins_cover_what_the_project_asks_for(name: str) -> None:
    pinned = set(_pins(name))
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["postgres"]]
    if name == "dev":
        extras = PROJECT["optional-dependencies"]
        wanted += [*extras["bench"], *extras["tokenizers"], *extras["train"], *extras["dev"]]
    names = {_normal(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in wanted} - {"headway"}
    assert names <= pinned
    assert ("torch" in pinned) == (name == "dev")  # nothing that serves needs it


def test_both_pin_files_agree() -> None:
    everywhere = _pins("dev")
    for name, (version, marker) in _pins("runtime").items():
        if not marker or name in everywhere:  # `make lock` writes dev.txt on one release of Python
            assert everywhere[name][0] == version, name


def _pins(name: str) -> dict[str, tuple[str, str]]:
    """Version and marker of each name that is pinned."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    pins = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            found = re.fullmatch(
                r"([A-Za-z0-9._-]+)==([A-Za-z0-9._!+-]+)(?: ; ([^#]+?))?(?:\s+--hash=\S+)*\s*", line
            )
            assert found is not None, line
            pins[_normal(found[1])] = (found[2], found[3] or "")
    return pins


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_nobody_is_told_to_install_a_package_that_is_not_ours() -> None:
    """No index has this project: a package of that name there is somebody else's."""
    texts = [
        path
        for folder in (*PACKAGES, "docs", "scripts", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yaml", ".yml", ".sh", ".html", ".js"}
    ]
    texts += [*ROOT.glob("*.md"), *ROOT.glob("Dockerfile"), *ROOT.glob("*.yml")]
    assert len(texts) > 300
    named = re.compile(r"install\s+(-\S+\s+)*['\"]?headway\b(?!-)(?!\s+deploy)")
    assert [str(path) for path in texts if named.search(path.read_text(encoding="utf-8"))] == []
