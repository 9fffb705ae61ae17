"""Clusters, models and requests of the tests of planning."""

from __future__ import annotations

from pathlib import Path

from benchmarks.planning.estimate import Asked, Estimate
from benchmarks.planning.files import ClusterConfig, ModelsConfig
from benchmarks.planning.problem import PlanningProblem


def problem(pools: str, models: str, longest_tokens: int = 4000) -> PlanningProblem:
    """`4xl4 2xa100-80g`: pools; `llama-3.2-1b qwen2.5-7b:fp8`: models with their weights. A GPU costs 1 USD an hour."""
    cluster = []
    for pool in pools.split():
        count, _, gpu = pool.partition("x")
        cluster.append({"gpu": gpu, "gpus": int(count), "node_gpus": 4, "usd_per_hour": 1.0})
    rows = []
    for model in models.split():
        name, _, weights = model.partition(":")
        rows.append({"name": name, "weights": weights or "fp16"})
    config = ModelsConfig.model_validate({"models": rows})
    longest = {each.name: longest_tokens for each in config.models}
    return PlanningProblem(ClusterConfig.model_validate({"pools": cluster}), config.models, longest)


def plan_files(folder: Path, pools: str, models: str) -> tuple[str, ...]:
    """The two files of `headway plan` with these lists, as its options."""
    cluster, asked = folder / "cluster.yaml", folder / "models.yaml"
    cluster.write_text(f"pools: [{pools}]")
    asked.write_text(f"models: [{models}]")
    return "--cluster", str(cluster), "--models", str(asked)


def stream(rates_per_s: list[float], seconds: float = 60.0) -> list[Asked]:
    """Requests at equal gaps, of 1000 prompt and 150 output tokens, within 2 s and 80 ms a token."""
    found = [
        Asked(place / rate, 1000, 1000, {model: 150}, 2.0, 0.08, None, 14.0)
        for model, rate in enumerate(rates_per_s)
        for place in range(int(seconds * rate))
    ]
    return sorted(found, key=lambda each: (each.arrival_s, each.models))


def estimate(pools: str, models: str, rates_per_s: list[float]) -> Estimate:
    return Estimate(problem(pools, models), stream(rates_per_s))
