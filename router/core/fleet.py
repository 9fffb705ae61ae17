"""The instances that serve, and the prices of each model's candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.core.eligibility import REPORT_HOLDS_S, free_slots
from router.core.money.quote import Tariff
from router.core.options import Roster
from router.core.state import Instance

#: So many rosters are kept: clients may request any models together.
_MOST_ROSTERS = 64
#: More than the rounding error of a time.
_ROUNDING_S = 0.001


class Fleet:
    """All instances: `instances` by name, `by_model` by model and instance name. Both are in order of names. The object
    is replaced as a whole when the fleet changes."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        self.instances: dict[str, Instance] = {instance.name: instance for instance in instances}
        self.by_model: dict[str, dict[str, Instance]] = {}
        for name in sorted(self.instances):
            for model in self.instances[name].candidates:
                self.by_model.setdefault(model, {})[name] = self.instances[name]
        #: Those that have returned after an ejection. The scheduler adds to them.
        self.returned = [each for each in self.instances.values() if each.returned_at is not None]
        self._rosters: dict[tuple[str, ...], Roster] = {}
        self._tariffs: dict[str, tuple[Tariff, ...]] = {}

    def serving(self, model: str) -> Iterable[Instance]:
        """The instances that serve a model, in order of name."""
        return self.by_model.get(model, {}).values()

    def roster(self, models: tuple[str, ...]) -> Roster:
        """The candidates of these models."""
        found = self._rosters.get(models)
        if found is None:
            if len(self._rosters) >= _MOST_ROSTERS:
                self._rosters.clear()
            members = [(each.candidates[model], each) for model in models for each in self.serving(model)]
            found = self._rosters[models] = Roster.of(members)
        return found

    def full_until(self, models: Iterable[str], now: float) -> float | None:
        """Until when no instance of `models` gets a free slot if nothing happens there but load reports that leave it full; None
        if one has a free slot now, or if none is healthy or starting."""
        until = None
        for model in models:
            for instance in self.serving(model):
                if not (instance.healthy or instance.starting) or instance.draining:
                    continue
                if not instance.starting and free_slots(instance, now) >= 1:
                    return None
                expires_at, reported_at = now + REPORT_HOLDS_S, instance.reported_at
                if reported_at is not None and now - reported_at < REPORT_HOLDS_S:
                    expires_at = reported_at + REPORT_HOLDS_S
                opens_at = now if instance.returned_at is not None else expires_at - _ROUNDING_S
                if until is None or opens_at < until:
                    until = opens_at
        return until

    def returning(self) -> bool:
        """Whether an instance has just returned and takes more requests as time passes."""
        if any(instance.returned_at is not None for instance in self.returned):
            return True
        self.returned.clear()
        return False

    def tariffs(self, models: Sequence[str]) -> Sequence[Tariff]:
        """The distinct tariffs of the candidates of these models."""
        if len(models) == 1:
            return self._tariffs_of(models[0])
        return tuple(tariff for model in models for tariff in self._tariffs_of(model))

    def _tariffs_of(self, model: str) -> tuple[Tariff, ...]:
        found = self._tariffs.get(model)
        if found is None:
            candidates = [instance.candidates[model] for instance in self.serving(model)]
            found = self._tariffs[model] = tuple(
                {Tariff(each.model, each.price, each.context_tokens) for each in candidates}
            )
        return found
