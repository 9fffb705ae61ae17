"""The work of the other replicas, as they reported it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from router.core.state import Work
from router.store.state import Peers, View


def view_text(view: View) -> str:
    """A view as stored in Redis. Its turns are sent separately."""
    work = {name: list(work) for name, work in view.work.items() if any(work)}
    queued = {model: count for model, count in view.queued.items() if count}
    return json.dumps({"work": work, "ejections": dict(view.ejections), "queued": queued}, sort_keys=True)


class PeerViews:
    """The other replicas' views by run, and the changes not yet delivered to the gateway."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._views: dict[str, Mapping[str, Any]] = {}
        self._ejections: dict[str, Mapping[str, int]] = {}
        self._ejected: set[str] = set()
        self._turns: dict[str, tuple[str, str]] = {}
        self._live: frozenset[str] = frozenset((run_id,))
        self._changed = False

    @property
    def replicas(self) -> int:
        """The known number of live replicas, including this one."""
        return len(self._live)

    def viewed(self, run: str, text: str) -> None:
        """Take over a replica's view. Its ejections since its previous view are delivered; those before its first view are
        not."""
        view = json.loads(text)
        ejections = view["ejections"]
        before = self._ejections.get(run)
        if before is not None:
            self._ejected |= {name for name, count in ejections.items() if count > before.get(name, 0)}
        self._ejections[run], self._views[run] = ejections, view
        self._changed = True

    def turned(self, what: str, text: str) -> None:
        """Take over a round-robin position: the replica's run, the instance and the model."""
        run, instance, model = json.loads(text)
        if run != self._run:
            self._turns[what] = (instance, model)
            self._changed = True

    def lives(self, runs: Collection[str]) -> None:
        """Set the live replicas."""
        live = frozenset(runs) | {self._run}
        if live != self._live:
            self._live, self._changed = live, True

    def forget_work(self) -> None:
        """Forget the other replicas' work, which is too old. Their number stays, as the best estimate."""
        if self._views:
            self._views.clear()
            self._changed = True

    def news(self) -> Peers | None:
        """The changes since the last call; None if there are none."""
        if not self._changed:
            return None
        work: dict[str, Work] = {}
        queued: dict[str, int] = {}
        for run in [each for each in self._ejections if each not in self._live]:
            del self._ejections[run]
            self._views.pop(run, None)
        for view in self._views.values():
            for name, amounts in view["work"].items():
                work[name] = work.get(name, Work()) + Work(*amounts)
            for model, count in view["queued"].items():
                queued[model] = queued.get(model, 0) + count
        peers = Peers(len(self._live), work, frozenset(self._ejected), self._turns, queued)
        self._ejected, self._turns, self._changed = set(), {}, False
        return peers
