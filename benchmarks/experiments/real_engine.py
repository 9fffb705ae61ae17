"""The same questions to a real engine, or to anything with OpenAI's API: its own noise comes in.

Latencies are the client's, from the moment of sending. Prompts are made up with a given length; no sampling parameters are
sent, so answers are drawn as the server draws them by default, up to `MAX_TOKENS`. The first answer of each arm is left out:
it may have to compile, load or fill a cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.calibrate.measure import watched
from benchmarks.experiments import charts, replays
from benchmarks.experiments.report import Results, Section, Value
from benchmarks.experiments.traffic import LATENCIES, Seen, background, mean_memory, together
from benchmarks.measures import Summary, coefficient_of_variation
from benchmarks.replay.client import Target
from benchmarks.replay.command import run_until_interrupted
from benchmarks.replay.pace import replay
from benchmarks.replay.row import Row
from benchmarks.terminal import Progress
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.sources.generators import Lengths
from benchmarks.workloads.text import prompt_text

PROMPT_TOKENS, MAX_TOKENS = 200, 64
#: Requests under way in the background while the same request is sent, if they did not slow each other down.
BACKGROUND = (1, 4)
LENGTHS = Lengths(150.0, 0.6, 1.0, 0.1)
_LOOK_S = 0.1
SAME, EQUAL = "same request, one after another", "others of equal length, one after another"


def sections(
    target: Target, repeats: int, requests: int, times: int, seed: int, progress: Progress
) -> Iterator[Section]:
    """What `target` shows: a request `repeats` times in each arm, and `requests` replayed `times` times in each arm. After
    the first arm standard error says how long the rest takes. Raises WorkloadError if it does not answer."""
    one = WorkloadRequest("same", 0.0, PROMPT_TOKENS, max_tokens=MAX_TOKENS)
    text = prompt_text(one, target.seed)
    copies = [replace(one, id=f"same-{place}", prompt=text) for place in range(repeats + 1)]
    progress(SAME)
    arms = {SAME: _answers(target, copies, 1)}
    alone_s = float(np.median(arms[SAME].columns["e2e_s"][1:]))
    minutes = alone_s * (len(copies) * (1 + len(BACKGROUND)) + times * requests) / 60
    print(
        f"one answer takes {alone_s:.2g} s; the rest takes at least {max(1, round(minutes))} min (less with smaller"
        " --repeats, --requests, --replays)",
        file=sys.stderr,
    )
    progress(EQUAL)
    arms[EQUAL] = _answers(target, [replace(one, id=f"equal-{place}") for place in range(repeats + 1)], 1)
    for under_way in BACKGROUND:
        progress(f"same request, about {under_way} more under way")
        rate_per_s = under_way / alone_s
        spaced = [replace(each, arrival_s=place * alone_s) for place, each in enumerate(copies)]
        others = _others(rate_per_s, round(rate_per_s * spaced[-1].arrival_s), seed)
        arms[f"same request, about {under_way} more under way"] = _answers(
            target, together(others, spaced), None, [each.id for each in spaced]
        )
    yield _repeated(arms, repeats)
    yield _replayed(target, requests, times, 2 / alone_s, seed, progress)


def _others(rate_per_s: float, count: int, seed: int) -> list[WorkloadRequest]:
    drawn = background(rate_per_s, count, seed, "other", LENGTHS)
    return [replace(each, max_tokens=MAX_TOKENS, output_tokens=None) for each in drawn]


def _answers(
    target: Target,
    requests: Sequence[WorkloadRequest],
    max_in_flight: int | None,
    wanted: Sequence[str] | None = None,
) -> Seen:
    """Send the requests, and look at the engine's memory meanwhile where it shows any; the answers to the `wanted` ones (None:
    to all). KeyboardInterrupt if it was interrupted, WorkloadError for a request without an answer."""
    rows: dict[str, Row] = {}
    looks: list[tuple[float, float | None]] = []

    async def send() -> None:
        async with watched(target, perf_counter(), _LOOK_S) as states:
            await replay(
                requests,
                target,
                max_in_flight=max_in_flight,
                on_row=lambda row: rows.__setitem__(row.id, row),
            )
        looks.extend((each.t_s, each.kv_usage) for each in states)

    if not run_until_interrupted(send()):
        raise KeyboardInterrupt
    names = [each.id for each in requests] if wanted is None else wanted
    found = [rows[name] for name in names]
    for row in found:
        if not row.complete or row.ttft_s is None or row.e2e_s is None:
            raise WorkloadError(f"{target.base_url}: no answer to {row.id} ({row.error or row.outcome})")
    lives = [(row.sent_s, row.scheduled_s + (row.e2e_s or 0.0)) for row in found]
    columns = {
        name: np.array([getattr(row, name) for row in found], float)
        for name in ("ttft_s", "tpot_s", "e2e_s", "output_tokens")
    }
    for name in ("ttft_s", "e2e_s"):
        columns[name] -= [row.lag_s for row in found]
    return Seen(names, columns, mean_memory(lives, looks))


def _repeated(arms: Mapping[str, Seen], repeats: int) -> Section:
    rows: list[dict[str, Value]] = []
    lanes: dict[str, list[charts.Lane]] = {}
    for arm, seen in arms.items():
        for name, column in {**LATENCIES, "output tokens": "output_tokens"}.items():
            values = seen.columns[column][1:]
            found = Summary.of(values)
            if not found.count:
                continue
            variance = None if found.std is None else found.std**2
            known = values[~np.isnan(values)]
            row: dict[str, Value] = {"arm": arm, "measure": name, "answers": found.count}
            row |= {"mean": found.mean, "variance": variance, "CV": coefficient_of_variation(known)}
            rows.append(row | {"p50": found.p50, "p95": found.p95})
            if name != "output tokens":
                relative = known / median(known)
                low, high = np.quantile(relative, (0.05, 0.95)).tolist()
                lanes.setdefault(name, []).append((arm, 1.0, low, high))
    return Section(
        "The same request, and requests of equal length, at this engine",
        [
            f"Each request has about {PROMPT_TOKENS} input tokens and at most {MAX_TOKENS} output tokens. Each arm has {repeats}"
            " answers, after a first one that does not count. Times are in seconds, as the client saw them.",
            "An engine that keeps prompts in a cache need not compute the same request's prompt again, but that of others.",
        ],
        [Results.of("By arm", rows)],
        [
            charts.lanes(
                "engine_noise",
                "Latency of the same request at this engine, over its median: 5 % to 95 %",
                "latency / median latency of the arm",
                lanes,
            )
        ],
    )


def _replayed(
    target: Target, count: int, times: int, rate_per_s: float, seed: int, progress: Progress
) -> Section:
    requests = _others(rate_per_s, count, seed)
    chosen = replays.followed(requests)
    found = {}
    for arm, order in (("nothing", False), ("order", True)):
        seen = []
        for at in range(times):
            progress(f"replay {at + 1} of {times}, {'shuffled' if order else 'in the same order'}")
            coming = replays.changed(requests, order, False, None, f"{seed}/{at}")
            seen.append(_answers(target, coming, None))
        found[arm] = replays.values_of(seen, chosen)
    text = [
        f"{count} requests of different lengths come at {rate_per_s:.2g}/s, {times} times in the same order and {times} times in"
        f" a shuffled one. {len(chosen)} of them are followed.",
        "The memory ratio is the mean share of KV memory in use during a request's life, as the engine's /metrics has it.",
    ]
    return replays.report_of(found, chosen, requests, text)
