"""Fitted profiles read back from the file that `headway calibrate` wrote."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from benchmarks.checks import problem
from benchmarks.workloads.format import WorkloadError
from router.core.profile import EngineProfile


def _known(given: Any) -> Any:
    unknown = (
        set(given) - {field.name for field in fields(EngineProfile)} if isinstance(given, dict) else set()
    )
    if unknown:
        raise PydanticCustomError("unknown", "unknown constant {name}", {"name": min(unknown)})
    return given


class _Fitted(BaseModel):
    """One engine; what its clients add is not read. YAML takes `1e-9` for a text, and pydantic reads it as a number."""

    profile: Annotated[EngineProfile, BeforeValidator(_known)]


_ENGINES = TypeAdapter(dict[str, _Fitted])


def read_profiles(path: Path) -> dict[str, EngineProfile]:
    """The profiles of a `profile.yaml`, by their names. Raises WorkloadError in one line."""
    try:
        found = _ENGINES.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise WorkloadError(f"{path}: not YAML") from None
    except ValidationError as error:
        raise WorkloadError(
            f"{path}: not profiles as headway calibrate writes them: {problem(error)}"
        ) from None
    return {each.profile.name: each.profile for each in found.values()}
