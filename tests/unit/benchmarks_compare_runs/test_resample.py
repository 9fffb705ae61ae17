"""The block bootstrap: what a draw keeps of the trace, and what must differ."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

import pytest

from benchmarks.compare.resample import BLOCKS, Resampler
from benchmarks.measures import coefficient_of_variation
from benchmarks.workloads.format import WorkloadError, WorkloadRequest

SEEDS = range(1, 15)


def trace(count: int = 2000, start_s: float = 100.0, seed: int = 3) -> list[WorkloadRequest]:
    """A bursty trace (CV 4) with sessions and prefix ids of every size."""
    random = Random(seed)
    requests, at_s = [], start_s
    for index in range(count):
        session = index % 50
        requests.append(
            WorkloadRequest(
                f"r{index}",
                at_s,
                100 + index,
                output_tokens=5,
                session=f"s{session}",
                prefix_hashes=(session, 2**64 - 1 - session, -session - 1),
            )
        )
        at_s += random.gammavariate(1 / 16, 16 / 5.0)
    return requests


def drawn(requests: list[WorkloadRequest], seed: int) -> list[WorkloadRequest]:
    return list(Resampler([each.arrival_s for each in requests]).requests(requests, seed))


def gaps_cv(requests: list[WorkloadRequest]) -> float:
    cv = coefficient_of_variation(
        [later.arrival_s - earlier.arrival_s for earlier, later in itertools.pairwise(requests)]
    )
    assert cv is not None
    return cv


def test_seed_0_is_the_trace_itself() -> None:
    requests = trace()
    assert drawn(requests, 0) == requests


@pytest.mark.parametrize("seed", SEEDS)
def test_a_draw_is_a_workload(seed: int) -> None:
    requests = trace()
    found = drawn(requests, seed)
    assert len({each.id for each in found}) == len(found)
    times = [each.arrival_s for each in found]
    assert times == sorted(times)
    assert requests[0].arrival_s <= times[0]
    assert times[-1] <= requests[-1].arrival_s
    # Whole blocks of the trace, each as often as it was drawn.
    resampler = Resampler([each.arrival_s for each in requests])
    counted = resampler.draw(seed)
    assert sum(counted) == BLOCKS
    assert len(found) == sum(times * size for times, size in zip(counted, resampler.sizes, strict=True))
    assert found == drawn(requests, seed)


def test_seeds_differ() -> None:
    requests = trace()
    assert len({tuple(each.id for each in drawn(requests, seed)) for seed in range(10)}) == 10


def test_blocks_cover_the_trace_and_the_last_request_is_in_the_last_block() -> None:
    requests = [WorkloadRequest(f"r{index}", float(index), 1, output_tokens=1) for index in range(21)]
    resampler = Resampler([each.arrival_s for each in requests])
    assert resampler.sizes == [1] * 19 + [2]
    last_alone = [0] * 19 + [2]
    found = list(resampler.put_together(requests, last_alone))
    seen = [(each.id, each.arrival_s) for each in found]
    assert seen == [("r19~0", 0.0), ("r20~0", 1.0), ("r19~1", 1.0), ("r20~1", 2.0)]


def test_a_block_drawn_twice_brings_its_own_prefixes_and_sessions() -> None:
    requests = trace()
    for seed in SEEDS:
        prefixes: dict[str, set[int]] = {}
        sessions: dict[str, set[str | None]] = {}
        for each in drawn(requests, seed):
            copy = each.id.rpartition("~")[2]
            prefixes.setdefault(copy, set()).update(each.prefix_hashes or ())
            sessions.setdefault(copy, set()).add(each.session)
        for one, other in itertools.combinations(prefixes, 2):
            assert not prefixes[one] & prefixes[other]
            assert not sessions[one] & sessions[other]
        # A copy is as large as the trace's own: no two ids of a copy have become one.
        assert len(prefixes["0"]) == 150
        assert prefixes["0"] <= {hash_ for each in requests for hash_ in each.prefix_hashes or ()}


def test_what_shares_a_prefix_in_a_block_shares_it_in_its_copy() -> None:
    requests = [
        WorkloadRequest(f"r{index}", float(index), 1, output_tokens=1, prefix_hashes=(index % 2, 7))
        for index in range(40)
    ]
    resampler = Resampler([each.arrival_s for each in requests], blocks=2)
    found = list(resampler.put_together(requests, [2, 0]))
    first, second = found[:20], found[20:]
    assert [each.prefix_hashes for each in first] == [each.prefix_hashes for each in requests[:20]]
    kinds = Counter(each.prefix_hashes for each in second)
    assert sorted(kinds.values()) == [10, 10]
    assert len({hashes[1] for hashes in kinds if hashes}) == 1


def test_ids_that_look_like_copies_stay_apart() -> None:
    ids = ["a", "a~1", "a~0", "a~1~0"]
    requests = [WorkloadRequest(name, float(at), 1, output_tokens=1) for at, name in enumerate(ids)]
    found = list(Resampler([0.0, 1.0, 2.0, 3.0], blocks=1).put_together(requests, [3]))
    assert len({each.id for each in found}) == 12


def test_bursts_are_kept() -> None:
    requests = trace()
    own = gaps_cv(requests)
    found = [gaps_cv(drawn(requests, seed)) for seed in SEEDS]
    assert own > 3
    assert own * 0.8 < sum(found) / len(found) < own * 1.2


def test_a_trace_of_few_requests_always_gives_a_draw_with_a_rate() -> None:
    requests = [
        WorkloadRequest(f"r{index}", at_s, 1, output_tokens=1) for index, at_s in enumerate([0.0, 9.0])
    ]
    for seed in range(1, 40):
        found = drawn(requests, seed)
        assert len({each.arrival_s for each in found}) > 1


def test_what_arrives_at_once_cannot_be_resampled() -> None:
    with pytest.raises(WorkloadError, match="two different arrival times"):
        Resampler([5.0, 5.0])
