"""A plan as data, and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from backends.engine import profiles
from backends.engine.models import MODELS
from benchmarks.planning.demand import LEAST_S
from benchmarks.planning.placing import Block, placed
from benchmarks.planning.planner import Plan
from benchmarks.planning.problem import PlanningProblem
from benchmarks.planning.unlike import UnlikeGroup
from benchmarks.terminal import aligned_table
from policies.placement.memory import gb_per_gpu
from policies.placement.types import Group


def plan_data(problem: PlanningProblem, plan: Plan) -> dict[str, Any]:
    """One plan: what it costs, its score, and its groups."""
    return {
        "usd_per_hour": plan.usd_per_hour if problem.cluster_config.has_prices else None,
        "gpus": sum(
            profiles.gpus_of(problem.profile_name(group.models[0], group.shape)) for group in plan.placement
        ),
        "multiple": plan.multiple,
        **asdict(plan.score),
        "groups": [group_data(problem, group, blocks) for group, blocks in placed(problem, plan.placement)],
    }


def group_data(problem: PlanningProblem, group: Group, blocks: Sequence[Block]) -> dict[str, Any]:
    """One group. `pool` is a place in the cluster, `gpus` are places in the pool; memory is decimal gigabytes of each GPU."""
    (model,) = group.models
    shape = group.shape
    spec = problem.models[model]
    share = gb_per_gpu(spec, shape) / spec.gb
    profile = problem.profile(model, shape)
    kv_tokens = 0 if profile is None else profile.kv_capacity_tokens
    unlike = problem.unlike_of(group)
    where: dict[str, Any]
    if unlike is None:
        ((pool, gpus),) = blocks
        where = {"pool": pool, "gpus": list(gpus), "tensor": shape.tensor, "pipeline": shape.pipeline}
        kv_bytes = kv_tokens * MODELS[spec.name].kv_bytes_per_token(shape.tensor) * share * shape.tensor
        gb = round(share * spec.weights_gb, 2), round(kv_bytes / 1e9, 2)
    else:
        stages = _stages(unlike, blocks, spec.weights_gb, kv_tokens)
        where = {"stages": stages}
        gb = tuple(max(stage[name] for stage in stages) for name in _GB)
    return {
        "models": [spec.name],
        "weights": problem.model_configs[model].weights,
        "gpu": shape.kind.name,
        **where,
        "profile": problem.profile_name(model, shape),
        **dict(zip(_GB, gb, strict=True)),
        "kv_cache_tokens": kv_tokens,
        "usd_per_hour": shape.known_usd_per_hour,
    }


_GB = ("weights_gb_per_gpu", "kv_cache_gb_per_gpu")


def _stages(
    group: UnlikeGroup, blocks: Sequence[Block], weights_gb: float, kv_tokens: int
) -> list[dict[str, Any]]:
    """The stages of a group of unlike GPUs in order, each with its GPUs and its layers."""
    spec = MODELS[group.model]
    stages: list[dict[str, Any]] = []
    for stage, (pool, gpus) in zip(group.stages, blocks, strict=True):
        share = stage.layers / spec.layers
        kv_bytes = kv_tokens * spec.kv_bytes_per_token(stage.gpus) * share
        stages.append(
            {
                "gpu": stage.hardware.name,
                "pool": pool,
                "gpus": list(gpus),
                "layers": stage.layers,
                "weights_gb_per_gpu": round(weights_gb * share / stage.gpus, 2),
                "kv_cache_gb_per_gpu": round(kv_bytes / 1e9, 2),
            }
        )
    return stages


def table(data: dict[str, Any]) -> list[str]:
    """The ranked plans, the groups of the first, and what changes of the cluster would give."""
    rows = [_row(str(place), plan) for place, plan in enumerate(data["plans"], start=1)]
    if data["present"]:
        rows.append(_row("present", data["present"]))
    rows += [_row(each["change"], each) for each in data["what_if"] if "infeasible" not in each]
    if data["objective"] != "throughput":
        for row in rows:
            del row["load"]
    return [
        f"attainment under the policy {data['policy']}, with the 95 % interval of another draw of the requests",
        _bound_in_words(data),
        *_brief(data["span_s"]),
        *_short(data),
        "",
        *aligned_table(rows),
        *(f"{each['change']}: {each['infeasible']}" for each in data["what_if"] if "infeasible" in each),
        "",
        *aligned_table(_group_rows(data["plans"][0]["groups"])),
    ]


def _brief(span_s: float) -> list[str]:
    """A warning where the requests are over before a fleet that is too small is full."""
    if span_s >= 0.9 * LEAST_S:
        return []
    return [
        f"warning: all requests come within {span_s:.1f} s, in which even a fleet that is too small may not fill up: give more (--limit)"
    ]


def _short(data: dict[str, Any]) -> list[str]:
    """A warning where the best plan does not keep the target that the objective has."""
    if data["objective"] == "attainment" or data["plans"][0]["attainment"] >= data["target"]:
        return []
    return [f"warning: no plan was found that keeps {data['target']:.0%}"]


def _row(name: str, plan: dict[str, Any]) -> dict[str, str]:
    return {
        "plan": name,
        "attainment": f"{plan['attainment']:.1%}",
        "interval": f"{plan['low']:.1%} to {plan['high']:.1%}",
        "ttft p95": "" if plan["ttft_s_p95"] is None else f"{plan['ttft_s_p95']:.2f} s",
        "GPUs": str(plan.get("gpus", "")),
        "USD/h": "" if plan["usd_per_hour"] is None else f"{plan['usd_per_hour']:.2f}",
        "load": f"x {plan['multiple']:.2f}",
        "groups": _in_words(plan.get("groups", ())),
    }


def _bound_in_words(data: dict[str, Any]) -> str:
    ((measure, value),) = data["bound"].items()
    if measure == "multiple":
        if value is None:
            return (
                f"bound: none; there is GPU time to keep {data['target']:.0%} of these requests at any load"
            )
        return f"bound: no placement keeps {data['target']:.0%} at more than {value:.2f} times the load"
    if measure == "usd_per_hour":
        price = "" if value is None else f" for less than {value:.2f} USD an hour"
        return f"bound: no placement keeps {data['target']:.0%}{price}"
    return f"bound: no placement attains more than {value:.1%}"


def _group_rows(groups: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Equal groups in one row, with their number."""
    counts = Counter(tuple(_group_row(each).items()) for each in groups)
    return [{**dict(row), "groups": str(count)} for row, count in counts.items()]


def _group_row(group: dict[str, Any]) -> dict[str, str]:
    if "stages" in group:
        gpus, degrees = group["gpu"], f"{len(group['stages'])} unlike stages"
    else:
        gpus = f"{len(group['gpus'])} x {group['gpu']}"
        degrees = f"{group['tensor']} x {group['pipeline']}"
    return {
        "plan 1": ", ".join(group["models"]),
        "gpu": gpus,
        "tensor x pipeline": degrees,
        "weights GB": f"{group['weights_gb_per_gpu']:.1f}",
        "KV GB": f"{group['kv_cache_gb_per_gpu']:.1f}",
        "KV tokens": str(group["kv_cache_tokens"]),
        "USD/h each": "-" if group["usd_per_hour"] is None else f"{group['usd_per_hour']:.2f}",
    }


def _in_words(groups: Sequence[dict[str, Any]]) -> str:
    counts = Counter(group["profile"] for group in groups)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())
