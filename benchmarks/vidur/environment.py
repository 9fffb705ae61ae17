"""An environment of its own for Vidur: it pins other releases than we do, 1.3 GB of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
#: Written last: an installation that was cut short has none, and one of other pins has another.
_STAMP = "installed.txt"


class InstallError(Exception):
    """Vidur could not be installed; the message is one line for a person."""


def installed(folder: Path) -> bool:
    """Whether `folder` holds what REQUIREMENTS pins."""
    stamp = folder / _STAMP
    return stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text()


def interpreter(folder: Path) -> Path:
    """The environment's Python."""
    return folder / "bin" / "python"


def install(folder: Path) -> None:
    """Make the environment anew. Raises InstallError with pip's own reason."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        raise InstallError(f"{folder} is not empty and no Python environment")
    _run("make an environment", [sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(interpreter(folder)), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run("install Vidur", [*pip, "install", "-r", str(REQUIREMENTS)])
    (folder / _STAMP).write_text(REQUIREMENTS.read_text())


def _run(what: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own command)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reasons = [line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"]
        raise InstallError(f"cannot {what}: {reasons[-1]}")
