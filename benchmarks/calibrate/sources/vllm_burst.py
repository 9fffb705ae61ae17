"""vLLM run logs: Llama-3.2-1B on one 24 GB GPU under BurstGPT arrivals, a level for each speed of the trace.

github.com/liao4s/BurstGPT_test 6088699, example/logs (MIT). The logs have no output tokens. They are told in
two steps, both from the fitted levels alone:

1. Tokens of a fitted level's answer: the engine's own generation rate for each running sequence
   (gen_tok_per_s / num_running) over the time from its first token to its end.
2. Answers are sampled greedily, so equal prompts get equal answers at any speed. A prompt and answer are told
   by prompt tokens and characters; a text that was seen on fitted levels has the median of its counts there.
   A text that was not gets the tokens of the nearest one by those two numbers.

A held-out level gives arrivals, prompt tokens and characters, none of its times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import attrgetter
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.calibrate.measured import Level, Measured, Splitter, State, Study, by_load
from benchmarks.calibrate.profile import CHUNKED
from benchmarks.workloads.published import Count, Number, Record, grouped, table

FOLDER = "vllm_burst_llama32_1b"
MAX_TOKENS = 1024
#: Budgets of a step to choose from: vLLM's defaults for chunked prefill, old and newer. The server was started
#: without options (example/start_vllm.sh), and vLLM chunks then for a context above 32,768 tokens.
BUDGETS = (512, 2048)

#: Prompt tokens and characters of prompt and answer.
Text = tuple[int, int]


class Request(Record):
    """A row of the published requests. `scale` is the speed of the trace."""

    scale: str
    arrival_s: Number
    in_tokens: Count
    out_chars_with_prompt: Count
    max_tokens: Count
    ttft_s: Number
    e2e_s: Number


class EngineState(Record):
    """A row of the published states of the engine."""

    scale: str
    t_s: Number
    prompt_tok_per_s: Number
    gen_tok_per_s: Number
    num_running: Count
    num_pending: Count
    kv_usage: Number


def read(data: Path, split: Splitter) -> list[Study]:
    """One study. A WorkloadError for tables that are not as published."""
    requests = grouped(table(data / FOLDER / "requests.csv.gz", Request), attrgetter("scale"))
    seen = grouped(table(data / FOLDER / "engine_state.csv.gz", EngineState), attrgetter("scale"))
    states = {name: list(map(_state, seen[name])) for name in requests}
    plain = by_load([_level(name, found, states[name]) for name, found in requests.items()])
    parts = split([level.name for level in plain])
    share = _prompt_share([level for level in plain if level.name in parts.fit])
    texts: dict[Text, list[float]] = defaultdict(list)
    for name in parts.fit:
        generated = _generated(states[name])
        for row in requests[name]:
            texts[_text(row)].append(_tokens(row, generated))
    known = {text: max(1, round(median(counts))) for text, counts in texts.items()}
    unseen = sum(_text(row) not in known for name in parts.test for row in requests[name])
    of_all = sum(len(requests[name]) for name in parts.test)
    levels = {
        level.name: replace(
            level,
            requests=tuple(
                replace(
                    one,
                    prompt_tokens=max(1, round(share * one.prompt_tokens)),
                    output_tokens=_known(_text(row), known),
                )
                for one, row in zip(level.requests, requests[level.name], strict=True)
            ),
        )
        for level in plain
    }
    fitted = [levels[name] for name in parts.fit]
    limits: dict[str, tuple[int, ...]] = {
        CHUNKED: (True,),
        "max_batched_tokens": BUDGETS,
        "max_seqs": (round(max(state.running for level in fitted for state in level.states)),),
    }
    if capacity := _kv_capacity(fitted):
        limits["kv_capacity_tokens"] = capacity
    notes = (
        f"output tokens are told from engine state and characters of the fitted levels; {unseen} of {of_all} "
        "held-out answers were not seen there",
        *(_check(level) for level in fitted[:1] + fitted[-1:]),
    )
    return [Study("vllm_burst", levels, parts, limits, notes=notes)]


def _level(name: str, rows: Sequence[Request], states: Sequence[State]) -> Level:
    """A level as published: prompt tokens that are not the engine's, no output tokens."""
    requests = (Measured(row.arrival_s, row.in_tokens, None, row.ttft_s, row.e2e_s) for row in rows)
    return Level(name, tuple(requests), tuple(states))


