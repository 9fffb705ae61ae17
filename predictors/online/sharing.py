"""Replicas of the router exchange their observations, so that each learns from the requests of all.

A received observation is applied like a local one, but not sent again. Observations that depend on trained models
(errors of their predictions) are applied only if the same artifacts serve here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from predictors.online.learning import Learning
from predictors.online.observation import Codec, Observation, for_other_models
from router.core.state import Instance

#: The most observations that wait to be sent; the oldest are dropped.
MOST_WAITING = 512
#: The most observations a second that a replica receives from all others together. With the latency model one takes
#: about 50 microseconds (mostly a step of the network), so this is about a seventh of a core. A fleet with more
#: observations does not need all of them.
RECEIVED_PER_S = 3000.0


@dataclass(slots=True)
class ObservationCounts:
    """Counts since the start. `dropped`: made here, but more than the others should receive. `ignored`: unreadable, of
    another version, or of an instance that is not here. `unfit`: made with other artifacts than those in use."""

    sent: int = 0
    dropped: int = 0
    received: int = 0
    ignored: int = 0
    unfit: int = 0


class Sharing:
    """Sends this replica's observations and receives those of the others."""

    def __init__(self, learning: Learning) -> None:
        self._learning = learning
        self._codec = Codec(learning.kinds)
        self._waiting: deque[Observation] = deque(maxlen=MOST_WAITING)
        self._allowed = float(MOST_WAITING)  # observations that may be sent by now
        self._allowed_at = 0.0
        self.counts = ObservationCounts()

    def begin(self) -> None:
        """Queue the observations that are made from now on."""
        self._learning.publish = self._queue

    def _queue(self, observation: Observation) -> None:
        self.counts.dropped += len(self._waiting) == MOST_WAITING
        self._waiting.append(observation)

    def drain_outgoing(self, now: float, replicas: int) -> bytes | None:
        """One message with the observations since the last one, at most this replica's part for `replicas` (including
        this one). None if there is nothing to send, or no other replica."""
        waiting = self._waiting
        if replicas < 2:
            waiting.clear()
        if not waiting:
            return None
        earned = (now - self._allowed_at) * RECEIVED_PER_S / (replicas - 1)
        self._allowed, self._allowed_at = min(self._allowed + earned, float(MOST_WAITING)), now
        over = max(len(waiting) - int(self._allowed), 0)
        outgoing = list(waiting)[over:]  # the newest
        waiting.clear()
        self.counts.dropped += over
        self.counts.sent += len(outgoing)
        self._allowed -= len(outgoing)
        return self._codec.encode(self._learning.stats.models.name, outgoing) if outgoing else None

    def receive(self, message: bytes, instances: Mapping[str, Instance], now: float) -> None:
        """Learn from another replica's message. Observations of instances or models outside the fleet are ignored."""
        by, observations, ignored = self._codec.decode(message)
        self.counts.ignored += ignored
        learning = self._learning
        same_models = by == learning.stats.models.name
        for observation in observations:
            if not learning.locate(observation, instances):
                self.counts.ignored += 1
                continue
            self.counts.received += 1
            part = observation if same_models else for_other_models(observation)
            self.counts.unfit += part is not observation
            if part is not None:
                learning.apply(part, now)
