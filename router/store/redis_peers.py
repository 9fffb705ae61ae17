"""The other replicas' reports, as this replica knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from router.core.state import Work
from router.store.state import Peers, ReplicaReport


def report_text(report: ReplicaReport) -> str:
    """A report as Redis stores it, without its turns, which are sent separately."""
    work = {name: list(work) for name, work in report.work.items() if any(work)}
    queued = {model: count for model, count in report.queued.items() if count}
    content = {"work": work, "ejections": dict(report.ejections), "queued": queued}
    if report.counts:
        content["counts"] = {model: list(counts) for model, counts in report.counts.items()}
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()


class PeerReports:
    """The others' reports by run, and the changes since they were last drained."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._reports: dict[str, Mapping[str, Any]] = {}
        self._ejections: dict[str, Mapping[str, int]] = {}
        self._ejected: set[str] = set()
        self._turns: dict[str, tuple[str, str]] = {}
        self._live: frozenset[str] = frozenset((run_id,))
        self._changed = False

    @property
    def replicas(self) -> int:
        """The number of live replicas, including this one, as far as is known."""
        return len(self._live)

    def report_received(self, run: str, text: str) -> None:
        """A replica's report. Ejections since its previous report count; those before its first one do not."""
        report = orjson.loads(text)
        ejections = report["ejections"]
        before = self._ejections.get(run)
        if before is not None:
            self._ejected |= {name for name, count in ejections.items() if count > before.get(name, 0)}
        self._ejections[run], self._reports[run] = ejections, report
        self._changed = True

    def turn_received(self, what: str, text: str) -> None:
        """A round-robin position: `text` holds the run that set it, the instance and the model."""
        run, instance, model = orjson.loads(text)
        if run != self._run:
            self._turns[what] = (instance, model)
            self._changed = True

    def set_live(self, runs: Collection[str]) -> None:
        """These are the live replicas."""
        live = frozenset(runs) | {self._run}
        if live != self._live:
            self._live, self._changed = live, True

    def forget_work(self) -> None:
        """Drop the others' work: the last reports are too old. Their number is still the best guess."""
        if self._reports:
            self._reports.clear()
            self._changed = True

    def drain(self) -> Peers | None:
        """The changes since the last call; None without any."""
        if not self._changed:
            return None
        amounts: dict[str, list[list[int]]] = {}  # a `Work` for each would take ten times as long
        queued: dict[str, int] = {}
        for run in [each for each in self._ejections if each not in self._live]:
            del self._ejections[run]
            self._reports.pop(run, None)
        for report in self._reports.values():
            for name, each in report["work"].items():
                amounts.setdefault(name, []).append(each)
            for model, count in report["queued"].items():
                queued[model] = queued.get(model, 0) + count
        counts = {run: report["counts"] for run, report in self._reports.items() if "counts" in report}
        work = {name: Work(*map(sum, zip(*each, strict=False))) for name, each in amounts.items()}
        peers = Peers(len(self._live), work, frozenset(self._ejected), self._turns, queued, counts)
        self._ejected, self._turns, self._changed = set(), {}, False
        return peers
