# cython: language_level=3, annotation_typing=False
"""Who routes prompts through a pipeline: Helix's max flow, Swarm, random, and the shortest queue.

Source: Helix (ASPLOS '25), sections 5 and 6.7, and its simulator; Swarm's weights are those of SWARM parallelism (ICML '23,
appendix C).
"""

from __future__ import annotations

from math import floor, inf
from random import Random

from .engine import Engine, Link, Node, Query, Scheduler

#: Output tokens that a request is taken to have.
_MEAN_OUTPUT_TOKENS = 240
#: Links that carry less than this share of a node's flow are not used.
_LEAST_SHARE = 0.05
#: A link with less bandwidth left, in bytes/s, counts as busy.
_LEAST_BANDWIDTH = 10
#: Swarm: a link's first time of a hop in s, and the weight of the newest.
_FIRST_HOP_S, _NEWEST = 0.05, 0.8


class MaxFlow(Scheduler):
    """Each hop by interleaved weighted round robin over the links, weighted by their flow.

    A prompt goes only to nodes whose KV cache would stay below `high_water` of its size, all requests counted with
    `output_share` of the mean output. If there is none it is refused. One request at a time takes a link, at the bandwidth
    that the link, and the NICs by their flow, allow. In a closed loop there is more to send while the scarcest layer's KV
    cache is filled to `feed_below`.
    """

    def __init__(
        self, flows: list[float], high_water: float, output_share: float, feed_below: float = 0.8
    ) -> None:
        self._flows = flows
        self._high_water = high_water
        self._output_tokens = _MEAN_OUTPUT_TOKENS * output_share
        self._feed_below = feed_below

    def attach(self, engine: Engine) -> None:
        super().attach(engine)
        for link, flow in zip(engine.links, self._flows, strict=True):
            link.flow = flow
            link.load = 0.0
        for link in engine.links:
            link.planned_bandwidth = floor(_bandwidth(link))
        self._kv_free = [0] * (len(engine.nodes) + 2)
        for node in engine.nodes:
            self._kv_free[node.number] = node.kv_room
        self._layers = max(node.first_layer + node.layers for node in engine.nodes)

    def admit(self, query: Query) -> bool:
        if query.iteration:
            for link in query.hops:
                link.load += 1 / link.flow
            return True
        return self._route(query)

    def _route(self, query: Query) -> bool:
        node, sink, tokens = self._engine.source, self._engine.sink, query.tokens
        expected = int(tokens + self._output_tokens)
        path: list[Link] = []
        while node is not sink:
            link = self._next(node, tokens, expected)
            if link is None:
                for taken in path:
                    taken.load -= tokens / taken.flow
                return False
            link.load += tokens / link.flow
            path.append(link)
            node = link.receiver
        query.hops = path
        for link in path:
            self._kv_free[link.receiver.number] -= expected * link.layers
        return True

    def _next(self, node: Node, tokens: int, expected: int) -> Link | None:
        best, least = None, inf
        total = 0.0
        for link in node.links:
            total += link.flow
        for link in node.links:
            if link.flow < _LEAST_SHARE * total or not self._has_room(link.receiver, tokens, expected):
                continue
            load = link.load + tokens / link.flow
            if load < least:
                best, least = link, load
        return best

    def _has_room(self, node: Node, tokens: int, expected: int) -> bool:
        if node is self._engine.sink:
            return True
        if tokens > node.prompt_tokens:
            return False
        left = self._kv_free[node.number] - expected * node.layers
        return left >= (1 - self._high_water) * node.kv_room

    def finish(self, query: Query) -> None:
        expected = int(query.input_tokens + self._output_tokens)
        for link in query.hops:
            self._kv_free[link.receiver.number] += expected * link.layers

    def wants_more(self, after_prompt: bool) -> bool:
        return self._scarcest() <= self._feed_below

    def _scarcest(self) -> float:
        """How full the KV cache is of the layer that has least of it left."""
        free, room = [0.0] * self._layers, [0.0] * self._layers
        for node in self._engine.nodes:
            for layer in range(node.first_layer, node.first_layer + node.layers):
                free[layer] += self._kv_free[node.number] / node.layers
                room[layer] += node.kv_room / node.layers
        return max(1 - left / whole for left, whole in zip(free, room, strict=True))


