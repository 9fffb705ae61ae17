"""Exchanges load and observations with the other replicas (`router.store.state.Listener`).

Each exchange reports this replica's work by instance, its ejections, its round-robin positions, its queue, and what its
predictor has learned, and receives the same from the others. Work and ejections become one event of the scheduler
(`PeerLoadReported`), only if something has changed. Positions go to the policies, observations to the predictor, and shared
documents to their followers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from predictors.online.sharing import Sharing
from router.background import surviving
from router.core.events import PeerLoadReported, PeerObserved, PeerTurned
from router.core.interfaces import HasSharedCursor, SharedCursor
from router.core.state import Work
from router.gateway.runner import Runner
from router.store.state import Peers, ReplicaReport, State

Follower = Callable[[Mapping[str, Any]], None]


class PeerLink:
    """Implements `Listener`. `followers` are called with changed documents, by the document's name."""

    def __init__(self, runner: Runner, state: State, sharing: Sharing) -> None:
        self._runner = runner
        self._state = state
        self._sharing = sharing
        self.followers: dict[str, Follower] = {}
        self._queued_elsewhere: Mapping[str, int] = {}
        #: What this replica and each other one, by its run, have counted for scaling, by model.
        self.counts: Mapping[str, Sequence[int]] = {}
        self.counts_elsewhere: Mapping[str, Mapping[str, Sequence[int]]] = {}
        self._reported: Mapping[str, Work] = {}  # the others' work, as last reported
        self._cursors: dict[str, SharedCursor] = {}

    async def start(self) -> None:
        """Begin to exchange."""
        scheduler = self._runner.scheduler
        self._cursors = {
            name: policy.cursor
            for name, policy in scheduler.policies.items()
            if isinstance(policy, HasSharedCursor)
        }
        if self._state.health.shared:
            self._sharing.begin()
            self._runner.on_work = self._state.wake
        await self._state.start(self)

    def repeat_load(self) -> None:
        """The fleet has changed: report the load of other replicas for its new instances too."""
        if self._reported:
            self._runner.apply(PeerLoadReported(self._reported))

    # --- router.store.state.Listener --------------------------------------------------------------------
    def report(self) -> ReplicaReport:
        """This replica's report."""
        scheduler = self._runner.scheduler
        observations = self._sharing.drain_outgoing(self._runner.clock(), self._state.health.replicas)
        if observations is not None:
            self._state.send_observations(observations)
        instances = scheduler.instances
        return ReplicaReport(
            work={name: each.own for name, each in instances.items() if each.work != each.elsewhere},
            ejections={name: each.ejections for name, each in instances.items() if each.ejections},
            turns={
                f"{policy}:{group}": last
                for policy, cursor in self._cursors.items()
                for group, last in cursor.drain_outgoing().items()
            },
            queued=scheduler.queued_by_model() if scheduler.queue_depth else {},
            counts=self.counts,
        )

    def queued(self) -> Mapping[str, int]:
        """The waiting requests of all replicas by model."""
        scheduler = self._runner.scheduler
        if not scheduler.queue_depth:
            return self._queued_elsewhere
        queued = scheduler.queued_by_model()
        queued.update(self._queued_elsewhere)
        return queued

    def receive_peers(self, peers: Peers) -> None:
        """The reports of the other replicas."""
        self._queued_elsewhere, self.counts_elsewhere = peers.queued, peers.counts
        for name, last in peers.turns.items():
            policy, _, group = name.partition(":")
            with surviving("peers"):
                self._runner.apply(PeerTurned(policy, {group: last}))
        if peers.ejected or peers.work != self._reported:
            self._reported = peers.work
            with surviving("peers"):
                self._runner.apply(PeerLoadReported(peers.work, peers.ejected))

    def receive_observations(self, observations: Sequence[bytes]) -> None:
        """Observations of the other replicas, for the predictor."""
        for message in observations:
            with surviving("peers"):
                self._runner.apply(PeerObserved(message))

    def document_changed(self, document: str, content: Mapping[str, Any]) -> None:
        """A shared document has changed."""
        follower = self.followers.get(document)
        if follower is not None:
            with surviving("peers"):
                follower(content)