def _state(row: EngineState) -> State:
    return State(
        row.t_s,
        row.num_running,
        row.num_pending,
        row.gen_tok_per_s,
        row.prompt_tok_per_s,
        row.kv_usage / 100,  # published in per cent
    )


def _prompt_share(levels: Sequence[Level]) -> float:
    """Prompt tokens that the engine computed for each published one (a fifth less in every run); 1 where its log has none."""
    computed = math.fsum(
        (state.t_s - before.t_s) * (state.prompt_tok_per_s or 0.0)
        for level in levels
        for before, state in pairwise(level.states)
    )
    published = sum(each.prompt_tokens for level in levels for each in level.requests)
    return computed / published if computed else 1.0


def _text(row: Request) -> Text:
    return row.in_tokens, row.out_chars_with_prompt


def _generated(states: Sequence[State]) -> tuple[list[float], list[float]]:
    """Times, and tokens that a sequence running since the first of them has got by then. A sample tells the
    rates of the interval before it."""
    each = [
        (state.t_s - before.t_s) * ((state.gen_tok_per_s or 0.0) / state.running if state.running else 0.0)
        for before, state in pairwise(states)
    ]
    return [state.t_s for state in states], [0.0, *accumulate(each)]


def _tokens(row: Request, generated: tuple[list[float], list[float]]) -> float:
    """Output tokens of a request by the engine's rate while it decoded, between 1 and the limit."""
    first, last = np.interp((row.arrival_s + row.ttft_s, row.arrival_s + row.e2e_s), *generated).tolist()
    return min(float(MAX_TOKENS), 1 + last - first)


def _known(text: Text, known: Mapping[Text, int]) -> int:
    """Tokens of this text, or of the nearest one by the logarithms of its two numbers."""

    def distance(other: Text) -> tuple[float, Text]:
        return math.dist(*([math.log(n + 10) for n in each] for each in (text, other))), other

    return known[text if text in known else min(known, key=distance)]


def _kv_capacity(levels: Sequence[Level]) -> tuple[int, ...]:
    """KV memory in tokens: tokens of the requests that were decoding over the share in use, the median of
    the samples with a large share; empty where the samples do not show it."""
    found = []
    for level in levels:
        most = max((state.kv_usage or 0.0 for state in level.states), default=0.0)
        for state in level.states[::5]:
            if state.kv_usage and state.kv_usage > most / 2:
                tokens = sum(_held(each, state.t_s) for each in level.requests)
                if tokens:
                    found.append(tokens / state.kv_usage)
    return (round(median(found)),) if found else ()


def _held(each: Measured, at_s: float) -> float:
    """Tokens of context that a request held at an instant, were its tokens evenly spread."""
    spent_s = at_s - each.arrival_s
    if each.ttft_s is None or each.e2e_s is None or not each.ttft_s <= spent_s < each.e2e_s:
        return 0.0
    share = (spent_s - each.ttft_s) / (each.e2e_s - each.ttft_s)
    return each.prompt_tokens + share * (each.output_tokens or 0)


def _check(level: Level) -> str:
    tokens = sum(each.output_tokens or 0 for each in level.requests)
    generated = sum(
        (state.t_s - before.t_s) * (state.gen_tok_per_s or 0.0) for before, state in pairwise(level.states)
    )
    return (
        f"level {level.name}: {tokens:,} output tokens told, {generated:,.0f} by the engine's generation rate"
    )
