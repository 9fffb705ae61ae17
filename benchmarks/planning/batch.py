"""`headway plan --batch`: the groups of GPUs that prefill one batch of prompts soonest, beside the best equal groups."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from backends.engine.models import MODELS
from backends.engine.profiles import TENSOR_DEGREES
from benchmarks.planning.files import ClusterConfig, ModelsConfig, read
from benchmarks.planning.fleet import fleet_data
from benchmarks.planning.placing import placed
from benchmarks.planning.problem import PlanningProblem
from benchmarks.planning.reasons import reasons
from benchmarks.planning.report import group_data
from benchmarks.planning.session import Infeasible
from benchmarks.terminal import aligned_table
from benchmarks.workloads.format import WorkloadError
from policies.placement.hardware_support import support
from policies.placement.types import Group, Placement, Pool, Shape
from policies.placement.unlike_groups import Cost, Width, equal_groups, unlike_groups
from router.config.fields import Count, Section


class BatchConfig(Section):
    """The lengths of the prompts in tokens."""

    tokens: Annotated[tuple[Count, ...], Field(min_length=1)]


def plan_batch(
    batch: Path, cluster: Path, models: Path, base: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan as data, and its groups as a fleet file with the sections of `base`. A group prefills its prompts one after
    another, by its engine profile. Raises Infeasible, WorkloadError and ConfigError."""
    tokens = read(batch, BatchConfig).tokens
    configs = read(models, ModelsConfig).models
    longest_tokens = {each.name: max(tokens) + 1 for each in configs}
    problem = PlanningProblem(read(cluster, ClusterConfig), configs, longest_tokens)
    if len(problem.models) != 1 or len(problem.cluster.pools) != 1:
        raise WorkloadError("--batch is for one model and one pool of GPUs")
    (pool,) = problem.cluster.pools
    (model,) = problem.models
    most_gpus, spec = min(pool.node_gpus, pool.gpus), MODELS[model.name]
    widths = [Width(each, 1) for each in TENSOR_DEGREES if each <= most_gpus and spec.divides(each)]
    cost = _cost(problem, pool)
    most = problem.model_configs[0].context_tokens
    if most is not None and max(tokens) >= most:
        raise WorkloadError(f"{model.name} takes prompts of less than {most} tokens, not {max(tokens)}")
    whole = [width for width in widths if cost(max(tokens), width) < inf]
    if not whole or support(pool.kind, model.precision) is None:
        head = f"no group prefills a prompt of {max(tokens)} tokens"
        raise Infeasible(head, reasons(problem, pipelines=False))
    plan = unlike_groups(tokens, pool.gpus, widths, cost)
    groups = sorted(plan.groups, key=lambda each: -each.width.gpus)
    placement = Placement(tuple(Group(Shape(pool.kind, group.width.tensor), (0,)) for group in groups))
    laid_out = [group_data(problem, group, blocks) for group, blocks in placed(problem, placement)]
    data = {
        "headway_plan": 1,
        "cluster": problem.cluster_config.model_dump(mode="json"),
        "model": model.name,
        "gpu": pool.kind.name,
        "gpus": pool.gpus,
        "prompts": len(tokens),
        "tokens": sum(tokens),
        "makespan_s": plan.makespan,
        "bound_s": plan.bound,
        "groups": [
            {**place, "prefill_s": group.time, "tokens": group.documents}
            for place, group in zip(laid_out, groups, strict=True)
        ],
        "equal_groups": [
            {"tensor": width.tensor, "makespan_s": equal.makespan, "bound_s": equal.bound}
            for width in whole
            for equal in [equal_groups(tokens, pool.gpus // width.gpus, width, cost)]
        ],
    }
    return data, fleet_data(problem, placement, base)


def _cost(problem: PlanningProblem, pool: Pool) -> Cost:
    """Seconds of a prefill by the engine profile; infinite where the KV cache holds no token more than the prompt."""
    profiles = {tensor: problem.profile(0, Shape(pool.kind, tensor)) for tensor in TENSOR_DEGREES}

    def cost(tokens: int, width: Width) -> float:
        profile = profiles[width.tensor]
        return inf if profile is None or tokens >= profile.kv_capacity_tokens else profile.prefill_s(tokens)

    return cost


def table(data: Mapping[str, Any]) -> list[str]:
    """The groups by width, and the best groups of one width each."""
    makespan_s, bound_s = data["makespan_s"], data["bound_s"]
    about = (
        f"{data['prompts']} prompts of {data['tokens']} tokens for {data['model']} on {data['gpus']} x {data['gpu']}: "
        f"prefilled in {makespan_s:.3f} s; no groups need less than {bound_s:.3f} s"
    )
    rows = []
    for tensor in sorted({group["tensor"] for group in data["groups"]}, reverse=True):
        groups = [group for group in data["groups"] if group["tensor"] == tensor]
        tokens = [each for group in groups for each in group["tokens"]]
        row = {"tensor": tensor, "groups": len(groups), "prompts": len(tokens)}
        row |= {"longest": max(tokens), "shortest": min(tokens)}
        latest_s = max(group["prefill_s"] for group in groups)
        rows.append({**{name: str(value) for name, value in row.items()}, "prefill s": f"{latest_s:.3f}"})
    equal = [
        {
            "equal groups": f"tensor {each['tensor']}",
            "prefill s": f"{each['makespan_s']:.3f}",
            "of these groups": f"{each['makespan_s'] / makespan_s:.2f} x",
        }
        for each in data["equal_groups"]
    ]
    return [about, "", *aligned_table(rows), "", *aligned_table(equal)]
