"""Layers over a chain of unlike GPUs, against every split."""

from itertools import product
from random import Random

import pytest

from policies.placement.unlike_stages import split_layers


@pytest.mark.parametrize("seed", range(20))
def test_no_split_has_a_faster_slowest_stage(seed: int) -> None:
    random = Random(seed)
    layers = random.randint(4, 12)
    stages = []
    for _ in range(random.randint(2, 4)):
        layer, fixed = random.choice((1.0, 1.5, 3.0)), random.choice((0.0, 2.0))
        stages.append([fixed + layer * held for held in range(1, random.randint(2, 7))])
    every = [held for held in product(*(range(1, len(times) + 1) for times in stages)) if sum(held) == layers]
    found = split_layers(layers, stages)
    if not every:
        assert found is None
        return
    assert found in every
    assert slowest(stages, found) == min(slowest(stages, held) for held in every)


def slowest(stages: list[list[float]], split: tuple[int, ...]) -> float:
    return max(times[held - 1] for times, held in zip(stages, split, strict=True))


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [
        (10, [[1.0, 2, 3, 4, 5, 6], [2.0, 4, 6, 8, 10]], (6, 4)),
        (9, [[1.0, 2, 3, 4, 5, 6], [2.0, 4, 6, 8, 10]], (6, 3)),
        (2, [[1.0], [1.0], [1.0]], None),
        (3, [[1.0], [1.0]], None),
        (1, [[1.0, 2.0]], (1,)),
    ],
)
def test_the_slower_stage_holds_fewer(
    layers: int, stages: list[list[float]], split: tuple[int, ...] | None
) -> None:
    assert split_layers(layers, stages) == split
