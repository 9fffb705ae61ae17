"""The instances that serve, and the prices of each model's candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.core.eligibility import free_slots
from router.core.money.quote import Tariff
from router.core.options import Roster
from router.core.state import Instance

#: So many rosters are kept: clients may request any models together.
_MOST_ROSTERS = 64


class Fleet:
    """All instances: `instances` by name, `by_model` by model and instance name. Both are in order of names. The object
    is replaced as a whole when the fleet changes."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        self.instances: dict[str, Instance] = {instance.name: instance for instance in instances}
        self.by_model: dict[str, dict[str, Instance]] = {}
        for name in sorted(self.instances):
            for model in self.instances[name].candidates:
                self.by_model.setdefault(model, {})[name] = self.instances[name]
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

    def full(self, models: Iterable[str], now: float) -> bool:
        """Whether an instance of `models` is healthy or starting, but none has a free slot."""
        alive = [
            instance
            for model in models
            for instance in self.serving(model)
            if (instance.healthy or instance.starting) and not instance.draining
        ]
        return bool(alive) and all(instance.starting or free_slots(instance, now) < 1 for instance in alive)

    def returning(self) -> bool:
        """Whether an instance has just returned and takes more requests as time passes."""
        return any(instance.returned_at is not None for instance in self.instances.values())

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
