"""Headway's layers over unlike machines: stages of machines of one kind, found by local search on a simulator's score.

The maximum flow of a placement says little of its throughput: what counts is how many requests the scarcest layer's KV cache
holds and how many hops a token takes. So a simulation decides. To keep the search small, a placement is a list of stages: all
machines of a stage are of one pool (a kind in one place) and hold the same layers. A pool with s stages and K layers spreads
its machines and its layers over its stages as evenly as possible. A step gives a pool one stage more or less, or moves layers
from one pool to another; the pools' order stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from policies.placement.pipeline import LayerRange


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines that are alike, by node, and how many layers one holds at most."""

    nodes: tuple[int, ...]
    max_layers: int


@dataclass(frozen=True, slots=True)
class Share:
    """Of one pool: its stages and the layers that it holds together."""

    stages: int
    layers: int


Plan = tuple[Share, ...]


def spread(amount: int, parts: int) -> list[int]:
    """An amount in parts as equal as possible, the smaller first."""
    size, larger = divmod(amount, parts)
    return [size + (part >= parts - larger) for part in range(parts)]


def ranges(pools: Sequence[Pool], plan: Plan) -> dict[int, LayerRange]:
    """The layers of each node. Where machines do not divide evenly, the stages with fewer hold fewer layers."""
    held: dict[int, LayerRange] = {}
    start = 0
    for pool, share in zip(pools, plan, strict=True):
        if not share.layers:
            continue
        nodes = iter(pool.nodes)
        for machines, layers in zip(
            spread(len(pool.nodes), share.stages), spread(share.layers, share.stages), strict=True
        ):
            for _ in range(machines):
                held[next(nodes)] = LayerRange(start, start + layers)
            start += layers
    return dict(sorted(held.items()))


def feasible(pool: Pool, share: Share) -> bool:
    """Whether the pool can do this: every stage has a machine and a layer, and no machine too many layers."""
    if not share.layers:
        return share.stages == 0
    return (
        1 <= share.stages <= min(len(pool.nodes), share.layers)
        and -(-share.layers // share.stages) <= pool.max_layers
    )


def steps(pools: Sequence[Pool], plan: Plan) -> Iterator[Plan]:
    """All plans one step away."""
    for place, share in enumerate(plan):
        for stages in (share.stages - 1, share.stages + 1):
            changed = replace(share, stages=stages)
            if share.layers and feasible(pools[place], changed):
                yield (*plan[:place], changed, *plan[place + 1 :])
    for giver in range(len(plan)):
        for taker in range(len(plan)):
            if giver != taker:
                yield from _moved(pools, plan, giver, taker)


def _moved(pools: Sequence[Pool], plan: Plan, giver: int, taker: int) -> Iterator[Plan]:
    for layers in (1, 2, 4):
        for fewer in (0, 1):
            for more in (0, 1):
                left = plan[giver].layers - layers
                given = Share(plan[giver].stages - fewer if left else 0, left)
                taken = Share(plan[taker].stages + more, plan[taker].layers + layers)
                if left >= 0 and feasible(pools[giver], given) and feasible(pools[taker], taken):
                    changed = list(plan)
                    changed[giver], changed[taker] = given, taken
                    yield tuple(changed)


def starts(
    pools: Sequence[Pool], layers: int, weight: Mapping[int, float], random: Random, count: int
) -> list[Plan]:
    """Plans to begin with: layers by the pools' weights (e.g. their speed), after the first with some chance, and stages
    that just fit."""
    found: list[Plan] = []
    for attempt in range(50 * count):
        wishes = [
            weight[place] * (random.uniform(0.6, 1.6) if attempt else 1.0) for place in range(len(pools))
        ]
        plan = _apportioned(pools, layers, wishes, random)
        if plan and plan not in found:
            found.append(plan)
        if len(found) == count:
            break
    return found


def _apportioned(pools: Sequence[Pool], layers: int, wishes: Sequence[float], random: Random) -> Plan | None:
    most = [len(pool.nodes) * pool.max_layers for pool in pools]
    held = [0] * len(pools)
    for _ in range(layers):
        open_pools = [place for place in range(len(pools)) if held[place] < most[place]]
        if not open_pools:
            return None
        held[max(open_pools, key=lambda place: wishes[place] / (held[place] + 1))] += 1
    shares = []
    for pool, amount in zip(pools, held, strict=True):
        least = -(-amount // pool.max_layers)
        stages = min(len(pool.nodes), amount, least + random.choice((0, 0, 1, 2))) if amount else 0
        shares.append(Share(stages, amount))
    return tuple(shares)


def search(
    pools: Sequence[Pool],
    first: Sequence[Plan],
    scores: Callable[[Sequence[Plan]], Sequence[float]],
    random: Random,
    batch: int,
    more: Callable[[], bool],
) -> list[tuple[float, Plan]]:
    """Plans with their scores, the best first. `scores` takes up to `batch` plans at once; `more` ends the search."""
    known: dict[Plan, float] = dict(zip(first, scores(first), strict=True))
    while more():
        ranked = sorted(known, key=lambda plan: -known[plan])
        fresh: list[Plan] = []
        for plan in ranked[:4]:
            near = [
                step for step in dict.fromkeys(steps(pools, plan)) if step not in known and step not in fresh
            ]
            fresh += random.sample(near, min(len(near), max(1, (batch - len(fresh)) // 2)))
        if not fresh:
            break
        known.update(zip(fresh[:batch], scores(fresh[:batch]), strict=True))
    return sorted(((score, plan) for plan, score in known.items()), key=lambda pair: -pair[0])
