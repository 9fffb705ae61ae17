"""The cluster, the models and the placement of a fleet, from its fleet file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from backends import KINDS
from backends.engine import profiles
from backends.engine.hardware import HardwareSpec
from backends.engine.models import MODELS
from backends.engine.weights import weights_named
from benchmarks.planning.files import ClusterConfig, ModelsConfig
from benchmarks.planning.problem import PlanningProblem
from benchmarks.workloads.format import WorkloadError
from policies.placement.candidates import every_shape
from policies.placement.types import GpuKind, Group, Placement
from router.config import FleetConfig

#: GPUs, how many of them share a layer, and their kind, of each stage (`profiles.hardware_of`).
Stages = Sequence[tuple[int, int, HardwareSpec]]


def cluster_of(config: FleetConfig) -> ClusterConfig:
    """The GPUs of a fleet file's instances, from their hardware. GPUs of a kind are taken as nodes of as many as the
    widest instance has. In an instance over unlike GPUs those of a kind that another instance has cost as much as there; the
    others share the rest of its price equally. Raises WorkloadError."""
    pools: dict[tuple[str, float | None], list[int]] = {}
    prices = [each.usd_per_hour for each in config.instances]
    found: list[tuple[float | None, Stages]] = []
    for instance in config.instances:
        if instance.hardware_name is None:
            raise WorkloadError(f"instance {instance.name}: no hardware; give --cluster")
        try:
            stages = profiles.hardware_of(instance.hardware_name)
        except KeyError:
            raise WorkloadError(
                f"instance {instance.name}: no engine profiles for {instance.hardware_name}; give --cluster"
            ) from None
        found.append((None if None in prices else instance.usd_per_hour, stages))
    usd_of: dict[str, float] = {}
    for usd, parts in sorted(found, key=lambda each: len({hardware.name for _, _, hardware in each[1]})):
        one = _usd_of_one(usd, parts, usd_of)
        for gpus, tensor, hardware in parts:
            pool = pools.setdefault((hardware.name, one.get(hardware.name)), [0, 1])
            pool[:] = pool[0] + gpus, max(pool[1], tensor)
        usd_of = one | usd_of
    if not pools:
        raise WorkloadError("the fleet has no instances; give --cluster")
    return ClusterConfig.model_validate(
        {
            "pools": [
                {"gpu": gpu, "gpus": gpus, "node_gpus": node_gpus, "usd_per_hour": usd}
                for (gpu, usd), (gpus, node_gpus) in pools.items()
            ]
        }
    )


def _usd_of_one(usd: float | None, stages: Stages, known: Mapping[str, float]) -> dict[str, float]:
    """The price of one GPU of each kind; `known` are those of other instances' GPUs. Nothing without a price."""
    if usd is None:
        return {}
    counts: Counter[str] = Counter()
    for gpus, _, hardware in stages:
        counts[hardware.name] += gpus
    others = {kind: known[kind] for kind in counts if kind in known} if len(counts) > 1 else {}
    rest = usd - sum(counts[kind] * price for kind, price in others.items())
    if rest <= 0 and len(others) < len(counts):  # GPUs of this instance cost less than elsewhere
        others, rest = {}, usd
    left = sum(gpus for kind, gpus in counts.items() if kind not in others)
    return {kind: others[kind] if kind in others else round(rest / left, 6) for kind in counts}


def models_of(config: FleetConfig) -> ModelsConfig:
    """A fleet file's models that an instance serves, in the format that most instances have, without fallbacks to others. The name
    of a model without instances becomes an alias of its first fallback that has one. Raises WorkloadError."""
    formats: dict[str, Counter[str]] = {}
    for instance in config.instances:
        for model, served in instance.serves.items():
            weights = served.quantization or KINDS[instance.protocol].default_weights
            formats.setdefault(model, Counter())[weights_named(weights)] += 1
    unknown = [model for model in formats if model not in MODELS]
    if unknown:
        raise WorkloadError(f"no engine profiles for {', '.join(unknown)}; give --models")
    aliases = {each.name: [*each.aliases] for each in config.models}
    for each in config.models:
        served_by = next((one for one in each.fallbacks if one in formats), None)
        if each.name not in formats and served_by is not None:
            aliases[served_by] += [each.name, *each.aliases]
    rows = [
        each.model_dump(mode="json", exclude_unset=True)
        | {
            "weights": formats[each.name].most_common(1)[0][0],
            "aliases": aliases[each.name],
            "fallbacks": [one for one in each.fallbacks if one in formats],
        }
        for each in config.models
        if each.name in formats
    ]
    return ModelsConfig.model_validate({"models": rows})


def present(problem: PlanningProblem, config: FleetConfig) -> Placement | None:
    """A fleet file's instances as a placement; None if they are not of these models, or do not fit into this cluster."""
    known: dict[str, list[Group]] = {}
    left: Counter[GpuKind] = Counter()
    for pool in problem.cluster.pools:
        left[pool.kind] += pool.gpus
        for model, shape in product(range(len(problem.models)), every_shape(pool)):
            known.setdefault(problem.profile_name(model, shape), []).append(Group(shape, (model,)))
    groups = []
    for each in config.instances:
        if len(each.serves) > 1:
            return None
        for name in map(each.profile_name, each.serves):
            fitting = [one for one in known.get(name or "", ()) if one.shape.gpus <= left[one.shape.kind]]
            if not fitting:
                return None
            usd_off = [abs(one.shape.usd_per_hour - (each.usd_per_hour or 0.0)) for one in fitting]
            group = fitting[usd_off.index(min(usd_off))]
            left[group.shape.kind] -= group.shape.gpus
            groups.append(group)
    return Placement(tuple(groups)).sorted()
