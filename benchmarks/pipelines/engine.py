# cython: language_level=3, annotation_typing=False
"""Requests through a pipeline of unlike machines on virtual time, layer by layer.

One iteration of a request, its prompt or one output token, travels alone: from the source over nodes and links to the sink,
where its next iteration begins. Source: Helix (ASPLOS '25), its simulator.

A node works on one layer of one batch at a time. It fills a batch in order of arrival up to its limits for prompts and for
decodes, and then goes on with the next layer, in a circle, for which something waits. Requests enter at the first layer, or
at a later one where the node before them ends there. Each layer is an event of its own: taken together they would end in
another order where two nodes end at the same moment, which measured times make common.

Events of one moment happen in the order in which they were caused, as in the original: what is due now waits in `_now`,
what is due later in the heap, and both are numbered in one sequence.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush
from typing import Any

#: Bytes per second at which a node copies arrived activations: once to make a batch of them, once to the GPU.
_CONCATENATE, _TRANSFER = 4e9, 5e9

_ARRIVE, _SEND, _SENT, _DELIVERED, _GATHER, _EXECUTE, _EXECUTED = range(7)


class KvCacheFull(Exception):
    """A node would hold keys and values of more tokens than it has room for."""


class Query:
    """A request from its arrival to its last token. `tokens` and `context_tokens` are those of its present iteration."""

    def __init__(self, number: int, input_tokens: int, output_tokens: int, created_s: float) -> None:
        self.number = number
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.created_s = created_s
        self.tokens = input_tokens
        self.context_tokens = 0
        self.iteration = 0
        self.hops: list[Link] = []
        self.hop = 0
        self.entered_s = 0.0
        self.left_s = 0.0
        self.place = 0
        self.sends_at = 0.0
        self.stays_s: list[float] = []


class Link:
    """A directed link. `waiting` are the requests that will take it; `entry` is the receiver's layer, counted from
    its first, at which they enter, `layers` how many they take there."""

    def __init__(
        self, number: int, sender: Node, receiver: Node, bandwidth: float, latency_s: float, token_bytes: int
    ) -> None:
        self.number = number
        self.sender = sender
        self.receiver = receiver
        self.bandwidth = bandwidth
        self.free_bandwidth = bandwidth
        self.latency_s = latency_s
        self.token_bytes = token_bytes
        self.sending = 0
        self.waiting: deque[Query] = deque()
        self.entry = 0
        self.layers = 0
        self.flow = 0.0
        self.load = 0.0
        self.planned_bandwidth = 0.0


class Node:
    """The source, the sink or a machine with its layers. `layer`, counted from its first, is the one it works on."""

    def __init__(self, number: int, nic: float) -> None:
        self.number = number
        self.nic = nic
        self.free_in = nic
        self.free_out = nic
        self.links: list[Link] = []
        self.incoming: list[Link] = []
        self.outbox: list[Query] = []
        self.first_layer = 0
        self.layers = 0
        self.layer = 0
        self.queues: list[list[Query]] = []
        self.batch: list[Query] = []
        self.arrived_tokens = 0
        self.prompt_requests = 0
        self.prompt_tokens = 0
        self.decode_requests = 0
        self.decode_context = 0
        self.prompt_s: list[float] = []
        self.decode_s: list[float] = []
        self.kv_room = 0
        self.kv_used = 0

    def hold(self, layers: int) -> None:
        """Hold so many layers, with a queue before each."""
        self.layers = layers
        self.queues = [[] for _ in range(layers)]

    def march(self) -> None:
        """Go on to the next layer, in a circle, for which something waits; stay where nothing does."""
        layers, layer, queues = self.layers, self.layer, self.queues
        for step in range(1, layers):
            following = (layer + step) % layers
            if queues[following]:
                self.layer = following
                return

    def fill(self) -> list[Query]:
        """Take a batch for the present layer, in order of arrival, up to the node's limits."""
        prompts = prompt_tokens = decodes = context = 0
        batch: list[Query] = []
        left: list[Query] = []
        for query in self.queues[self.layer]:
            if query.iteration == 0:
                if prompts < self.prompt_requests and prompt_tokens + query.tokens <= self.prompt_tokens:
                    prompts += 1
                    prompt_tokens += query.tokens
                    batch.append(query)
                else:
                    left.append(query)
            elif decodes < self.decode_requests and context + query.context_tokens <= self.decode_context:
                decodes += 1
                context += query.context_tokens
                batch.append(query)
            else:
                left.append(query)
        self.queues[self.layer] = left
        return batch


