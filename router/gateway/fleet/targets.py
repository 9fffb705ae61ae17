"""The current targets of quality and attainment, which policies read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from router.config import FleetConfig, KeyConfig
from router.core.types import Targets


class LiveTargets:
    """The targets of all scopes. The fleet file sets them, and operators' changes replace some. A key has the fleet's targets
    where neither its entry nor a change sets its own."""

    def __init__(self, config: FleetConfig) -> None:
        #: Called when they have changed.
        self.on_change: Callable[[], None] | None = None
        self._made: dict[str, dict[str, float | None]] = {}
        #: The targets of the fleet (None) and of each key.
        self.scopes: Mapping[str | None, Targets] = {}
        self.use(config)

    def use(
        self, config: FleetConfig, changes: Mapping[str | None, Mapping[str, float | None]] | None = None
    ) -> None:
        """Use a fleet file, with these changes of a scope's `quality` (None: the policy's default) or `attainment`. A key that
        another replica has just made may be unknown yet."""
        cost = config.scheduling.cost
        self._fleet = Targets(cost.quality, cost.quality_slack, cost.attainment, cost.window_requests)
        self._keys = {key.name: _own(key) for key in config.auth.keys}
        self._changes = changes or {}
        self._merge()

    def use_keys(self, made: Iterable[KeyConfig]) -> None:
        """Use these keys beside those of the fleet file, with their effective settings; keeps all changes."""
        self._made = {key.name: _own(key) for key in made}
        self._merge()

    def changed(self, key: str | None) -> bool:
        """Whether a scope's own targets differ from the fleet file's."""
        return bool(self._changes.get(key))

    def _merge(self) -> None:
        before = self.scopes
        fleet = replace(self._fleet, **self._changes.get(None, {}))  # type: ignore[arg-type]
        targets: dict[str | None, Targets] = {None: fleet}
        for name, own in {**self._made, **self._keys}.items():
            values = {**own, **self._changes.get(name, {})}
            targets[name] = replace(fleet, **values) if values else fleet  # type: ignore[arg-type]
        self.scopes = targets
        if self.on_change is not None and targets != before:
            self.on_change()


def _own(key: KeyConfig) -> dict[str, float | None]:
    """The targets that a key sets itself."""
    return {name: value for name in ("quality", "attainment") if (value := getattr(key, name)) is not None}
