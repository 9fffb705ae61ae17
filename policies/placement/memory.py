"""The memory that replicas take of each GPU. All figures in decimal gigabytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policies.placement.hardware_support import support
from policies.placement.types import Group, Model, Placement, Shape


def gb_per_gpu(model: Model, shape: Shape) -> float:
    """What one replica takes of each GPU of a group; with layers, of a GPU of its largest stage."""
    if model.layers is None:
        return model.gb / shape.gpus
    largest = -(-model.layers // shape.pipeline)
    return model.gb * largest / model.layers / shape.tensor


def group_gb(models: Sequence[Model], group: Group) -> float:
    """What all replicas of a group take of each of its GPUs."""
    return sum(gb_per_gpu(models[each], group.shape) for each in group.models)


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits where. `models` is the planner's list; with `only`, no other models are placed."""

    models: Sequence[Model]
    only: frozenset[int] | None = None

    def allows(self, group: Group, model: int) -> bool:
        """Whether a group can run one more replica: the model is not there yet, its format runs, and memory is left."""
        shape = group.shape
        return (
            model not in group.models
            and (self.only is None or model in self.only)
            and self._may_share((*group.models, model))
            and self.runs(shape, model)
            and self._within_memory(group.adding(model))
        )

    def runs(self, shape: Shape, model: int) -> bool:
        """Whether the format of a model's weights runs on these GPUs, each stage has a layer, and the shape is one of the
        model's."""
        one = self.models[model]
        return (
            support(shape.kind, one.precision) is not None
            and shape.pipeline <= (one.layers or shape.pipeline)
            and (one.shapes is None or (shape.kind.name, shape.tensor, shape.pipeline) in one.shapes)
        )

    def holds(self, shape: Shape, chosen: Iterable[int]) -> bool:
        """Whether one group can run all these models."""
        group = Group(shape, tuple(chosen))
        return (
            self._may_share(group.models)
            and all(self.runs(shape, each) for each in group.models)
            and self._within_memory(group)
        )

    def valid(self, placement: Placement) -> bool:
        """Whether every group holds its models, none of them twice."""
        return all(
            len(set(group.models)) == len(group.models) and self.holds(group.shape, group.models)
            for group in placement
        )

    def _within_memory(self, group: Group) -> bool:
        budgets = (group.shape.kind.budget_for(self.models[each].precision) for each in group.models)
        return group_gb(self.models, group) <= min(budgets, default=group.shape.kind.budget_gb)

    def _may_share(self, chosen: Sequence[int]) -> bool:
        return len(chosen) < 2 or not any(self.models[each].alone for each in chosen)
