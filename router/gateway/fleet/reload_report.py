"""The changes of a reloaded fleet file: counts for the log, and settings that apply only after a restart."""

from __future__ import annotations

from collections.abc import Sequence

from router.config import FleetConfig, InstanceConfig, KeyConfig, ModelConfig

#: Settings that are used only at the start, by section (docs/operations.md lists them too); None: the whole section.
_AT_START: dict[str, tuple[str, ...] | None] = {
    "server": ("host", "port", "workers"),
    "auth": ("admin_key_env",),
    "store": ("url", "password_env", "retain_days", "max_mb", "keep_prompts", "spool_directory", "spool_mb"),
    "state": ("url", "password_env", "name", "timeout_ms", "interval_ms"),
    "scheduling": ("confidence", "ttft_weight"),
    "discovery": None,
    "observability": ("logs", "traces"),
}


def needs_restart(started: FleetConfig, now: FleetConfig) -> list[str]:
    """The settings (`section.setting`) whose values differ from those of the start."""
    found = []
    for section, settings in _AT_START.items():
        before, after = getattr(started, section), getattr(now, section)
        if settings is None:
            found += [section] if before != after else []
        else:
            found += [
                f"{section}.{each}" for each in settings if getattr(before, each) != getattr(after, each)
            ]
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
