"""Whether a set of models fits a cluster. If not: which model, which limit, and which change would help.

A model is infeasible alone if no GPU runs its format or no group is large enough. Together models are infeasible if
they cannot be packed (`packing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from policies.placement.candidates import every_shape
from policies.placement.hardware_support import missing, support
from policies.placement.memory import Fit, gb_per_gpu, group_gb
from policies.placement.packing import pack
from policies.placement.types import Cluster, GpuKind, Model, Precision

_MOST_MEMORY = 1e6  # times the memory that is there
_LARGEST_CLUSTER = 64  # times the GPUs that are there, when counting those missing
_SIXTEEN_BITS = (Precision.FP16, Precision.BF16)
#: The bits of a weight. llama.cpp's Q8_0: 34 bytes hold 32 weights. AWQ: for each 128 weights a scale of 16 bits and a zero point of 4.
_BITS = {
    **dict.fromkeys(_SIXTEEN_BITS, 16.0),
    Precision.FP8: 8.0,
    Precision.GGUF: 8.5,
    Precision.INT4: 4 + 20 / 128,
}
#: Whether all these models can be placed on a cluster at once.
Fits = Callable[[Sequence[Model], Cluster], bool]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why models cannot be placed. Each of `changes` alone is enough; it is the smallest of its kind."""

    models: tuple[str, ...]
    limit: str
    changes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line."""
        names = ", ".join(self.models) if len(self.models) <= 4 else f"{len(self.models)} models together"
        change = f"; enough would be: {'; or '.join(self.changes)}" if self.changes else ""
        return f"{names}: {self.limit}{change}"


def obstacles(models: Sequence[Model], cluster: Cluster, fits: Fits | None = None) -> list[Obstacle]:
    """An empty list if all models can be placed at once. Otherwise each model that fits nowhere, or, if each fits alone, one
    obstacle for all together. `fits` replaces `pack`: it may know groups of unequal GPUs too."""
    packs = fits or (lambda some, pools: pack(some, pools) is not None)
    alone = [found for model in models if (found := _alone(model, cluster, packs)) is not None]
    if alone:
        return list(dict.fromkeys(alone))
    if packs(models, cluster):
        return []
    return [_together(models, cluster, packs)]


def needed_gb(models: Sequence[Model], cluster: Cluster) -> float:
    """The least memory on each GPU with which all models fit, to 0.01 %. With several kinds all grow by the same
    factor; the figure is that of the kind that has least. Raises ValueError if a model runs on none of them."""
    low, high = 0.0, 1.0
    while (packed := pack(models, _scaled(cluster, high))) is None:
        low, high = high, 2 * high
        if high > _MOST_MEMORY:
            raise ValueError("a model runs on none of these GPUs")
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        found = pack(models, _scaled(cluster, middle))
        if found is None:
            low = middle
        else:
            high, packed = middle, found
    # What the fullest group takes, so that rounding adds nothing.
    share = max(
        group_gb(models, group) / group.shape.kind.budget_for(models[each].precision)
        for group in packed
        for each in group.models
    )
    kind, precision = _smallest(models, cluster)
    return share * high * kind.budget_for(precision)


def _alone(model: Model, cluster: Cluster, fits: Fits) -> Obstacle | None:
    kinds = list(dict.fromkeys(pool.kind for pool in cluster.pools))
    running = [kind for kind in kinds if support(kind, model.precision) is not None]
    if not running:
        reasons = "; ".join(missing(kind, model.precision) for kind in kinds)
        formats = _formats(model, cluster, fits) or _formats_and_gpus(model, cluster, fits)
        return Obstacle((model.name,), reasons, formats)
    possible = [shape for pool in cluster.pools if pool.kind in running for shape in every_shape(pool)]
    if any(Fit([model]).holds(shape, [0]) for shape in possible) or fits([model], cluster):
        return None
    runs = [shape for shape in possible if Fit([model]).runs(shape, 0)] or possible
    shape = min(runs, key=lambda each: gb_per_gpu(model, each) / each.kind.budget_for(model.precision))
    needed = gb_per_gpu(model, shape)
    limit = f"needs {_gb(needed)} GB of each GPU in a group of {shape.gpus}, {shape.kind.name} has {_usable(shape.kind, model.precision)}"
    changes = (*_formats(model, cluster, fits), *_more_gpus([model], cluster, fits))
    return Obstacle((model.name,), limit, (*changes, f"GPUs with {_gb(needed)} GB usable each"))


def _together(models: Sequence[Model], cluster: Cluster, fits: Fits) -> Obstacle:
    changes = []
    for precision in (Precision.FP8, Precision.INT4):  # four bits only where eight are too many
        if fits([_in_fewer_bits(model, precision) for model in models], cluster):
            changes.append(f"{precision} weights")
            break
    changes += [_left_out(models, cluster, fits), *_more_gpus(models, cluster, fits)]
    names = tuple(model.name for model in models)
    try:
        needed = needed_gb(models, cluster)
    except ValueError:  # more memory does not help: each takes GPUs for itself
        limit = f"need GPUs for themselves each, and the cluster has {cluster.gpus}"
        return Obstacle(names, limit, tuple(changes))
    usable = _usable(*_smallest(models, cluster))
    limit = f"need {_gb(needed)} GB of each of {cluster.gpus} GPUs, which have {usable}"
    return Obstacle(names, limit, (*changes, f"GPUs with {_gb(needed)} GB usable each"))


def _smallest(models: Sequence[Model], cluster: Cluster) -> tuple[GpuKind, Precision]:
    """The kind of GPU and the format for which there is least memory."""
    pairs = product((pool.kind for pool in cluster.pools), (model.precision for model in models))
    return min(pairs, key=lambda pair: pair[0].budget_for(pair[1]))


def _usable(kind: GpuKind, precision: Precision) -> str:
    whole = "" if kind.memory_gb is None else f" of {kind.memory_gb:g}"
    return f"{kind.budget_for(precision):g} usable{whole}"


def _gb(needed: float) -> str:
    """Rounded up, so that this much is enough."""
    return f"{ceil(needed * 10 - 1e-3) / 10:.1f}"


def _formats(model: Model, cluster: Cluster, fits: Fits) -> tuple[str, ...]:
    """Formats in which a model would fit alone; four bits only where it fits in no other."""
    found = [other for other in _in_other_formats(model) if fits([other], cluster)]
    four_bits = _in_fewer_bits(model, Precision.INT4)
    if not found and four_bits != model and fits([four_bits], cluster):
        found = [four_bits]
    return tuple(f"{weights_name(other.precision)} weights" for other in found)


def _formats_and_gpus(model: Model, cluster: Cluster, fits: Fits) -> tuple[str, ...]:
    """For each format that runs on some of the GPUs, how many more of them are enough."""
    return tuple(
        f"{weights_name(other.precision)} weights with {more}"
        for other in _in_other_formats(model)
        for more in _more_gpus([other], cluster, fits)
    )


def _in_other_formats(model: Model) -> list[Model]:
    others = [
        replace(model, precision=precision) for precision in _SIXTEEN_BITS if precision != model.precision
    ]
    if model.precision in _SIXTEEN_BITS:
        others += [_in_fewer_bits(model, precision) for precision in (Precision.FP8, Precision.GGUF)]
    return others


def weights_name(precision: Precision) -> str:
    """The format as a models file names it. For llama.cpp's formats: the one of 8 bits."""
    return "q8" if precision == Precision.GGUF else precision.value


