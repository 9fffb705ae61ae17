"""Changes of a cluster."""

from __future__ import annotations

import pytest

from benchmarks.planning.files import ClusterConfig
from benchmarks.planning.what_if import changed
from benchmarks.workloads.format import WorkloadError

CLUSTER = ClusterConfig.model_validate(
    {
        "pools": [
            {"gpu": "a100-80g", "gpus": 2, "node_gpus": 2, "usd_per_hour": 2.0},
            {"gpu": "l4", "gpus": 4, "node_gpus": 4, "usd_per_hour": 0.7},
        ]
    }
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("+1xl4", [("a100-80g", 2, 2.0), ("l4", 5, 0.7)]),
        ("-3xl4", [("a100-80g", 2, 2.0), ("l4", 1, 0.7)]),
        ("-2xa100-80g", [("l4", 4, 0.7)]),
        ("1xa100-80g=1xh100-80g@4", [("a100-80g", 1, 2.0), ("l4", 4, 0.7), ("h100-80g", 1, 4.0)]),
        ("+4xl4@0.70", [("a100-80g", 2, 2.0), ("l4", 8, 0.7)]),
        ("+4xl4@0.5", [("a100-80g", 2, 2.0), ("l4", 4, 0.7), ("l4", 4, 0.5)]),
        ("2xl4=1xa100-80g", [("a100-80g", 3, 2.0), ("l4", 2, 0.7)]),
    ],
)
def test_changes(change: str, expected: list[tuple[str, int, float]]) -> None:
    found = [(pool.gpu, pool.gpus, pool.usd_per_hour) for pool in changed(CLUSTER, change).pools]
    assert found == expected


def test_gpus_of_two_prices_are_told_apart() -> None:
    two = changed(CLUSTER, "+4xl4@0.5")
    assert [pool.gpus for pool in changed(two, "-3xl4@0.5").pools] == [2, 4, 1]
    assert [pool.gpus for pool in changed(two, "-5xl4").pools] == [2, 3]
    with pytest.raises(WorkloadError, match=r"the cluster has 4 of l4@0\.5"):
        changed(two, "-5xl4@0.5")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("l4", "expected"),
        ("+1xl4@0.3.3", "expected"),
        ("+0xl4", "expected"),
        ("+100000xl4", "at most 128 GPUs can be added"),
        ("+1xb200@9", "has no engine profiles"),
        ("+1xh100-80g", "what h100-80g costs is unknown; write 1xh100-80g@USD"),
        ("-3xa100-80g", "the cluster has 2 of a100-80g"),
        ("-1xt4", "the cluster has 0 of t4"),
    ],
)
def test_wrong_changes(change: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        changed(CLUSTER, change)


def test_a_cluster_keeps_a_gpu() -> None:
    one = ClusterConfig.model_validate({"pools": [{"gpu": "l4", "gpus": 1}]})
    with pytest.raises(WorkloadError, match=r"--what-if -1xl4: no GPU of the cluster is left"):
        changed(one, "-1xl4")
    (pool,) = changed(one, "+1xl4@0.5").pools
    assert (pool.gpus, pool.usd_per_hour) == (2, None)