def _bandwidth(link: Link) -> float:
    """What a link may use: its own bandwidth, and of both NICs the share that it has of their flow."""
    if not link.flow:
        return 0.0
    return min(
        link.bandwidth,
        link.sender.nic * (_bytes(link) / sum(map(_bytes, link.sender.links))),
        link.receiver.nic * (_bytes(link) / sum(map(_bytes, link.receiver.incoming))),
    )


def _bytes(link: Link) -> float:
    return link.bandwidth * link.flow / (link.bandwidth / link.token_bytes)


def _free_links(node: Node) -> list[Link]:
    """Links that can send now, with `planned_bandwidth`: an equal share of the NIC, at most what is free."""
    free = []
    share = node.nic / len(node.links)
    for link in node.links:
        left = share - (link.bandwidth - link.free_bandwidth)
        receiver = link.receiver
        bandwidth = min(left, node.free_out, link.free_bandwidth, receiver.free_in)
        if bandwidth > _LEAST_BANDWIDTH:
            link.planned_bandwidth = bandwidth
            free.append(link)
    return free


class Swarm(Scheduler):
    """Each node sends a prompt to the successor with the least sum of hop times, their mean weighted to the newest."""

    def attach(self, engine: Engine) -> None:
        super().attach(engine)
        self._hop_s = [_FIRST_HOP_S] * len(engine.links)
        for link in engine.links:
            link.load = _FIRST_HOP_S

    def send(self, node: Node) -> None:
        engine = self._engine
        again: dict[int, Node] = {}
        for query in node.outbox:
            if node is not engine.source:
                came = query.hops[query.hop - 1]
                hop_s = engine.time - query.left_s
                self._hop_s[came.number] = _NEWEST * hop_s + (1 - _NEWEST) * self._hop_s[came.number]
                again[came.sender.number] = came.sender
            if query.iteration == 0:
                link = min(node.links, key=_load)
                link.load += self._hop_s[link.number]
                query.hops.append(link)
            else:
                link = query.hops[query.hop]
            link.waiting.append(query)
        node.outbox.clear()
        for link in [free for free in _free_links(node) if free.waiting]:
            engine.start(link, link.waiting.popleft(), link.planned_bandwidth)
        for sender in again.values():
            engine.resend(sender)


def _load(link: Link) -> float:
    return link.load


class RandomChoice(Scheduler):
    """A prompt takes any link that is free. Whatever cannot be sent waits in the node, in order of arrival."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def allowed(self, node: Node, free: list[Link]) -> list[Link]:
        """Those of the free links that a prompt may take."""
        return free

    def send(self, node: Node) -> None:
        free = _free_links(node)
        if not free or not node.outbox:
            return
        allowed = set(map(id, self.allowed(node, free)))
        taken: dict[int, Query] = {}
        left: list[Query] = []
        for query in node.outbox:
            link = None
            if query.iteration == 0:
                order = list(free)
                self._random.shuffle(order)
                for candidate in order:
                    if id(candidate) in allowed and candidate.number not in taken:
                        link = candidate
                        query.hops.append(link)
                        break
            elif query.hops[query.hop] in free and query.hops[query.hop].number not in taken:
                link = query.hops[query.hop]
            if link is None:
                left.append(query)
            else:
                taken[link.number] = query
        node.outbox = left
        for link in free:
            if link.number in taken:
                self._engine.start(link, taken[link.number], link.planned_bandwidth)


class ShortestQueue(RandomChoice):
    """A prompt takes a free link to a node for whose first layer the fewest requests wait."""

    def allowed(self, node: Node, free: list[Link]) -> list[Link]:
        shortest: float = inf
        links: list[Link] = []
        for link in node.links:
            if link.receiver is self._engine.sink:
                links.append(link)
                break
            waiting = len(link.receiver.queues[0])
            if waiting < shortest:
                shortest, links = waiting, []
            if waiting == shortest:
                links.append(link)
        return [link for link in links if link in free]
