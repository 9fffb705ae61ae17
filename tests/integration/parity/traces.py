"""What a driver told its scheduler, in plain values, and where two drivers differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from benchmarks.simulator import OUTCOMES, Result
from router.core.events import (
    Arrived,
    Cancel,
    Dispatch,
    Ended,
    Event,
    Instruction,
    LoadReported,
    Probed,
    Tick,
)
from router.core.types import EndedHow
from router.store.records import RequestRecord

#: Numbers of two runs are the same up to this, relative or (but for money) absolute: engines that jump over steps and engines
#: that take them differ in rounding.
TOLERANCE = 1e-6
#: What both drivers write of a request.
ROW = (
    *(
        "instance",
        "model",
        "attempts",
        "hedged",
        "output_tokens",
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "queue_wait_s",
    ),
    *("cost_usd", "budget_overrun_usd", "predicted_ttft_s_p50", "propensity"),
)

Step = dict[str, Any]


def step(event: Event, at_s: float) -> Step:
    """An event in plain values. What only one driver can know is left out: the words of an error, and whether an engine
    was sent a request (in the simulator a connection takes no time)."""
    found: Step = {"what": type(event).__name__, "at_s": at_s}
    if isinstance(event, Arrived):
        return found | {"request_id": event.request.id}
    if isinstance(event, LoadReported):
        report = event.report
        names = ("running", "waiting", "kv_usage", "loaded_models")
        return found | {"instance": event.instance} | {name: getattr(report, name) for name in names}
    found |= event._asdict()
    if isinstance(event, Ended):
        failure = event.failure
        del found["sent"]
        found["failure"] = None if failure is None else (failure.kind.value, failure.status, failure.code)
    return found


class Trace:
    """One run: `requests` are the events of requests in order, `watches` those of each instance, `rows` what became of each
    request."""

    def __init__(self) -> None:
        self.requests: list[Step] = []
        self.watches: dict[str, list[Step]] = {}
        self.rows: dict[str, Step] = {}
        self.hedges = self.cancelled = 0

    def take(self, event: Event, now: float, instructions: list[Instruction]) -> None:
        """One event of a scheduler."""
        self.hedges += sum(isinstance(each, Dispatch) and each.hedge for each in instructions)
        self.cancelled += sum(isinstance(each, Cancel) for each in instructions)
        if isinstance(event, Probed | LoadReported):
            self.watches.setdefault(event.instance, []).append(step(event, now))
        elif not isinstance(event, Tick):  # of timers only what they bring about counts
            self.requests.append(step(event, now))

    def add_records(self, records: Iterable[RequestRecord]) -> None:
        for record in records:
            row = {name: getattr(record, name) for name in ROW}
            self.rows[record.id] = {
                **row,
                "output_tokens": record.output_tokens or 0,
                "outcome": record.outcome.value,
                "met": record.slo_met,
            }

    def add_result(self, result: Result, ids: Sequence[str]) -> None:
        columns = result.columns
        for at, request_id in enumerate(ids):
            values = {name: columns[name][at].item() for name in (*ROW, "outcome", "met")}
            row = {
                name: None if isinstance(value, float) and math.isnan(value) else value
                for name, value in values.items()
            }
            row["hedged"] = bool(row["hedged"])
            row["instance"] = (*result.instances, None)[row["instance"]]
            row["model"] = (*result.models, None)[row["model"]]
            row["outcome"] = OUTCOMES[row["outcome"]]
            row["met"] = (False, True, None)[row["met"]]
            self.rows[request_id] = row

    def ended(self, how: EndedHow, kind: str | None = None) -> int:
        """How many attempts ended so."""
        ends = [each for each in self.requests if each["what"] == "Ended" and each["how"] is how]
        return sum(kind is None or each["failure"][0] == kind for each in ends)

    def outcomes(self) -> set[str]:
        """How requests ended."""
        return {row["outcome"] for row in self.rows.values()}


def difference(simulated: Trace, live: Trace) -> str | None:
    """The first event, else the first row, that differs, in words; None if none does. Each instance has a monitor of its
    own, so which of them comes first in one moment means nothing."""
    pairs = [(simulated.requests, live.requests)]
    pairs += [(steps, live.watches.get(name, [])) for name, steps in sorted(simulated.watches.items())]
    rows = [
        [{"what": "row", "request_id": name, **row} for name, row in sorted(run.rows.items())]
        for run in (simulated, live)
    ]
    pairs.append((rows[0], rows[1]))
    for ours, theirs in pairs:
        for one, other in zip_longest(ours, theirs, fillvalue={}):
            name = next(
                (name for name in {**one, **other} if not _same(name, one.get(name), other.get(name))),
                None,
            )
            if name is not None:
                where = other or one
                whose = where.get("request_id") or where.get("instance")
                return f"{where['what']} of {whose}: {name} is {one.get(name)!r} simulated, {other.get(name)!r} live"
    return None


def _same(name: str, one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        least = 0.0 if name.endswith("_usd") else TOLERANCE
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=least)
    return one == other
