"""The changes of a reloaded fleet file: counts for the log, and settings that apply only after a restart."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from router.config import FleetConfig, InstanceConfig, KeyConfig, ModelConfig
from router.config.marks import at_start


def needs_restart(started: FleetConfig, now: FleetConfig) -> list[str]:
    """The settings that only a start reads and whose values are not those of the start (`section.setting`)."""
    found = [each for each in at_start(started) if getattr(started, each) != getattr(now, each)]
    for section in FleetConfig.model_fields:
        before, after = getattr(started, section), getattr(now, section)
        if isinstance(before, BaseModel):
            changed = [each for each in at_start(before) if getattr(before, each) != getattr(after, each)]
            found += [f"{section}.{each}" for each in changed]
    if now.scaling.pools and not started.scaling.pools:  # nothing scales where a start has seen no pools
        found.append("scaling.pools")
    return found


def what_changed(before: FleetConfig, after: FleetConfig) -> str:
    """The changes in one line: models, instances and keys in counts, other sections by name."""
    parts = [
        *_counts("models", before.models, after.models),
        *_counts("instances", before.instances, after.instances),
        *_counts("keys", before.auth.keys, after.auth.keys),
    ]
    sections = [
        name
        for name in FleetConfig.model_fields
        if name not in {"models", "instances", "auth"} and getattr(before, name) != getattr(after, name)
    ]
    if before.auth.model_copy(update={"keys": ()}) != after.auth.model_copy(update={"keys": ()}):
        sections.insert(0, "auth")
    if sections:
        parts.append(f"changed in {', '.join(sections)}")
    return "; ".join(parts) or "nothing has changed"


def _counts(
    what: str,
    before: Sequence[ModelConfig | InstanceConfig | KeyConfig],
    after: Sequence[ModelConfig | InstanceConfig | KeyConfig],
) -> list[str]:
    old, new = ({each.name: each for each in rows} for rows in (before, after))
    counts = {
        "added": len(new.keys() - old.keys()),
        "removed": len(old.keys() - new.keys()),
        "changed": sum(old[name] != new[name] for name in old.keys() & new.keys()),
    }
    changes = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    return [f"{what}: {changes}"] if changes else []
