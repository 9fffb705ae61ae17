"""The description in a trained artifact: the data, the code, the figures, the settings, the versions."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import router
from benchmarks.datasets.contents import rows_by_source
from benchmarks.evaluate.figures import Evaluation, Figure
from predictors.learned.artifact import Artifact
from predictors.training.dataset import Dataset

#: Of this checkout, if the code lies in one.
ROOT = Path(__file__).resolve().parents[2]
#: What takes part in training; what is shipped of it must not, or no artifact could name the code that makes it.
_CODE = ("predictors", "benchmarks", "backends", "policies", "router/core", ":(exclude)predictors/defaults")
#: What decides, predicts and simulates.
DECIDING = ("router", "policies", "predictors", "backends")
_PACKAGES = ("numpy", "scikit-learn", "torch")
_GIT_S = 20.0


def with_about(
    artifact: Artifact,
    data: Dataset,
    found: Evaluation,
    *,
    seed: int,
    held_out: float,
    training_part: str,
    final: bool = False,
) -> Artifact:
    """The artifact with what made it, beside what its trainer noted. `data`: what it was trained on; `training_part`: the
    digest of what was not held out (`benchmarks.datasets.splits`); `final`: `data` holds the held-out part too, which the
    figures are of."""
    about: dict[str, Any] = {
        **artifact.about,
        "data": rows_by_source(data),
        "commit": commit(),
        "seed": seed,
        "held_out": held_out,
        "training_part": training_part,
        "final": final,
        "versions": versions(),
        "metrics": [_metric(each) for each in found.headline()],
        "metrics_are_of": (
            "the held-out part, before training once more on all" if final else "the held-out part"
        ),
    }
    return replace(artifact, about=about)


def _metric(figure: Figure) -> dict[str, Any]:
    """A figure without what is not known, to six digits, so that what is no difference makes none."""
    found = Evaluation("", (figure,)).as_dict()["figures"][0]
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in found.items()
        if value not in (None, "")
    }


def commit(paths: Sequence[str] = _CODE) -> str:
    """The last commit that changed these paths (those of what trains; without any the last commit at all), marked where
    there are changes beside it; the package's version where the code lies in no checkout of its own."""
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != ROOT:
        return f"version {router.__version__}"
    found = _git("log", "-1", "--format=%H", "--", *paths) or "no commit"
    return found + (" with changes" if _git("status", "--porcelain", "--", *paths) else "")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 (fixed arguments)
            ["git", "-C", str(ROOT), *words],  # noqa: S607 (the user's own git)
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Of the packages that training depends on, those that are there."""
    found = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
