"""Groups of unlike width: plans found by exhaustive search, and those of a published table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.unlike_groups import BatchPlan, Width, equal_groups, unlike_groups

WIDTHS = [Width(tensor, context) for tensor in (1, 2, 4, 8) for context in (1, 2, 4, 8)]
#: Milliseconds of attention, forward, one layer in the width of Llama 8B on A100 80 GB, for documents of 1,024 and 32,768
#: tokens, in the order of `WIDTHS` (profile of hao-ai-lab/DistCA, Apache-2.0).
ATTENTION_MS = dict(
    zip(
        WIDTHS,
        [
            *[(0.89, 41.96), (0.81, 22.79), (1.06, 13.36), (2.0, 9.5)],
            *[(0.75, 21.95), (0.8, 12.07), (1.25, 7.64), (1.42, 6.25)],
            *[(0.68, 11.86), (0.79, 6.84), (0.89, 4.76), (1.07, 4.41)],
            *[(0.86, 7.16), (0.92, 4.33), (1.01, 3.63), (1.22, 2.75)],
        ],
        strict=True,
    )
)
SHORT, LONG = 1024, 32768


def attention_ms(tokens: int, width: Width) -> float:
    return ATTENTION_MS[width][tokens == LONG]


@pytest.mark.parametrize(
    ("documents", "gpus", "makespan"),
    [
        ([LONG, SHORT], 16, 5.25),  # both on a group of 8 x 2
        ([LONG, SHORT], 9, 6.84),
        ([LONG] + [SHORT] * 32, 16, 6.84),
    ],
)
def test_the_optima_of_the_published_batches(documents: list[int], gpus: int, makespan: float) -> None:
    plan = unlike_groups(documents, gpus, WIDTHS, attention_ms)
    assert plan.makespan == pytest.approx(makespan, abs=1e-9)
    assert plan.bound == pytest.approx(makespan, abs=1e-6)
    assert plan.gpus <= gpus
    assert sorted(document for group in plan.groups for document in group.documents) == sorted(documents)


def test_many_lengths_have_a_plan_near_its_bound() -> None:
    lengths = [100 * 1000 ** (at / 299) for at in range(300)]
    documents = [round(length) for length in lengths]
    widths = [Width(tensor, 1) for tensor in (1, 2, 4, 8)]

    def cost(tokens: int, width: Width) -> float:
        return 0.005 * width.gpus + tokens / (1e4 * width.gpus - 1e3) + tokens**2 / (1e9 * width.gpus)

    plan = unlike_groups(documents, 64, widths, cost)
    assert plan.gpus <= 64
    assert sorted(each for group in plan.groups for each in group.documents) == sorted(documents)
    assert plan.bound <= plan.makespan <= 1.04 * plan.bound
    assert len({group.width for group in plan.groups}) > 1
    equal = [equal_groups(documents, 64 // width.gpus, width, cost) for width in widths]
    assert all(each.makespan > plan.makespan for each in equal)


def test_equal_groups_share_short_documents_with_the_long_one() -> None:
    cost = {SHORT: 0.86 + 0.22875, LONG: 7.16 + 4.778}  # attention and MLP on 8 x 1
    plan = equal_groups([LONG] + [SHORT] * 32, 2, Width(8, 1), lambda tokens, _: cost[tokens])
    assert plan.makespan == pytest.approx(23.91425)
    assert [len(group.documents) for group in plan.groups] == [12, 21]


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="no group fits into 4 GPUs"):
        unlike_groups([LONG], 4, [Width(8, 1)], attention_ms)


def test_nothing_to_do_needs_no_gpu() -> None:
    assert unlike_groups([], 4, WIDTHS, attention_ms) == BatchPlan((), 0.0)


@given(
    documents=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    gpus=st.integers(1, 5),
    times=st.lists(st.integers(1, 9), min_size=6, max_size=6),
)
def test_no_plan_is_better(documents: list[int], gpus: int, times: list[int]) -> None:
    widths = [Width(1, 1), Width(2, 1)]

    def cost(tokens: int, width: Width) -> float:
        return float(times[2 * (tokens - 1) + widths.index(width)])

    usable = [width for width in widths if width.gpus <= gpus]
    plan = unlike_groups(documents, gpus, widths, cost)
    assert plan.makespan == pytest.approx(
        min(
            max(
                sum(
                    cost(document, width)
                    for document, at in zip(documents, taken, strict=True)
                    if at == group
                )
                for group, width in enumerate(groups)
            )
            for groups in _all_groups(usable, gpus)
            for taken in product(range(len(groups)), repeat=len(documents))
        )
    )
    assert plan.gpus <= gpus
    assert plan.bound <= plan.makespan + 1e-6


def _all_groups(widths: Sequence[Width], gpus: int) -> Iterator[tuple[Width, ...]]:
    for number in range(1, gpus + 1):
        for groups in combinations_with_replacement(widths, number):
            if sum(width.gpus for width in groups) <= gpus:
                yield groups
