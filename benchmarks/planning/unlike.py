"""Groups of unlike stages, for models that no group of equal ones holds: stages of two pools, or of another number than
profiles have.

The cheapest choices of stages from one pool or two are tried, each with its best split of the layers: in a full pipeline the
slowest stage sets the pace, so the best split is the one whose slowest stage takes least. vLLM takes such a split in the
environment variable VLLM_PP_LAYER_PARTITION. The group of the most steps a second for its price is taken out of the pools; the
planner divides what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice, product

from backends.engine import profiles
from backends.engine.hardware import HARDWARE
from backends.engine.models import MODELS
from backends.engine.unlike_stages import EngineStage
from benchmarks.planning.files import PlannedModelConfig, PoolConfig
from router.core.profile import EngineProfile

#: How many of the cheapest groups that hold the model are compared, and the most stages of one.
_COMPARED, _MOST_STAGES = 24, 8
#: The step by which stages and groups are compared: prompt tokens, and sequences that decode after so many tokens each.
_PROMPT_TOKENS, _SEQUENCES, _CONTEXT_TOKENS = 256, 32, 1500


@dataclass(frozen=True, slots=True)
class UnlikeGroup:
    """The stages of a model's group, and the place of each stage's pool in the cluster."""

    model: str
    stages: tuple[EngineStage, ...]
    pools: tuple[int, ...]

    @property
    def name(self) -> str:
        """As in a profile's name."""
        return "+".join(map(str, self.stages))

    def gpus_of(self, pool: int) -> int:
        """How many of a pool's GPUs it takes."""
        return sum(stage.gpus for stage, own in zip(self.stages, self.pools, strict=True) if own == pool)


def unlike_group(
    pools: Sequence[PoolConfig], config: PlannedModelConfig, weights: str | None, tokens: int
) -> UnlikeGroup | None:
    """The best group of one pool or two that holds the model and the keys and values of so many tokens; None if there is none.
    A pool may have no GPU left."""

    def holding() -> Iterator[tuple[tuple[float, float], UnlikeGroup]]:
        """Costs and groups, the cheapest first."""
        for usd, chosen in sorted(_choices(pools), key=lambda choice: choice[0]):
            group = _split(config, weights, tokens, pools, chosen)
            found = group and profiles.find(f"{profiled(config.name, weights)}@{group.name}")
            if group and found and found.kv_capacity_tokens >= tokens:
                step_s = _step_s(found)
                yield (step_s * usd, step_s), group

    _, best = min(islice(holding(), _COMPARED), key=lambda each: each[0], default=(None, None))
    return best


def _choices(pools: Sequence[PoolConfig]) -> Iterator[tuple[float, list[tuple[int, int]]]]:
    """The price (without prices: GPUs) and the pool and degree of each stage, for stages of one pool or two. All have one degree:
    vLLM has no others (github.com/vllm-project/vllm/issues/27239)."""
    for degree in profiles.TENSOR_DEGREES:
        options = product(
            [place for place, pool in enumerate(pools) if degree <= pool.node_gpus],
            profiles.PIPELINE_DEGREES,
        )
        for chosen in combinations_with_replacement(options, 2):
            stages = [place for place, count in chosen for _ in range(count)]
            counts = Counter(stages)
            fit = all(degree * count <= pools[place].gpus for place, count in counts.items())
            if fit and len(stages) <= _MOST_STAGES:
                prices = (pools[place].usd_per_hour for place in stages)
                usd = sum(degree * (1.0 if price is None else price) for price in prices)
                yield usd, [(place, degree) for place in stages]


def _split(
    config: PlannedModelConfig,
    weights: str | None,
    tokens: int,
    pools: Sequence[PoolConfig],
    chosen: Sequence[tuple[int, int]],
) -> UnlikeGroup | None:
    model, shapes = MODELS[config.name], [(pools[place].gpu, degree) for place, degree in chosen]
    if weights and not all(HARDWARE[gpu].runs_quantized for gpu, _ in shapes):
        return None
    if not all(model.divides(degree) for _, degree in shapes):
        return None
    most = [profiles.most_layers(model, HARDWARE[gpu], degree, weights, tokens) for gpu, degree in shapes]
    if sum(most) < model.layers:
        return None
    times = []
    for (gpu, degree), layers in zip(shapes, most, strict=True):
        layer_s = _step_s(profiles.whole_profile(model, HARDWARE[gpu], degree, weights)) / model.layers
        times.append([layer_s * held for held in range(1, layers + 1)])
    split = split_layers(model.layers, times)
    if split is None:
        return None
    stages = (
        EngineStage(HARDWARE[gpu], degree, held) for (gpu, degree), held in zip(shapes, split, strict=True)
    )
    return UnlikeGroup(config.name, tuple(stages), tuple(place for place, _ in chosen))


def split_layers(layers: int, stages: Sequence[Sequence[float]]) -> tuple[int, ...] | None:
    """Layers of each stage, at least one; None if the stages cannot hold them. `stages[i][k - 1]` is the time of stage i
    with k layers, in any unit, for all k that its memory holds. Of splits that are equally fast, the
    last stages hold most."""
    # the slowest stage and the split of every number of layers that the stages so far can hold
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for times in stages:
        reached: dict[int, tuple[float, tuple[int, ...]]] = {}
        for before, (slowest, split) in best.items():
            for held, time in enumerate(times[: layers - before], start=1):
                found = max(slowest, time), (*split, held)
                reached[before + held] = min(reached.get(before + held, found), found)
        best = reached
    return best[layers][1] if layers in best else None


def _step_s(profile: EngineProfile) -> float:
    return profile.step_s(_PROMPT_TOKENS, _SEQUENCES, _SEQUENCES * _CONTEXT_TOKENS)


def profiled(model: str, weights: str | None) -> str:
    """The model as in a profile's name."""
    return model if weights is None else f"{model}-{weights}"
