"""Blocks, the prefix cache and its eviction."""

from __future__ import annotations

from backends.engine.kv import KvBlocks


def test_blocks_without_a_hash_are_counted() -> None:
    kv = KvBlocks(4)
    kv.take(3)
    assert (kv.free, kv.usage) == (1, 0.75)
    kv.give(3)
    assert (kv.free, kv.usage) == (4, 0.0)


def test_named_blocks_stay_findable_when_let_go() -> None:
    kv = KvBlocks(4)
    kv.take(2)
    assert kv.name(1)
    assert kv.name(2)
    assert not kv.name(2)
    kv.drop([1, 2])
    assert kv.free == 4
    assert kv.match((1, 2, 3), most=3) == 2
    assert kv.match((1, 2, 3), most=1) == 1
    assert kv.match((2, 1), most=2) == 2
    assert kv.match((3, 1), most=2) == 0


def test_holders_are_counted() -> None:
    kv = KvBlocks(4)
    kv.take(1)
    kv.name(1)
    kv.hold([1])
    kv.drop([1])
    assert kv.free == 3
    kv.drop([1])
    assert kv.free == 4
    assert kv.idle_among([1, 2]) == 1
    kv.hold([1])
    assert kv.free == 3
    assert kv.idle_among([1, 2]) == 0


def test_the_tail_of_the_prefix_used_least_recently_is_evicted_first() -> None:
    kv = KvBlocks(4)
    for first, second in ((1, 2), (3, 4)):
        kv.take(2)
        kv.name(first)
        kv.name(second)
        kv.drop([first, second])
    kv.hold([1, 2])
    kv.drop([1, 2])  # used again: 3 and 4 are now the older ones
    kv.take(1)
    assert kv.match((3, 4), most=2) == 1
    assert kv.match((1, 2), most=2) == 2
    kv.take(2)
    assert kv.match((3, 4), most=2) == 0
    assert kv.match((1, 2), most=2) == 1
