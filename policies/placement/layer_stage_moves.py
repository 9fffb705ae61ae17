"""Steps from one plan of stages to another, plans to begin with, and simulated annealing over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp
from random import Random

from policies.placement.layer_stages import Chain, MachinePool, Plan, Stage, feasible, idle

#: Temperatures of annealing, as a share of the score: at first and at last.
_HOT, _COLD = 0.03, 0.001
#: More pools than this are divided at random.
_ALL_DIVISIONS = 7


def neighbor(pools: Sequence[MachinePool], plan: Plan, random: Random) -> Plan | None:
    """The plan after a random step; None where the step is not possible."""
    chains = [list(chain) for chain in plan]
    step = random.choices(_STEPS, _WEIGHTS)[0]
    if not step(pools, chains, random):
        return None
    changed = tuple(map(tuple, chains))
    fits = all(
        feasible(pools, stage) for old, new in zip(plan, changed, strict=True) if old != new for stage in new
    )
    return changed if fits else None


_Chains = list[list[Stage]]


def _stage(chains: _Chains, random: Random) -> tuple[list[Stage], int]:
    chain = random.choice(chains)
    return chain, random.randrange(len(chain))


def _pool(machines: Sequence[int], random: Random) -> int:
    return random.choice([place for place, count in enumerate(machines) if count])


def _move_machine(pools: Sequence[MachinePool], chains: _Chains, random: Random) -> bool:
    """From one stage, or from the idle ones, to another."""
    left = idle(pools, tuple(map(tuple, chains)))
    taker, to = _stage(chains, random)
    if any(left) and random.random() < 0.5:
        pool = _pool(left, random)
    else:
        giver, place = _stage(chains, random)
        pool = _pool(giver[place].machines, random)
        giver[place] = giver[place].changed(pool, -1)
    taker[to] = taker[to].changed(pool, 1)
    return True


def _swap_machines(pools: Sequence[MachinePool], chains: _Chains, random: Random) -> bool:
    (one, a), (other, b) = _stage(chains, random), _stage(chains, random)
    first, second = _pool(one[a].machines, random), _pool(other[b].machines, random)
    if first == second:
        return False
    one[a] = one[a].changed(first, -1).changed(second, 1)
    other[b] = other[b].changed(second, -1).changed(first, 1)
    return True


def _move_layers(pools: Sequence[MachinePool], chains: _Chains, random: Random) -> bool:
    chain = random.choice(chains)
    giver, taker = random.randrange(len(chain)), random.randrange(len(chain))
    layers = random.choice((1, 1, 1, 2, 3))
    for place, change in ((giver, -layers), (taker, layers)):
        chain[place] = Stage(chain[place].layers + change, chain[place].machines)
    return giver != taker


def _split(pools: Sequence[MachinePool], chains: _Chains, random: Random) -> bool:
    chain, place = _stage(chains, random)
    stage = chain[place]
    if stage.layers < 2:
        return False
    layers = random.randrange(1, stage.layers)
    first = tuple(random.randint(0, count) for count in stage.machines)
    rest = tuple(count - taken for count, taken in zip(stage.machines, first, strict=True))
    chain[place : place + 1] = [Stage(layers, first), Stage(stage.layers - layers, rest)]
    return True


def _merge(pools: Sequence[MachinePool], chains: _Chains, random: Random) -> bool:
    chain, place = _stage(chains, random)
    if place + 1 == len(chain):
        return False
    first, second = chain[place : place + 2]
    machines = tuple(a + b for a, b in zip(first.machines, second.machines, strict=True))
    chain[place : place + 2] = [Stage(first.layers + second.layers, machines)]
    return True


def _swap_stages(pools: Sequence[MachinePool], chains: _Chains, random: Random) -> bool:
    chain = random.choice(chains)
    a, b = random.randrange(len(chain)), random.randrange(len(chain))
    chain[a], chain[b] = chain[b], chain[a]
    return a != b


_STEPS = (_move_machine, _move_layers, _swap_machines, _split, _merge, _swap_stages)
_WEIGHTS = (35, 30, 15, 8, 6, 6)


def anneal(
    pools: Sequence[MachinePool], plan: Plan, score: Callable[[Plan], float], steps: int, random: Random
) -> tuple[float, Plan]:
    """The best plan of a random walk, with its score. Steps to a lower score become rarer."""
    current = best = plan
    reached = highest = score(plan)
    for step in range(steps):
        following = neighbor(pools, current, random)
        if following is None:
            continue
        value = score(following)
        heat = _HOT * (_COLD / _HOT) ** (step / steps)
        if value >= reached or (value > 0 and random.random() < exp((value / reached - 1) / heat)):
            current, reached = following, value
            if value > highest:
                best, highest = following, value
    return highest, best


def starts(
    pools: Sequence[MachinePool], layers: int, speed: Sequence[float], random: Random, count: int
) -> list[Plan]:
    """Up to `count` first plans: one chain of all pools, then pools divided into chains that each hold the model."""
    found: list[Plan] = []
    for division in _divisions(pools, layers, random):
        chains = [_chain(pools, part, layers, speed, random) for part in division]
        plan = tuple(chain for chain in chains if chain)
        if plan not in found and len(plan) == len(division):
            found.append(plan)
        if len(found) >= count:
            break
    return found


def _divisions(pools: Sequence[MachinePool], layers: int, random: Random) -> Iterator[list[list[int]]]:
    """Ways to divide the pools into parts that each hold the model: one whole in turn with each of the others."""
    whole = [list(range(len(pools)))]
    if len(pools) <= _ALL_DIVISIONS:
        every = list(_partitions(whole[0]))
    else:
        every = [_random_division(len(pools), random) for _ in range(200)]
    others = [
        parts for parts in every if len(parts) > 1 and all(_holds(pools, part, layers) for part in parts)
    ]
    random.shuffle(others)
    if not _holds(pools, whole[0], layers):
        return
    for _ in range(200):
        yield whole
        yield from others[:1]
        others = others[1:] + others[:1]


def _holds(pools: Sequence[MachinePool], part: Sequence[int], layers: int) -> bool:
    return sum(len(pools[place].nodes) * pools[place].max_layers for place in part) >= layers


def _partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for parts in _partitions(items[1:]):
        yield [[items[0]], *parts]
        for place in range(len(parts)):
            yield [*parts[:place], [items[0], *parts[place]], *parts[place + 1 :]]


def _random_division(pools: int, random: Random) -> list[list[int]]:
    parts = random.randint(2, 4)
    place = [random.randrange(parts) for _ in range(pools)]
    return [
        found for part in range(parts) if (found := [pool for pool in range(pools) if place[pool] == part])
    ]


def _chain(
    pools: Sequence[MachinePool], part: Sequence[int], layers: int, speed: Sequence[float], random: Random
) -> Chain | None:
    """A chain of stages of one pool each: layers by the pools' speeds and some chance, in stages as few as hold them."""
    held = dict.fromkeys(part, 0)
    wish = {place: speed[place] * random.uniform(0.6, 1.6) for place in part}
    for _ in range(layers):
        free = [place for place in part if held[place] < len(pools[place].nodes) * pools[place].max_layers]
        if not free:
            return None
        held[max(free, key=lambda place: wish[place] / (held[place] + 1))] += 1
    stages: list[Stage] = []
    for place, amount in held.items():
        if amount:
            machines = len(pools[place].nodes)
            least = -(-amount // pools[place].max_layers)
            count = min(machines, amount, random.choice((least, least + 1, least + 2, machines)))
            for nodes, size in zip(_spread(machines, count), _spread(amount, count), strict=True):
                stages.append(Stage(size, tuple(nodes * (pool == place) for pool in range(len(pools)))))
    return tuple(stages)


def _spread(amount: int, parts: int) -> list[int]:
    """An amount in parts that are as equal as possible, the smaller first."""
    size, larger = divmod(amount, parts)
    return [size + (part >= parts - larger) for part in range(parts)]
