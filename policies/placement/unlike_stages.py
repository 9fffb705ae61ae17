"""A model's layers over a chain of unlike GPUs: the least time of the slowest stage, exactly.

In a full pipeline the slowest stage sets the pace, so the best split is the one whose slowest stage takes least. vLLM takes such
a split in the environment variable VLLM_PP_LAYER_PARTITION.
"""

from __future__ import annotations

from collections.abc import Sequence


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