class Scheduler:
    """Routes prompts and decides what a link sends when. Decodes take their prompt's path.

    This one sends along paths that `admit` has set: each link one request at a time, first come, first served, at its
    `planned_bandwidth`.
    """

    def attach(self, engine: Engine) -> None:
        """Get ready for an engine's nodes and links."""
        self._engine = engine
        self._places = 0

    def admit(self, query: Query) -> bool:
        """An iteration begins at the source. False: the request is refused."""
        return True

    def send(self, node: Node) -> None:
        """Start what can be sent now from a node, of its `outbox` and of what waits at its links."""
        for query in node.outbox:
            self._places += 1
            query.place = self._places
            query.hops[query.hop].waiting.append(query)
        node.outbox.clear()
        free = [link for link in node.links if link.waiting and not link.sending]
        if len(free) > 1:
            free.sort(key=_first_came)
        for link in free:
            self._engine.start(link, link.waiting.popleft(), link.planned_bandwidth)

    def finish(self, query: Query) -> None:
        """A request has got its last token."""

    def wants_more(self, after_prompt: bool) -> bool:
        """Whether another request is to be sent when a prompt, or else a whole request, has ended."""
        return not after_prompt


def _first_came(link: Link) -> int:
    return link.waiting[0].place


class Engine:
    """The events. `window` bounds, in s, what counts; `lengths` gives the tokens of further requests in a closed loop."""

    def __init__(
        self,
        source: Node,
        sink: Node,
        nodes: list[Node],
        links: list[Link],
        scheduler: Scheduler,
        activation_bytes: int,
        window: tuple[float, float],
        lengths: Any = None,
    ) -> None:
        self.source = source
        self.sink = sink
        self.nodes = nodes
        self.links = links
        self.scheduler = scheduler
        self.lengths = lengths
        self.activation_bytes = activation_bytes
        self.time = 0.0
        self.events = 0
        self.prompt_latency_s = array("d")
        self.decode_latency_s = array("d")
        self.refused = 0
        self.finished = 0
        self.stay_s = [0.0] * (len(nodes) + 2)
        self.stays = [0] * (len(nodes) + 2)
        self._window_start, self._window_end = window
        self._sequence = 0
        self._queries = 0
        self._heap: list[tuple[float, int, int, Any, Any]] = []
        self._now: deque[tuple[int, int, Any, Any]] = deque()
        scheduler.attach(self)

    def submit(self, at_s: float, input_tokens: int, output_tokens: int) -> None:
        """A request arrives at a moment that is not past."""
        query = Query(self._queries, input_tokens, output_tokens, at_s)
        self._queries += 1
        self._later(at_s, _ARRIVE, None, query)

    def run(self, until_s: float) -> None:
        """All events before `until_s`."""
        heap, now = self._heap, self._now
        while True:
            if now and not (heap and heap[0][0] == self.time and heap[0][1] < now[0][0]):
                _, kind, subject, query = now.popleft()
            elif heap and heap[0][0] < until_s:
                self.time, _, kind, subject, query = heappop(heap)
            else:
                return
            self.events += 1
            if kind == _SEND:
                self.scheduler.send(subject)
            elif kind == _SENT:
                self._sent(subject, query)
            elif kind == _DELIVERED:
                self._delivered(subject, query)
            elif kind == _EXECUTE:
                self._execute(subject)
            elif kind == _EXECUTED:
                self._executed(subject)
            elif kind == _GATHER:
                self._gather(query)
            else:
                self._arrive(query)

    def start(self, link: Link, query: Query, bandwidth: float) -> None:
        """Send a request over a link. The scheduler has made sure that the bandwidth is there."""
        query.hop += 1
        query.left_s = self.time
        if query.iteration == 0 and link.sender is not self.source:
            query.stays_s.append(self.time - query.entered_s)
        link.sending += 1
        link.free_bandwidth -= bandwidth
        link.sender.free_out -= bandwidth
        link.receiver.free_in -= bandwidth
        query.sends_at = bandwidth
        took_s = link.latency_s + query.tokens * link.token_bytes / bandwidth
        self._later(self.time + took_s - link.latency_s, _SENT, link, query)

    def resend(self, node: Node) -> None:
        """Look at a node's links once more, at this moment."""
        self._soon(_SEND, node, None)

    def _later(self, at_s: float, kind: int, subject: Any, query: Any) -> None:
        heappush(self._heap, (at_s, self._sequence, kind, subject, query))
        self._sequence += 1

    def _soon(self, kind: int, subject: Any, query: Any) -> None:
        self._now.append((self._sequence, kind, subject, query))
        self._sequence += 1

    def _arrive(self, query: Query) -> None:
        if not self.scheduler.admit(query):
            self.refused += 1
            return
        self.source.outbox.append(query)
        self._soon(_SEND, self.source, None)

    def _sent(self, link: Link, query: Query) -> None:
        bandwidth = query.sends_at
        link.sending -= 1
        link.free_bandwidth += bandwidth
        link.sender.free_out += bandwidth
        link.receiver.free_in += bandwidth
        self._soon(_SEND, link.sender, None)
        self._later(self.time + link.latency_s, _DELIVERED, link, query)

    def _delivered(self, link: Link, query: Query) -> None:
        receiver = link.receiver
        if receiver is self.sink:
            self._soon(_GATHER, None, query)
            return
        query.entered_s = self.time
        receiver.queues[link.entry].append(query)
        receiver.arrived_tokens += query.tokens
        self._soon(_EXECUTE, receiver, None)

    def _execute(self, node: Node) -> None:
        if node.batch:
            return
        if not node.queues[node.layer]:
            node.march()
            if not node.queues[node.layer]:
                return
        batch = node.batch = node.fill()
        prompt_tokens = decodes = 0
        for query in batch:
            if query.iteration == 0:
                prompt_tokens += query.tokens
            else:
                decodes += 1
        layer_s = node.prompt_s[prompt_tokens] + node.decode_s[decodes]
        if node.layer == 0:
            size = node.arrived_tokens * self.activation_bytes
            layer_s += size / _CONCATENATE + size / _TRANSFER
            node.arrived_tokens = 0
        node.kv_used += prompt_tokens + decodes
        if node.kv_used > node.kv_room:
            raise KvCacheFull(f"node {node.number} holds {node.kv_used} of {node.kv_room} token-layers")
        self._later(self.time + layer_s, _EXECUTED, node, None)

    def _executed(self, node: Node) -> None:
        batch, node.batch = node.batch, []
        if node.layer + 1 < node.layers:
            node.queues[node.layer + 1].extend(batch)
        else:
            node.outbox.extend(batch)
            self._soon(_SEND, node, None)
        node.march()
        self._soon(_EXECUTE, node, None)

    def _gather(self, query: Query) -> None:
        prompt = query.iteration == 0
        if self._window_start <= self.time <= self._window_end:
            if prompt:
                self.prompt_latency_s.append(self.time - query.created_s)
                for link, stay_s in zip(query.hops[1:], query.stays_s, strict=True):
                    self.stay_s[link.sender.number] += stay_s
                    self.stays[link.sender.number] += 1
            else:
                self.decode_latency_s.append(self.time - query.created_s)
        query.context_tokens += query.tokens
        query.iteration += 1
        ended = query.iteration > query.output_tokens
        if ended:
            self.finished += 1
            for link in query.hops:
                link.receiver.kv_used -= query.context_tokens * link.layers
            self.scheduler.finish(query)
        else:
            query.tokens = 1
            query.created_s = self.time
            query.hop = 0
            self._soon(_ARRIVE, None, query)
        if self.lengths is not None and (prompt or ended) and self.scheduler.wants_more(prompt):
            input_tokens, output_tokens = self.lengths()
            self.submit(self.time + 0.1, input_tokens, output_tokens)
