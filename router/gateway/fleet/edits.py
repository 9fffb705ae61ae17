"""Operators' changes of the fleet, each a function from one overlay to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from typing import Any

from router.config import FleetConfig, InstanceConfig
from router.core.errors import invalid_request
from router.gateway.fleet.overlay import Overlay

#: Makes the next overlay from the current one and this replica's fleet file; None if nothing changes. Raises Refusal.
Edit = Callable[[Overlay, FleetConfig], Overlay | None]


def adding(added: InstanceConfig) -> Edit:
    """Add an instance. Raises a Refusal (409) if its name is taken."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay:
        if overlay.has(added.name, file):
            raise invalid_request(f"An instance {added.name} is there already", None, "name_taken", 409)
        return overlay.next(added=(*overlay.added, added), draining=overlay.draining - {added.name})

    return edit


def removing(name: str) -> Edit:
    """Remove an instance. Its running requests continue to their end."""
    return lambda overlay, file: (
        None
        if not overlay.has(name, file)
        else _without({name}, overlay, file, scaled_down=overlay.scaled_down - {name})
    )


def draining(name: str) -> Edit:
    """Send nothing more to an instance. It leaves when no replica has requests there. The scaler cannot keep an instance that an
    operator drains (`scaling`), even if the scaler drained it first."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay | None:
        if not overlay.has(name, file) or name in overlay.draining - overlay.scaled_down:
            return None
        return overlay.next(draining=overlay.draining | {name}, scaled_down=overlay.scaled_down - {name})

    return edit


def scaling(keep: Collection[str], drain: Collection[str]) -> Edit:
    """Send requests again to instances that the scaler drains, and drain others for it."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay | None:
        back = overlay.draining & overlay.scaled_down & set(keep)
        more = overlay.names(file).intersection(drain) - overlay.draining
        if not back and not more:
            return None
        return overlay.next(draining=overlay.draining - back | more, scaled_down=overlay.scaled_down | more)

    return edit


def restoring(names: Collection[str]) -> Edit:
    """Let instances that were removed serve again, where the fleet file or `discovery` has them."""
    return lambda overlay, _: (
        overlay.next(removed=overlay.removed - set(names)) if overlay.removed & set(names) else None
    )


def drained(names: Collection[str]) -> Edit:
    """Remove those of these instances that still drain."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay | None:
        gone = overlay.draining.intersection(names)
        return _without(gone, overlay, file) if gone else None

    return edit


def targeting(key: str | None, values: Mapping[str, float | None]) -> Edit:
    """Change the targets of a key, or of the fleet (None)."""
    return lambda overlay, _: overlay.next(
        targets={**overlay.targets, key: {**overlay.targets.get(key, {}), **values}}
    )


def _without(names: Set[str], overlay: Overlay, file: FleetConfig, **changes: Any) -> Overlay:
    return overlay.next(
        added=tuple(each for each in overlay.added if each.name not in names),
        removed=overlay.removed | {each.name for each in file.instances if each.name in names},
        draining=overlay.draining - names,
        **changes,
    )
