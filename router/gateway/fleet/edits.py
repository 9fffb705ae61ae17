"""Operators' changes of the fleet, each a function from one overlay to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from router.config import FleetConfig, InstanceConfig
from router.core.errors import Refusal
from router.core.types import Outcome
from router.gateway.fleet.overlay import Overlay

#: Makes the next overlay from the current one and this replica's fleet file; None if nothing changes. Raises Refusal.
Edit = Callable[[Overlay, FleetConfig], Overlay | None]


def adding(added: InstanceConfig) -> Edit:
    """Add an instance. Raises a Refusal (409) if its name is taken."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay:
        if overlay.over(file).instance(added.name) is not None:
            raise Refusal(
                409, "name_taken", f"An instance {added.name} is there already", Outcome.REJECTED_INVALID
            )
        return overlay.adding(added)

    return edit


def removing(name: str) -> Edit:
    """Remove an instance. Its running requests continue to their end."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay | None:
        return None if overlay.over(file).instance(name) is None else overlay.removing(name, file)

    return edit


def draining(name: str) -> Edit:
    """Send nothing more to an instance. It leaves when no replica has requests there."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay | None:
        if overlay.over(file).instance(name) is None or name in overlay.draining:
            return None
        return overlay.drained(name)

    return edit


def keeping(name: str) -> Edit:
    """Send requests to an instance again that drains."""
    return lambda overlay, _: overlay.keeping(name) if name in overlay.draining else None


def restoring(names: Collection[str]) -> Edit:
    """Let instances that were removed serve again, where the fleet file or `discovery` has them."""
    return lambda overlay, _: overlay.restoring(names) if overlay.removed & set(names) else None


def drained(name: str) -> Edit:
    """Remove an instance that drains; nothing if it drains no more."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay | None:
        return overlay.removing(name, file) if name in overlay.draining else None

    return edit


def targeting(key: str | None, values: Mapping[str, float | None]) -> Edit:
    """Change the targets of a key, or of the fleet (None)."""
    return lambda overlay, _: overlay.targeting(key, values)
