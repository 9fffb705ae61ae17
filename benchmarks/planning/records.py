"""The requests that a fleet has served, from its records, and its cluster and models, from its fleet file."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from sqlalchemy import RowMapping, select

from backends import KINDS
from backends.engine import profiles
from backends.engine.hardware import HardwareSpec
from backends.engine.models import MODELS
from backends.engine.weights import weights_named
from benchmarks.planning.files import ClusterConfig, ModelsConfig
from benchmarks.planning.problem import LIMITS, PlanningProblem
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest
from policies.placement.candidates import every_shape
from policies.placement.types import Group, Placement
from router.config import FleetConfig
from router.config.crosscheck import ANY_MODEL
from router.core.types import OUTSIDE_ATTAINMENT
from router.store import tables
from router.store.database import parse_url, public_url, reading

#: GPUs, how many of them share a layer, and their kind, of each stage (`profiles.hardware_of`).
Stages = Sequence[tuple[int, int, HardwareSpec]]


def recorded_requests(url: str, config: FleetConfig, limit: int) -> tuple[Header, list[WorkloadRequest]]:
    """The last `limit` requests of a store, by arrival, with the models and SLOs that they had, without those for models that
    `config` does not have. A request that got no answer counts with the median length of all answers. Raises StoreError and
    WorkloadError."""
    found = asyncio.run(_rows(url, limit))
    rows = [
        row
        for row in found
        if row["model_requested"] in (None, ANY_MODEL) or config.model(row["model_requested"]) is not None
    ]
    lengths = [row["output_tokens"] for row in rows if row["output_tokens"]]
    usable = [row for row in rows if row["prompt_tokens"]]
    if not usable or not lengths:
        raise WorkloadError(f"{public_url(parse_url(url))} has no requests with an answer")
    begin_s, length = usable[0]["received_at"], round(median(lengths))
    requests = [_request(row, config, begin_s, row["output_tokens"] or length) for row in usable]
    without = sum(not row["output_tokens"] for row in usable)
    details = {
        "left_out_without_prompt_tokens": len(rows) - len(usable),
        "left_out_of_other_models": len(found) - len(rows),
        "without_an_answer": without,
    }
    return Header(source="records", requests=len(requests), details=details), requests


async def _rows(url: str, limit: int) -> Sequence[RowMapping]:
    table = tables.requests
    outside = [outcome.value for outcome in OUTSIDE_ATTAINMENT]
    query = (
        select(table)
        .where(table.c.outcome.not_in(outside))
        .order_by(table.c.received_at.desc(), table.c.id.desc())
        .limit(limit)
    )
    async with reading(parse_url(url)) as engine, engine.connect() as connection:
        found = (await connection.execute(query)).mappings().all()
    return found[::-1]


def _request(row: RowMapping, config: FleetConfig, begin_s: float, output_tokens: int) -> WorkloadRequest:
    asked = None if row["model_requested"] is None else config.model(row["model_requested"])
    routing: dict[str, Any] = {} if asked is None else {"models": [asked.name]}
    slo = {
        f"{target}_ms": 1000 * row[f"slo_{target}_s"]
        for target in ("ttft", "tpot", "e2e")
        if row[f"slo_{target}_s"] is not None
    }
    if slo:
        routing["slo"] = slo
    return WorkloadRequest(
        id=row["id"],
        arrival_s=row["received_at"] - begin_s,
        prompt_tokens=row["prompt_tokens"],
        max_tokens=row["max_tokens"],
        output_tokens=output_tokens,
        routing=routing or None,
        source="records",
    )


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
    """A fleet file's models that an instance serves, in the format that most instances have, without fallbacks to others.
    Raises WorkloadError."""
    formats: dict[str, Counter[str]] = {}
    for instance in config.instances:
        for model, served in instance.serves.items():
            weights = served.quantization or KINDS[instance.protocol].default_weights
            formats.setdefault(model, Counter())[weights_named(weights)] += 1
    unknown = [model for model in formats if model not in MODELS]
    if unknown:
        raise WorkloadError(f"no engine profiles for {', '.join(unknown)}; give --models")
    rows = [
        each.model_dump(mode="json", exclude_unset=True)
        | {"weights": formats[each.name].most_common(1)[0][0]}
        | ({"fallbacks": [one for one in each.fallbacks if one in formats]} if each.fallbacks else {})
        for each in config.models
        if each.name in formats
    ]
    return ModelsConfig.model_validate({"models": rows})


def present(problem: PlanningProblem, config: FleetConfig) -> Placement | None:
    """A fleet file's instances as a placement; None if they are not of these models, or do not fit into this cluster."""
    known: Mapping[str, Group] = {
        problem.profile_name(model, shape): Group(shape, (model,))
        for model in range(len(problem.models))
        for pool in problem.cluster.pools
        for shape in every_shape(pool, LIMITS)
    }
    names = [each.profile_name(model) for each in config.instances for model in each.serves]
    if len(names) > len(config.instances) or not all(name in known for name in names):
        return None
    placement = Placement(tuple(known[name] for name in names if name is not None)).sorted()
    fits = all(
        sum(group.shape.gpus for group in placement if group.shape.kind == pool.kind) <= pool.gpus
        for pool in problem.cluster.pools
    )
    return placement if fits else None
