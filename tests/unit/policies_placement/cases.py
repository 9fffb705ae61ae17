"""Small clusters, models and requests that tests of placement share."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.placement.outcomes import Evaluator
from policies.placement.simulation import Arrivals
from policies.placement.types import Cluster, GpuKind, Group, Model, Placement, Pool, Shape

A100 = GpuKind("a100-40g", 40.0, (8, 0))
#: AlpaServe's `large` set, GB of fp16 weights.
LARGE = (
    Model("llama-2-70b", 137.95),
    Model("falcon-40b", 83.68),
    Model("llama-2-7b", 13.48),
    Model("falcon-40b", 83.68),
)


def cluster(gpus: int = 8, kind: GpuKind = A100) -> Cluster:
    return Cluster((Pool(kind, gpus),))


def groups(*contents: tuple[int, int, Sequence[int]], kind: GpuKind = A100) -> Placement:
    """Groups as (tensor, pipeline, models)."""
    return Placement(
        tuple(Group(Shape(kind, tensor, pipeline), tuple(models)) for tensor, pipeline, models in contents)
    )


def requests(
    counts: Sequence[int], gap_s: float, deadline_s: float | Sequence[float], seed: int = 0
) -> Arrivals:
    """So many requests for each model in random order, at exponential gaps."""
    random = Random(seed)
    asked = [model for model, count in enumerate(counts) for _ in range(count)]
    random.shuffle(asked)
    at_s = 0.0
    arrival_s = []
    for _ in asked:
        at_s += random.expovariate(1 / gap_s)
        arrival_s.append(at_s)
    deadlines = [deadline_s] * len(counts) if isinstance(deadline_s, float) else deadline_s
    return Arrivals(arrival_s, asked, [deadlines[model] for model in asked], len(counts))


def large(counts: Sequence[int], gap_s: float, slo_scale: float = 5.0, seed: int = 0) -> Evaluator:
    """Requests for `LARGE`, with the stage times of the reproduction: 20 tokens, weights read at 1.227e12 B/s."""

    def stage_s(model: int, shape: Shape) -> float:
        return 20 * LARGE[model].weights_gb * 1e9 / shape.gpus / 1.227e12

    deadlines = [slo_scale * stage_s(model, Shape(A100)) for model in range(len(LARGE))]
    return Evaluator(requests(counts, gap_s, deadlines, seed), stage_s)
