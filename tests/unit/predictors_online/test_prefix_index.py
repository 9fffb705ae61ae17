from __future__ import annotations

from predictors.online.prefix_index import PrefixIndex
from predictors.online.prompt_caches import SessionIndex


def test_matches_leading_blocks_of_that_instance_only() -> None:
    index = PrefixIndex()
    index.add("a", (1, 2, 3))
    assert index.matched_blocks("a", (1, 2, 3, 4)) == 3
    assert index.matched_blocks("a", (1, 9, 3)) == 1
    assert index.matched_blocks("a", (9, 2, 3)) == 0
    assert index.matched_blocks("b", (1, 2, 3)) == 0


def test_memory_is_bounded_and_the_least_recent_goes_first() -> None:
    index = PrefixIndex(max_blocks=4)
    index.add("a", (1, 2))
    index.add("a", (3, 4))
    index.add("a", (1, 2))
    index.add("a", (5, 6))
    assert index.matched_blocks("a", (1, 2)) == 2
    assert index.matched_blocks("a", (3, 4)) == 0
    assert index.matched_blocks("a", (5, 6)) == 2


def test_a_long_prefix_is_cut_from_its_end() -> None:
    index = PrefixIndex(max_blocks=3)
    index.add("a", (1, 2, 3, 4, 5))
    assert index.matched_blocks("a", (1, 2, 3, 4, 5)) == 3


def test_forgets_an_instance() -> None:
    index = PrefixIndex()
    index.add("a", (1,))
    index.forget("a")
    index.forget("never seen")
    assert index.matched_blocks("a", (1,)) == 0


def test_sessions_are_forgotten_least_recently_used_first() -> None:
    index = SessionIndex(max_sessions=2)
    for session in ("a", "b", "a", "c"):
        index.add("i", session, 10.0)
    assert [index.held_tokens("i", each) for each in "abc"] == [10.0, 0.0, 10.0]
    index.add("i", "a", 25.0)
    assert index.held_tokens("i", "a") == 25.0
    assert index.held_tokens("j", "a") == 0.0
