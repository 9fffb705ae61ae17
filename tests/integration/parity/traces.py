"""What a run did, in plain values, and where two runs differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulator import OUTCOMES, Result
from router.core.events import (
    Arrived,
    Cancel,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Instruction,
    LoadReported,
    Probed,
)
from router.core.scheduler import Scheduler
from router.core.state import LOAD_FEATURES
from router.core.types import Prediction
from router.explain import PREDICTED
from router.store.records import RequestRecord

#: Times, money and predictions of two runs are the same up to this, relative or (seconds) absolute. Engines
#: that jump over steps and engines that take them differ in rounding.
TOLERANCE = 1e-6

Step = dict[str, Any]


def _predicted(prediction: Prediction | None) -> dict[str, float | None] | None:
    if prediction is None:
        return None
    return {name: getattr(prediction, name) for name in (*PREDICTED, "tpot_s", "engine_ttft_s")}


def instruction_step(instruction: Instruction, at_s: float) -> Step:
    step: Step = {"what": type(instruction).__name__, "request": instruction.request_id, "at_s": at_s}
    if isinstance(instruction, Cancel):
        return step | {"attempt": instruction.attempt}
    if not isinstance(instruction, Dispatch):
        refusal = instruction.refusal
        return step | {
            "code": refusal.code,
            "outcome": refusal.outcome.value,
            "retry_after_s": refusal.retry_after_s,
        }
    candidate, decision = instruction.candidate, instruction.decision
    return step | {
        "attempt": instruction.attempt,
        "instance": candidate.instance,
        "model": candidate.model,
        "max_output_tokens": instruction.max_output_tokens,
        "budget_bound": instruction.budget_bound,
        "paid_tokens": instruction.paid_tokens,
        "hedge": instruction.hedge,
        "policy": decision.policy,
        "propensity": decision.propensity,
        "prediction": _predicted(instruction.prediction),
        "considered": [
            (each.candidate.instance, each.candidate.model, each.score, _predicted(each.prediction))
            for each in decision.considered
        ],
        # but for the report's age, which is rounded; when reports come is compared by itself
        "loads": [dict(zip(LOAD_FEATURES[:-1], load, strict=False)) for load in decision.loads],
    }


def _event(event: Event, at_s: float) -> Step | None:
    step: Step = {"what": type(event).__name__, "at_s": at_s}
    match event:
        case Arrived(request):
            return step | {"request": request.id}
        case FirstToken(request_id, attempt):
            return step | {"request": request_id, "attempt": attempt}
        case Ended():
            return step | {
                "request": event.request_id,
                "attempt": event.attempt,
                "how": event.how.value,
                "output_tokens": event.output_tokens,
                "prompt_tokens": event.prompt_tokens,
                "restartable": event.restartable,
                "fault": event.fault,
            }
        case Probed(instance, healthy):
            return step | {"instance": instance, "healthy": healthy}
        case LoadReported(instance, report):
            return step | {
                "instance": instance,
                "running": report.running,
                "waiting": report.waiting,
                "kv_usage": report.kv_usage,
                "preemptions_total": report.preemptions_total,
                "kv_capacity_tokens": report.kv_capacity_tokens,
                "loaded_models": None if report.loaded_models is None else sorted(report.loaded_models),
            }
    return None  # timers: what they bring about counts


#: Hears what goes into a scheduler, when, and what comes out.
Listener = Callable[[Event, float, list[Instruction]], None]


def listen(scheduler: Scheduler, listener: Listener) -> None:
    """Let `listener` hear all that a scheduler handles."""
    handle = scheduler.handle

    def heard(event: Event, now: float) -> list[Instruction]:
        instructions = handle(event, now)
        listener(event, now, instructions)
        return instructions

    scheduler.handle = heard  # type: ignore[method-assign]


@dataclass
class Run:
    """The steps of a run: what its scheduler heard and said, in order; and what became of each request."""

    steps: list[Step] = field(default_factory=list)
    rows: dict[str, Step] = field(default_factory=dict)

    def hear(self, event: Event, now: float, instructions: list[Instruction]) -> None:
        step = _event(event, now)
        if step is not None:
            self.steps.append(step)
        self.steps += [instruction_step(each, now) for each in instructions]

    def count(self, **wanted: Any) -> int:
        """How many steps have these values."""
        return sum(all(step.get(name) == value for name, value in wanted.items()) for step in self.steps)

    def outcomes(self) -> dict[str, int]:
        """Requests by how they ended."""
        found: dict[str, int] = {}
        for row in self.rows.values():
            found[row["outcome"]] = found.get(row["outcome"], 0) + 1
        return found


# --- what became of a request ------------------------------------------------------------------------
_ROW = (
    *("instance", "model", "attempts", "output_tokens", "ttft_s", "tpot_s", "e2e_s", "queue_wait_s"),
    *(
        "cost_usd",
        "budget_overrun_usd",
        "predicted_ttft_s_p50",
        "predicted_ttft_s_p95",
        "predicted_e2e_s_p50",
        "propensity",
    ),
)


def row_of_record(record: RequestRecord) -> Step:
    """A record of the gateway. No attempt: no tokens."""
    row: Step = {name: getattr(record, name) for name in _ROW}
    row["outcome"] = record.outcome.value
    row["met"] = record.slo_met
    row["hedged"] = record.hedged
    row["output_tokens"] = record.output_tokens or 0
    return row


def rows_of_result(result: Result, ids: list[str]) -> dict[str, Step]:
    """The rows of a simulation by request."""
    columns = result.columns
    rows = {}
    for at, request_id in enumerate(ids):
        row: Step = {name: _known(columns[name][at]) for name in _ROW}
        row["outcome"] = OUTCOMES[columns["outcome"][at]]
        row["met"] = (False, True, None)[columns["met"][at]]
        row["hedged"] = bool(columns["hedged"][at])
        row["instance"] = (*result.instances, None)[columns["instance"][at]]
        row["model"] = (*result.models, None)[columns["model"][at]]
        rows[request_id] = row
    return rows


def _known(value: Any) -> Any:
    plain = value.item()
    return None if isinstance(plain, float) and math.isnan(plain) else plain


# --- comparison --------------------------------------------------------------------------------------
def first_difference(simulated: Run, live: Run) -> str | None:
    """The first step, else the first request's end, that differs, in words; None for equal runs.

    Each instance has a monitor of its own, so which of them comes first in one moment means nothing: probes
    and reports are compared instance by instance, all else in order."""
    for wanted in (_is_request, _is_watch):
        found = _first_step(
            [step for step in simulated.steps if wanted(step)], [step for step in live.steps if wanted(step)]
        )
        if found is not None:
            return found
    if simulated.rows.keys() != live.rows.keys():
        return f"only one run has rows of {sorted(simulated.rows.keys() ^ live.rows.keys())}"
    for request_id, row in live.rows.items():
        for where, one, other in _differences(simulated.rows[request_id], row, ""):
            return f"the row of {request_id}: {where} is {one!r} simulated, {other!r} live"
    return None


def _is_request(step: Step) -> bool:
    return "request" in step


def _is_watch(step: Step) -> bool:
    return "request" not in step


def _first_step(simulated: list[Step], live: list[Step]) -> str | None:
    if simulated and "request" not in simulated[0]:
        simulated, live = (sorted(steps, key=_who) for steps in (simulated, live))
    for ours, theirs in zip(simulated, live, strict=False):
        if (ours["what"], _who(ours)) != (theirs["what"], _who(theirs)):
            return f"{_told(ours)} simulated, {_told(theirs)} live"
        for where, one, other in _differences(ours, theirs, ""):
            return f"{_told(theirs)}: {where} is {one!r} simulated, {other!r} live"
    if len(simulated) != len(live):
        longer, name = (simulated, "simulated") if len(simulated) > len(live) else (live, "live")
        return f"{_told(longer[min(len(simulated), len(live))])} is {name} only"
    return None


def _who(step: Step) -> str:
    name: str = step.get("request") or step["instance"]
    return name


def _told(step: Step) -> str:
    return f"{step['what']} of {_who(step)} at {step['at_s']:.6f} s"


def _differences(ours: Any, theirs: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            if name not in ours or name not in theirs:
                yield f"{where}.{name}".lstrip("."), ours.get(name), theirs.get(name)
            else:
                yield from _differences(ours[name], theirs[name], f"{where}.{name}".lstrip("."))
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        if len(ours) != len(theirs):
            yield where, ours, theirs
        for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from _differences(one, other, f"{where}[{at}]")
    elif isinstance(ours, float) and isinstance(theirs, float):
        nothing = 0.0 if where.endswith("_usd") else TOLERANCE
        if not math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=nothing):
            yield where, ours, theirs
    elif ours != theirs:
        yield where, ours, theirs
