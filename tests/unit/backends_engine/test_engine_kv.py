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
    assert list(kv.name([1])) == [1]
    assert list(kv.name([1, 2])) == [2]
    assert not kv.name([2])
    kv.drop([1, 2])
    assert kv.free == 4
    assert kv.match((1, 2, 3), most=3) == [1, 2]
    assert kv.match((1, 2, 3), most=1) == [1]
    assert kv.match((2, 1), most=2) == [2, 1]
    assert kv.match((3, 1), most=2) == []


def test_holders_are_counted() -> None:
    kv = KvBlocks(4)
    kv.take(1)
    kv.name([1])
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
        kv.name([first, second])
        kv.drop([first, second])
    kv.hold([1, 2])
    kv.drop([1, 2])  # used again: 3 and 4 are now the older ones
    kv.take(1)
    assert kv.match((3, 4), most=2) == [3]
    assert kv.match((1, 2), most=2) == [1, 2]
    kv.take(2)
    assert kv.match((3, 4), most=2) == []
    assert kv.match((1, 2), most=2) == [1]


def test_a_unit_weighs_its_blocks() -> None:
    kv = KvBlocks(10, unit=4)
    kv.take(9)  # two units and one block without a hash
    kv.name([1, 2])
    assert kv.free == 1
    kv.drop([1, 2])
    kv.give(1)
    assert (kv.free, kv.usage) == (10, 0.0)
    assert kv.idle_among([1, 2, 3]) == 8
    kv.take(3)  # two plain blocks, and one of the unit evicted for it
    assert kv.free == 7
    assert kv.match((1, 2), most=2) == [1]
    kv.take(3)  # what was left of that unit
    assert kv.match((1, 2), most=2) == [1]
    kv.hold([1])
    assert kv.free == 0


def test_a_preempted_sequence_finds_what_others_left_of_its_blocks() -> None:
    kv = KvBlocks(10, unit=4)
    kv.take(9)
    kv.name([1])
    kv.give(5)
    kv.park("victim", 3)  # older than the unit that it drops next
    kv.drop([1])
    assert (kv.free, kv.parked("victim"), kv.parked("other")) == (10, 3, 0)
    kv.take(5)  # 3 blocks were plain
    assert (kv.free, kv.parked("victim")) == (5, 1)
    copied = kv.copy()
    assert kv.unpark("victim") == 1
    assert (kv.free, kv.parked("victim"), kv.unpark("victim")) == (4, 0, 0)
    assert kv.match((1,), most=1) == [1]
    kv.take(1)
    assert kv.match((1,), most=1) == []
    copied.take(1)
    assert (copied.parked("victim"), copied.match((1,), most=1)) == (0, [1])
