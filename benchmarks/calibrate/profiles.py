"""Fitted profiles read back from the file that `headway calibrate` wrote."""

from __future__ import annotations

from pathlib import Path

import yaml

from benchmarks.calibrate.measured import CalibrationError
from router.core.profile import EngineProfile


def read_profiles(path: Path) -> dict[str, EngineProfile]:
    """The profiles of a `profile.yaml`, by their names. Raises CalibrationError in one line."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrationError(f"cannot read {path}: {error.strerror or error}") from None
    except yaml.YAMLError:
        raise CalibrationError(f"{path}: not YAML") from None
    try:
        found = [EngineProfile(**each["profile"]) for each in data.values()]
    except (AttributeError, KeyError, TypeError):
        raise CalibrationError(f"{path}: not profiles as headway calibrate writes them") from None
    return {profile.name: profile for profile in found}
