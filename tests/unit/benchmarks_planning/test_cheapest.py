"""The cheapest placement."""

from __future__ import annotations

import pytest

from policies.placement.packing import pack
from tests.unit.benchmarks_planning.made import problem


@pytest.mark.parametrize(
    ("pools", "models", "usd_per_hour"),
    [
        ("4xl4 4xa100-80g", "llama-3.2-1b llama-3.2-3b", 2.0),
        # 66 and 30 GB: one A100 holds either; of the L4 they need four and two.
        ("8xl4 1xa100-80g", "qwen2.5-32b qwen2.5-14b", 3.0),
        ("2xl4 1xa100-80g", "qwen2.5-14b qwen2.5-7b", 2.0),
    ],
)
def test_of_all_placements(pools: str, models: str, usd_per_hour: float) -> None:
    found = problem(pools, models)
    assert pack(found.models, found.cluster).usd_per_hour == usd_per_hour
