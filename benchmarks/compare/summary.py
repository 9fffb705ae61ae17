"""The numbers of one run, in the same keys whether it was simulated or replayed against a live gateway; what only one form knows is
None in the other. Attainment and goodput are those of `benchmarks.measures`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.compare.columns import (
    COMPLETE,
    Floats,
    by_slo,
    counted,
    five_digits,
    is_one_of,
    mean_of,
    peak_of,
    prediction_errors,
    weighted_summary,
)
from benchmarks.measures import Summary, is_offered, quantiles, rate_between, sorted_known
from benchmarks.replay.row import Row
from benchmarks.replay.summary import summarise
from benchmarks.simulator.outcomes import OUTCOMES, Result, Timeline, Usage
from router.core.types import Outcome

#: Points of the distribution curves: the quantiles at 0, 0.5 %, ... 100 %.
CURVE_POINTS = 201
_CURVES = ("ttft_s", "tpot_s", "e2e_s")
#: More points than this of a load timeline say nothing more on a page.
_TIMELINE_POINTS = 200

TIMED_OUT_BEFORE_DECODING = (Outcome.EXPIRED_IN_QUEUE, Outcome.EXPIRED_BEFORE_FIRST_TOKEN)
OUT_OF_BUDGET_BEFORE_DECODING = (Outcome.REJECTED_BUDGET,)

#: What a client of a live gateway cannot see.
_SIMULATED_ONLY = (
    *("queue_wait_s", "by_slo", "budget_overruns", "budget_overrun_usd_max", "hedged"),
    *("cost_usd_per_offered", "peak_in_flight", "prediction", "decision_s", "wall_s", "events"),
    *("preemptions", "timeline"),
)

#: How a run's ITL was measured (`itl_of`), and the note about it.
ITL_NOTES: Mapping[str, str] = {
    "gaps": "ITL counts single gaps between tokens, in bins of one per cent; of engines with slots (Ollama's),"
    " each answer's mean gap.",
    "answers": "ITL is each answer's mean gap (TPOT), weighted by its gaps: single gaps are not seen, so its high"
    " percentiles are lower than those of single gaps.",
}


def summary_of(result: Result) -> dict[str, Any]:
    """A simulated run. Keys as `summarise`, and more; times in seconds of real hardware. `measured_rate_per_s` is the rate
    of the arrivals. `prompt_tokens` are those of complete answers, `output_tokens` those of all that was delivered.
    `cost_usd_per_request` is all that was spent over complete answers, `cost_usd_per_offered` the same over all requests but
    those outside attainment. `hedged` are requests that had a second attempt beside the first. `queue_wait_s` lasts until
    the first dispatch, or until the end of a request that saw none. `decision_s` is wall-clock time of this machine."""
    columns = result.columns
    requests = len(result)
    arrival_s: Floats = columns["arrival_s"]
    first_s, last_s = (float(arrival_s.min()), float(arrival_s.max())) if requests else (0.0, 0.0)
    rate_per_s = rate_between(requests, first_s, last_s)
    window_s = requests / rate_per_s if rate_per_s else None
    outcome = columns["outcome"]
    complete = is_one_of(outcome, COMPLETE)
    counts = np.isin(outcome, [i for i, name in enumerate(OUTCOMES) if is_offered(name)])
    judged = (columns["met"] != 2) & counts
    met = judged & (columns["met"] == 1)
    offered, kept = int(judged.sum()), int(met.sum())
    latencies = {name: columns[name][complete] for name in _CURVES}
    cost_usd = float(columns["cost_usd"].sum())
    output_tokens = int(columns["output_tokens"].sum(dtype=np.int64))
    end_s = arrival_s + columns["e2e_s"]
    duration_s = float(end_s.max()) - first_s if requests else 0.0
    outcomes = counted(OUTCOMES, outcome)
    return {
        "requests": requests,
        "complete": int(complete.sum()),
        "measured_rate_per_s": rate_per_s,
        "duration_s": duration_s,
        **{name: asdict(Summary.of(values)) for name, values in latencies.items()},
        "itl_s": asdict(weighted_summary(*result.gaps.arrays())),
        "itl_of": "gaps",
        "itl_max_s": None,
        "queue_wait_s": asdict(Summary.of(columns["queue_wait_s"])),
        "offered_with_slo": offered,
        "met": kept,
        "attainment": kept / offered if offered else None,
        "goodput_per_s": kept / window_s if offered and window_s else None,
        "gateway_attainment": None,
        "by_slo": by_slo(columns, judged, met),
        "prompt_tokens": int(columns["prompt_tokens"][complete].sum(dtype=np.int64)),
        "output_tokens": output_tokens,
        "complete_output_tokens": int(columns["output_tokens"][complete].sum(dtype=np.int64)),
        "output_tokens_per_s": output_tokens / window_s if window_s else None,
        "cost_usd": cost_usd,
        "cost_usd_per_request": cost_usd / int(complete.sum()) if complete.any() else None,
        "cost_usd_per_offered": cost_usd / int(counts.sum()) if counts.any() else None,
        **_usage(result.usage),
        "quality_mean": mean_of(columns["quality"]),
        "ratings": None,
        "budget_overruns": int((columns["budget_overrun_usd"] > 0).sum()),
        "budget_overrun_usd_max": Summary.of(columns["budget_overrun_usd"]).max,
        "retried": int((columns["attempts"] > 1).sum()),
        "hedged": int((columns["hedged"] > 0).sum()),
        "peak_in_flight": peak_of(arrival_s, end_s),
        "outcomes": outcomes,
        **_before_decoding(outcomes),
        "gateway_outcomes": {},
        "disagreements": None,
        "instances": counted((*result.instances, "(none)"), columns["instance"]),
        "models": counted((*result.models, "(none)"), columns["model"]),
        "errors": {},
        "client_lag_s": None,
        "prediction": prediction_errors(columns, met, judged),
        "decision_s": asdict(Summary.of(result.decision_s)),
        "wall_s": result.wall_s,
        "events": result.events,
        "preemptions": result.preemptions,
        "curves": {name: _curve(values) for name, values in latencies.items()},
        "timeline": _timeline(result.instances, result.timeline),
    }


def live_summary(rows: Sequence[Row], speed: float) -> dict[str, Any]:
    """A run against a live gateway, as `summary_of` has it; None for _SIMULATED_ONLY."""
    replayed = summarise(rows, speed)
    complete = [row for row in rows if row.complete]
    attempts = [
        tried for row in rows if isinstance(tried := (row.headway or {}).get("attempts"), int) and tried > 0
    ]
    ends_s = [row.scheduled_s + row.e2e_s for row in rows if row.e2e_s is not None]
    ratings = [row.quality for row in complete if row.quality is not None]
    return {
        **{key: value for key, value in replayed.items() if key != "rate_per_s"},
        "measured_rate_per_s": replayed["rate_per_s"],
        "duration_s": max(ends_s) - min(row.scheduled_s for row in rows) if ends_s else None,
        "itl_s": asdict(
            weighted_summary(
                np.array([np.nan if row.tpot_s is None else row.tpot_s for row in complete]),
                np.array([(row.output_tokens or 1) - 1 for row in complete]),
            )
        ),
        "itl_of": "answers",
        "prompt_tokens": sum(row.prompt_tokens or 0 for row in complete),
        "complete_output_tokens": sum(row.output_tokens or 0 for row in complete),
        "quality_mean": sum(ratings) / len(ratings) if ratings else None,
        "ratings": len(ratings),
        "retried": sum(tried > 1 for tried in attempts) if attempts else None,
        **_usage(None),
        **_before_decoding(replayed["outcomes"]),
        "models": {},
        "curves": {name: _curve(getattr(row, name) for row in complete) for name in _CURVES},
        **dict.fromkeys(_SIMULATED_ONLY),
    }


def _usage(usage: Usage | None) -> dict[str, Any]:
    """What the instances of a scaled fleet took; `scaling` has the decisions that changed something."""
    if usage is None:
        return {"gpu_hours": None, "instances_usd": None, "starts": None, "scaling": None}
    return {
        "gpu_hours": usage.gpu_hours,
        "instances_usd": usage.usd,
        "starts": {"cold": usage.cold_starts, "warm": usage.warm_starts},
        "scaling": [change._asdict() for change in usage.changes],
    }


def _before_decoding(outcomes: Mapping[str, int]) -> dict[str, int]:
    """What ended before its first token for lack of time or money, apart from all other outcomes."""
    return {
        "timed_out_before_decoding": sum(outcomes.get(name, 0) for name in TIMED_OUT_BEFORE_DECODING),
        "out_of_budget_before_decoding": sum(outcomes.get(name, 0) for name in OUT_OF_BUDGET_BEFORE_DECODING),
    }


def _curve(values: Iterable[float | None] | npt.NDArray[Any]) -> list[float | None]:
    known = sorted_known(values)
    if not len(known):
        return [None] * CURVE_POINTS
    return [five_digits(value) for value in quantiles(known, np.linspace(0, 1, CURVE_POINTS)).tolist()]


def _timeline(instances: Sequence[str], timeline: Timeline) -> dict[str, Any]:
    """`at_s`, and for each instance `in_flight`, `running`, `waiting`, `kv_usage`, one value a moment."""
    moments = timeline.moments[:: -(-len(timeline.moments) // _TIMELINE_POINTS) or 1]
    return {
        "at_s": [five_digits(moment[0].at_s) for moment in moments if moment],
        "instances": {
            name: {
                "in_flight": [moment[index].in_flight for moment in moments],
                "running": [moment[index].running for moment in moments],
                "waiting": [moment[index].waiting for moment in moments],
                "kv_usage": [
                    None if (usage := moment[index].kv_usage) is None else round(usage, 3)
                    for moment in moments
                ],
            }
            for index, name in enumerate(instances)
        },
    }
