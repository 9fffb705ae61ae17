"""Random loads on an engine: limits that hold at every event, conservation, and the same outcome however it steps."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from backends.engine import Engine, Progress, QueueFull, Sequence, SlotEngine
from tests.engine_profiles import profile

PROFILE = profile(
    "test",
    overhead_s=0.002,
    floor_s=0.01,
    per_token_s=1e-4,
    per_kv_token_s=1e-6,
    per_pair_s=1e-8,
    kv_capacity_tokens=1024,
    max_batched_tokens=64,
    max_seqs=6,
    load_s=1.0,
    slots=2,
)
WHOLE_PROMPTS = dataclasses.replace(  # 102 blocks, of which an admission leaves one free
    PROFILE, kv_capacity_tokens=1632, max_batched_tokens=700, chunked_prefill=False
)


@dataclasses.dataclass(frozen=True)
class Arrival:
    """Without a prompt it only loads its model."""

    wait_s: float
    prompt: int
    output: int
    model: str
    group: int  # arrivals of one group share the beginning of their prompts
    keep_alive_s: float | None
    abort_after_s: float | None
    watched: bool  # the caller looks at each end of a step before this arrival


def loads(most_prompt: int, *, least_prompt: int = 1) -> st.SearchStrategy[list[Arrival]]:
    arrival = st.builds(
        Arrival,
        st.just(0.0) | st.floats(0, 1),
        st.integers(least_prompt, most_prompt),
        st.integers(0, 150),
        st.sampled_from("abc"),
        st.integers(0, 2),
        st.sampled_from([None, 0.0, 1.5]),
        st.none() | st.floats(0, 4),
        st.booleans(),
    )
    return st.lists(arrival, min_size=1, max_size=20)


@dataclasses.dataclass
class Outcome:
    """All that the two ways to step have to agree in."""

    times_s: dict[str, float]  # of each sequence: admission, first token, end, as far as it came
    cached_tokens: list[int]
    aborted_after_tokens: list[int]
    seen: list[tuple[int, int, int, int]]  # at each event: running, waiting, tokens so far
    totals: list[int]


def play(
    engine: Engine | SlotEngine,
    load: list[Arrival],
    unit: int,
    replaced: Callable[[Engine | SlotEngine, float], Engine | SlotEngine] | None = None,
) -> tuple[Outcome, list[Progress]]:
    """Before each arrival and each abort, what `replaced` makes of the engine takes its place."""
    events: list[tuple[float, int, Sequence | None]] = []
    most_tokens = []
    at_s = 0.0
    for number, one in enumerate(load):
        at_s += one.wait_s
        prefix = tuple(1000 * one.group + block for block in range(-(-one.prompt // unit)))
        output = one.output if one.prompt else 0
        sequence = Sequence(str(number), one.prompt, output, prefix, one.model, prefix_tokens=unit)
        events.append((at_s, number, sequence))
        context = (
            engine.slot_context_tokens(one.model) if isinstance(engine, SlotEngine) else engine.limit_tokens
        )
        most_tokens.append(min(output, context - one.prompt))
        if one.abort_after_s is not None:
            events.append((at_s + one.abort_after_s, number, None))
    out: list[Progress] = []
    ended: set[str] = set()
    gone: set[str] = set()
    outcome = Outcome({}, [], [], [], [])

    def advance(now: float) -> None:
        new = engine.advance(now)
        out.extend(new)
        ended.update(one.seq_id for one in new if one.finished)
        check_limits(engine, now)

    for now, number, sequence in sorted(events, key=lambda event: event[:2]):
        while load[number].watched and (at := engine.next_at()) is not None and at <= now:
            advance(at)
        advance(now)
        if replaced is not None:
            engine = replaced(engine, now)
        try:
            if sequence is None:
                outcome.aborted_after_tokens.append(engine.abort(str(number), now))
                gone |= {str(number)} - ended
            elif isinstance(engine, SlotEngine):
                engine.submit(sequence, now, load[number].keep_alive_s)
            else:
                engine.submit(sequence, now)
        except QueueFull:
            outcome.aborted_after_tokens.append(-1)
            gone.add(str(number))
        check_limits(engine, now)
        totals = (engine.prompt_tokens_total, engine.generation_tokens_total)
        outcome.seen.append((engine.running, engine.waiting, *totals))
    while (at := engine.next_at()) is not None:
        advance(at)
    check_conserved(engine, out, gone, most_tokens)
    ends = {one.seq_id: one.at_s for one in out if one.finished}
    for _, _, sequence in events:
        if sequence is not None:
            times = (sequence.admitted_at_s, sequence.first_token_at_s, ends.get(sequence.id))
            for what, time_s in zip(("in", "first", "end"), times, strict=True):
                if time_s is not None:
                    outcome.times_s[f"{sequence.id} {what}"] = time_s
            outcome.cached_tokens.append(sequence.cached_tokens)
    outcome.totals = [getattr(engine, name) for name in dir(engine) if name.endswith("_total")]
    return outcome, out


def check_limits(engine: Engine | SlotEngine, now: float) -> None:
    if isinstance(engine, SlotEngine):
        loaded = engine.loaded(now)
        assert len(loaded) + (engine.loading is not None) <= engine.max_loaded_models
        assert all(one.active <= (engine.slots or PROFILE.slots) for one in loaded)
        return
    assert 0 <= engine.kv.free <= engine.kv.total
    assert 0.0 <= engine.kv_usage <= 1.0
    assert engine.running <= engine.profile.max_seqs
    assert engine.running + engine.waiting == len(engine._all)
    prefill = sum(count for _, count in engine._chunks)
    decoding = engine._decoding
    tokens = prefill + len(decoding.sequences) * (not engine._prompts_only)
    assert tokens <= engine.profile.max_batched_tokens
    if engine._stretch and not engine.profile.chunked_prefill:
        assert engine._prompts_only == bool(engine._chunks)
    assert decoding.context_tokens == sum(one.offset + decoding.steps for one in decoding.sequences.values())


def check_conserved(
    engine: Engine | SlotEngine, out: list[Progress], gone: set[str], most_tokens: list[int]
) -> None:
    """Every sequence but those aborted or refused (`gone`) ends once, with all of its tokens."""
    ended = Counter(one.seq_id for one in out if one.finished)
    given_out: Counter[str] = Counter()
    for one in out:
        given_out[one.seq_id] += one.new_tokens
    for number, most in enumerate(most_tokens):
        name = str(number)
        if name in gone:
            assert ended[name] == 0
            assert given_out[name] <= most
        else:
            assert ended[name] == 1
            assert given_out[name] == most
    assert (engine.running, engine.waiting) == (0, 0)
    assert [one.at_s for one in out] == sorted(one.at_s for one in out)
    assert engine.prefix_hits_total <= engine.prefix_queries_total
    if engine.every_token:
        assert engine.generation_tokens_total == given_out.total()
    if not isinstance(engine, SlotEngine):
        assert engine.kv.free == engine.kv.total
        assert engine.prefix_caching or not engine.prefix_hits_total


def check_same(make: Callable[[bool], Engine | SlotEngine], load: list[Arrival], unit: int = 16) -> None:
    """`make(every_token)` is an engine."""
    stepped, every = play(make(True), load, unit)
    jumped, told = play(make(False), load, unit)
    assert jumped.times_s == pytest.approx(stepped.times_s, rel=1e-9)
    stepped.times_s = jumped.times_s = {}
    assert jumped == stepped
    # Told are the first and the last token, with all tokens between them.
    given_out: dict[str, list[Progress]] = {}
    for one in every:
        given_out.setdefault(one.seq_id, []).append(one)
    expected: list[tuple[str, int, str | None]] = []
    for name, all_of_it in given_out.items():
        first, last = all_of_it[0], all_of_it[-1]
        expected.append((name, first.new_tokens, first.finished))
        if last.finished and last is not first:
            expected.append((name, len(all_of_it) - 1, last.finished))
    assert sorted((one.seq_id, one.new_tokens, str(one.finished)) for one in told) == sorted(
        (name, new, str(finished)) for name, new, finished in expected
    )
