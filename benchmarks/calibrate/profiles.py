"""Fitted profiles read back from the file that `headway calibrate` wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from benchmarks.calibrate.measured import CalibrationError
from router.core.profile import EngineProfile


def read_profiles(path: Path) -> dict[str, EngineProfile]:
    """The profiles of a `profile.yaml`, by their names. Raises CalibrationError in one line."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrationError(f"cannot read {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise CalibrationError(f"{path}: not YAML") from None
    try:
        found = [_profile(each["profile"]) for each in data.values()]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CalibrationError(f"{path}: not profiles as headway calibrate writes them") from None
    return {profile.name: profile for profile in found}


def _profile(data: dict[str, Any]) -> EngineProfile:
    """YAML takes `1e-9` for a text: numbers are read as such again. Raises what the constructor and `float` do."""
    values = {
        field.name: _READ[str(field.type)](data[field.name])
        for field in fields(EngineProfile)
        if field.name in data
    }
    unknown = data.keys() - values.keys()
    if unknown:
        raise ValueError(f"unknown constant {min(unknown)}")
    return EngineProfile(**values)


_READ: dict[str, Callable[[Any], Any]] = {"float": float, "int": int, "str": str, "bool": bool}
