"""What this gateway tells the other replicas and hears from them (`router.store.state.Listener`).

Told with each exchange: own work by instance, own ejections, the turns passed on, how much is queued, and what the
predictor has learned. Heard: the same of the others. Work and ejections become one event of the scheduler
(`PeerLoadReported`), only when something has changed; turns go to the policies, lessons to the predictor, shared documents
to who follows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from predictors.online.sharing import Sharing
from router.background import surviving
from router.core.events import PeerLoadReported, PeerObserved, PeerTurned
from router.core.interfaces import HasSharedCursor, SharedCursor
from router.core.state import Work
from router.gateway.relay.runner import Runner
from router.store.state import Peers, State, View

Follower = Callable[[Mapping[str, Any]], None]


class PeerLink:
    """Implements `Listener`. `followers` are called with the shared documents that they are named for."""

    def __init__(self, runner: Runner, state: State, sharing: Sharing) -> None:
        self._runner = runner
        self._state = state
        self._sharing = sharing
        self.followers: dict[str, Follower] = {}
        #: By model, what waits for a slot at other replicas.
        self.queued_elsewhere: Mapping[str, int] = {}
        self._told: tuple[int, Mapping[str, Work]] = (1, {})  # what the scheduler was told last
        self._cursors: dict[str, SharedCursor] = {}

    async def start(self) -> None:
        """Begin to share."""
        scheduler = self._runner.scheduler
        self._cursors = {
            name: policy.cursor
            for name, policy in scheduler.policies.items()
            if isinstance(policy, HasSharedCursor)
        }
        if self._state.health.shared:
            self._sharing.begin()
            self._runner.on_work = self._state.poke
        await self._state.start(self)

    def repeat_load(self) -> None:
        """The fleet has changed: report the load of other replicas for its new instances too."""
        replicas, work = self._told
        if replicas > 1 or work:
            self._runner.apply(PeerLoadReported(replicas, work))

    # --- router.store.state.Listener --------------------------------------------------------------------
    def view(self) -> View:
        """What this replica tells now."""
        scheduler = self._runner.scheduler
        lessons = self._sharing.drain_outgoing(self._runner.clock(), self._state.health.replicas)
        if lessons is not None:
            self._state.tell(lessons)
        instances = scheduler.instances
        nothing = Work()
        return View(
            work={name: own for name, each in instances.items() if (own := each.own) != nothing},
            ejections={name: each.ejections for name, each in instances.items() if each.ejections},
            turns={
                f"{policy}:{group}": last
                for policy, cursor in self._cursors.items()
                for group, last in cursor.drain_outgoing().items()
            },
            queued=scheduler.queued_by_model() if scheduler.queue_depth else {},
        )

    def hear(self, peers: Peers) -> None:
        """What the others told."""
        self.queued_elsewhere = peers.queued
        for name, last in peers.turns.items():
            policy, _, group = name.partition(":")
            with surviving("peers"):
                self._runner.apply(PeerTurned(policy, {group: last}))
        told = peers.replicas, peers.work
        if peers.ejected or told != self._told:
            self._told = told
            with surviving("peers"):
                self._runner.apply(PeerLoadReported(peers.replicas, peers.work, peers.ejected))

    def hear_lessons(self, lessons: Sequence[bytes]) -> None:
        """What others learned."""
        for lesson in lessons:
            with surviving("peers"):
                self._runner.apply(PeerObserved(lesson))

    def changed(self, document: str, content: Mapping[str, Any]) -> None:
        """A shared document has been changed."""
        follower = self.followers.get(document)
        if follower is not None:
            with surviving("peers"):
                follower(content)