def _in_fewer_bits(model: Model, precision: Precision) -> Model:
    """A model in this format; as it is if that would not have fewer bits, or if it is llama.cpp's."""
    bits = 0.0 if model.precision == Precision.GGUF else _BITS.get(model.precision, 0.0)
    if bits <= _BITS[precision]:
        return model
    return replace(model, precision=precision, weights_gb=model.weights_gb * _BITS[precision] / bits)


def _left_out(models: Sequence[Model], cluster: Cluster, fits: Fits) -> str:
    """The fewest models to leave out: the largest ones, without those that still fit."""
    order = sorted(range(len(models)), key=lambda model: -models[model].gb)
    dropped = 1
    while not fits([models[each] for each in order[dropped:]], cluster):
        dropped += 1
    out = order[:dropped]
    for model in reversed(order[:dropped]):
        kept = [each for each in order if each not in out or each == model]
        if fits([models[each] for each in kept], cluster):
            out.remove(model)
    names = [models[each].name for each in out]
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return f"leave out {', '.join(counted)}"


def _more_gpus(models: Sequence[Model], cluster: Cluster, fits: Fits) -> tuple[str, ...]:
    """The fewest additional GPUs of one kind; empty if no number of them is enough."""
    found = []
    for place, pool in enumerate(cluster.pools):
        largest = pool.kind.max_tensor * pool.kind.max_pipeline
        most = min(_LARGEST_CLUSTER * cluster.gpus - 1, largest * len(models))
        for more in range(1, most + 1):
            grown = replace(pool, gpus=pool.gpus + more)
            pools = (*cluster.pools[:place], grown, *cluster.pools[place + 1 :])
            if fits(models, Cluster(pools)):
                found.append((more, f"{more} more {pool.kind.name}"))
                break
    return (min(found)[1],) if found else ()


def _scaled(cluster: Cluster, factor: float) -> Cluster:
    return Cluster(tuple(replace(pool, kind=_with_memory(pool.kind, factor)) for pool in cluster.pools))


def _with_memory(kind: GpuKind, factor: float) -> GpuKind:
    llamacpp_gb = None if kind.llamacpp_gb is None else kind.llamacpp_gb * factor
    return replace(kind, budget_gb=kind.budget_gb * factor, llamacpp_gb=llamacpp_gb)
