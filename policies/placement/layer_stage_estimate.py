"""How many tokens per second a plan of stages decodes in a closed loop: an estimate in a fraction of a millisecond.

A simulation decides between plans, but takes seconds for one. The estimate ranks thousands for it. It follows from three facts:

- The KV caches bound how many requests are under way: the stage with the least room for a layer's keys and values fills up.
- A machine takes what waits through all its layers as one batch, so an iteration waits for the batch before it and then takes
  one batch's time; both grow with the rate at which iterations and prompts arrive.
- Little's law: requests under way = tokens per second x time of an iteration.

So the estimate is the rate at which the time of an iteration, summed over a request's path, uses up the requests under way.
Machines that all requests pass get them in bunches; `_BUNCHED` was fitted to 21 simulated plans of Helix's two clusters in one
place (rank correlation 0.94 and 1.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp, inf, log

from policies.placement.layer_stages import Chain, MachinePool, Plan, Throughput, shares
from policies.placement.node_throughput import MEAN_OUTPUT_TOKENS
from policies.placement.pipeline import SINK, SOURCE, LayeredModel, LayerTime, MachineCluster, NodeLink

#: The share of the KV caches that is filled.
_FILLED = 0.8
#: Times in a machine are longer by this factor times the share of the requests that pass it.
_BUNCHED = 0.7
#: A scheduler does not use a link with less than this share of a node's flow.
_LEAST_SHARE = 0.05
#: Rates per second at which times in a machine are tabulated: the first, and the factor from each to the next.
_FIRST_RATE, _RATE_STEP, _RATES = 0.5, 1.18, 75
#: The time in a machine or on a link that cannot keep up.
_OVERLOADED_S = 50.0
_FULL = 0.97
#: Nothing waits for a link over which a mean prompt takes less time.
_FAST_S = 0.05


#: Machines of a pool in a stage: the pool, their layers, how many they are, and the share of the requests that one takes.
_Visit = tuple[int, int, int, float]
#: Alike links from stage to stage: one of them, how many they are, the share that one takes, and bytes of a token.
_Hop = tuple[NodeLink, int, float, int]


class StageEstimate:
    """Estimates plans over pools of a cluster, for requests with these `lengths` of prompts and answers. It remembers what it has
    estimated."""

    def __init__(
        self,
        cluster: MachineCluster,
        model: LayeredModel,
        pools: Sequence[MachinePool],
        throughput: Throughput,
        lengths: Sequence[tuple[int, int]],
    ) -> None:
        self._machines = [cluster.machines[pool.nodes[0]] for pool in pools]
        count = len(lengths)
        self._input_tokens = sum(tokens for tokens, _ in lengths) / count
        self._squared_input_tokens = sum(tokens**2 for tokens, _ in lengths) / count
        self._output_tokens = sum(tokens for _, tokens in lengths) / count
        self._token_bytes = model.token_bytes
        self._inner_bytes = model.token_bytes + model.activation_bytes
        places = range(len(pools))
        self._links = {
            (a, b): _slowest(cluster, pools[a].nodes, pools[b].nodes) for a in places for b in places
        }
        self._links |= {(SOURCE, a): _slowest(cluster, (SOURCE,), pools[a].nodes) for a in places}
        self._links |= {(a, SINK): _slowest(cluster, pools[a].nodes, (SINK,)) for a in places}
        self._shares = cache(lambda stage: shares(pools, stage, cache(throughput)))
        self._times = cache(self._tabulated)
        self.chain = cache(self._chain)

    def __call__(self, plan: Plan) -> float:
        """Tokens per second of all chains; 0 for a plan that cannot run."""
        rates = [self.chain(chain) for chain in plan]
        least = min(
            rate * min(self._shares(chain[0]).values()) for rate, chain in zip(rates, plan, strict=True)
        )
        return sum(rates) if least > 0 and least >= _LEAST_SHARE * sum(rates) else 0.0

    def _chain(self, chain: Chain) -> float:
        visits: list[_Visit] = []
        hops: list[_Hop] = []
        senders, room = {SOURCE: (1, 1.0)}, inf
        for stage in chain:
            share = self._shares(stage)
            if min(share.values()) < _LEAST_SHARE:
                return 0.0
            receivers = {place: (stage.machines[place], part) for place, part in share.items()}
            visits += [(place, stage.layers, count, part) for place, (count, part) in receivers.items()]
            room = min(
                room, sum(self._room(place, stage.layers) * count for place, (count, _) in receivers.items())
            )
            if not self._connected(senders, receivers, hops):
                return 0.0
            senders = receivers
        if not self._connected(senders, {SINK: (1, 1.0)}, hops):
            return 0.0
        requests = _FILLED * room / (self._input_tokens + MEAN_OUTPUT_TOKENS)
        slow = [hop for hop in hops if self._is_slow(hop)]
        fast_s = self._sent_s(0.0, [hop for hop in hops if not self._is_slow(hop)])
        low = 0.0
        high = requests / (fast_s + self._visits_s(0.0, visits) + self._sent_s(0.0, slow))
        while high - low > 0.002 * high:
            rate = (low + high) / 2
            iteration_s = fast_s + self._visits_s(rate, visits) + self._sent_s(rate, slow)
            low, high = (rate, high) if rate * iteration_s < requests else (low, rate)
        return low

    def _connected(
        self, senders: dict[int, tuple[int, float]], receivers: dict[int, tuple[int, float]], hops: list[_Hop]
    ) -> bool:
        """Adds the hops from one stage to the next; False where a link is missing."""
        for a, (many, x) in senders.items():
            for b, (more, y) in receivers.items():
                link = self._links[a, b]
                if link is None:
                    return False
                outer = a == SOURCE or b == SINK
                hops.append((link, many * more, x * y, self._token_bytes if outer else self._inner_bytes))
        return True

    def _room(self, place: int, layers: int) -> float:
        """Tokens of a layer's keys and values that a machine holds."""
        return self._machines[place].limits_of(layers).kv_token_layers / layers

    def _is_slow(self, hop: _Hop) -> bool:
        link, _, _, size = hop
        return self._input_tokens * size > _FAST_S * link.bandwidth_bytes_per_s

    def _visits_s(self, rate: float, visits: list[_Visit]) -> float:
        """Seconds that an iteration spends in machines, with its part of the prompt's, at this many tokens per second."""
        total_s = 0.0
        for place, layers, count, part in visits:
            decode_s, prompt_s = self._time(place, layers, rate * part)
            total_s += count * part * (1 + _BUNCHED * part) * (decode_s + prompt_s / self._output_tokens)
        return total_s

    def _sent_s(self, rate: float, hops: list[_Hop]) -> float:
        """The same on links."""
        total_s = 0.0
        for link, count, part, size in hops:
            decode_s, prompt_s = self._sent(link, rate * part, size)
            total_s += count * part * (decode_s + prompt_s / self._output_tokens)
        return total_s

    def _sent(self, link: NodeLink, rate: float, size: int) -> tuple[float, float]:
        """Seconds of an iteration and of a prompt over a link, which sends one at a time (Pollaczek and Khinchine)."""
        token_s = size / link.bandwidth_bytes_per_s
        prompts = rate / self._output_tokens
        prompt_s = self._input_tokens * token_s
        busy = rate * token_s + prompts * prompt_s
        if busy >= _FULL:
            return _OVERLOADED_S, _OVERLOADED_S
        squared = token_s**2 * (rate + prompts * self._squared_input_tokens)
        wait_s = link.latency_s + squared / (2 * (1 - busy))
        return wait_s + token_s, wait_s + prompt_s

    def _time(self, place: int, layers: int, rate: float) -> tuple[float, float]:
        """Seconds of an iteration and of a prompt in a machine at this many iterations per second."""
        table = self._times(place, layers)
        position = log(max(rate, _FIRST_RATE) / _FIRST_RATE) / log(_RATE_STEP)
        left = int(position)
        if left >= _RATES - 1:
            return table[-1]
        (a, b), (c, d), part = table[left], table[left + 1], position - left
        return a + (c - a) * part, b + (d - b) * part

    def _tabulated(self, place: int, layers: int) -> list[tuple[float, float]]:
        return [self._residence(place, layers, _FIRST_RATE * _RATE_STEP**step) for step in range(_RATES)]

    def _residence(self, place: int, layers: int, rate: float) -> tuple[float, float]:
        machine = self._machines[place]
        prompts = rate / self._output_tokens
        prompt_s = layers * _at(machine.prompt, self._input_tokens)
        mean_s = layers * _at(machine.decode, 1.0)
        for _ in range(60):
            last_s = mean_s
            mean_s = layers * _at(machine.decode, max(1.0, rate * last_s)) + prompts * last_s * prompt_s
            if mean_s > _OVERLOADED_S:
                return _OVERLOADED_S, _OVERLOADED_S
            if abs(mean_s - last_s) < 1e-5 * last_s:
                break
        # a batch either has prompts or none
        without_s = layers * _at(machine.decode, max(1.0, rate * mean_s))
        with_s = without_s + max(1.0, prompts * mean_s) * prompt_s
        chance = min(1.0, prompts * mean_s)
        mean = (1 - chance) * without_s + chance * with_s
        squared = (1 - chance) * without_s**2 + chance * with_s**2
        wait_s = min(1.0, rate * mean_s) * squared / (2 * mean)
        # the batch after the one that was met: long ones are met more often, and gather more
        next_chance = 1 - exp(-prompts * squared / mean)
        busy = prompts * with_s / machine.limits_of(layers).prompt_requests
        if busy >= _FULL:
            return _OVERLOADED_S, _OVERLOADED_S
        queue_s = with_s * busy / (2 * (1 - busy))
        decode_s = wait_s + (1 - next_chance) * without_s + next_chance * with_s
        return decode_s, wait_s + with_s + queue_s


def _slowest(cluster: MachineCluster, senders: Sequence[int], receivers: Sequence[int]) -> NodeLink | None:
    """The link with the least bandwidth between two pools; None if some of their machines are not connected."""
    pairs = [(a, b) for a in senders for b in receivers if a != b]
    if not all(cluster.joins(*pair) for pair in pairs):
        return None
    links = (cluster.link(*pair) for pair in pairs)
    return min(links, key=lambda link: (link.bandwidth_bytes_per_s, -link.latency_s), default=None)


def _at(times: LayerTime, size: float) -> float:
    """The time for a mean size, on the line through the last two points beyond what was measured."""
    sizes, seconds = times.sizes, times.times_s
    right = next((place for place in range(1, len(sizes) - 1) if sizes[place] >= size), len(sizes) - 1)
    slope = (seconds[right] - seconds[right - 1]) / (sizes[right] - sizes[right - 1])
    return seconds[right - 1] + slope * (size - sizes[right - 1])
