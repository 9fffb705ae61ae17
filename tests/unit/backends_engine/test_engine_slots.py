"""Ollama: slots, loads, unloads, the prompt cache."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest

from backends.engine import Progress, PromptTooLong, QueueFull, Sequence, SlotEngine
from tests.unit.backends_engine.test_engine_batching import PROFILE as BATCHING
from tests.unit.backends_engine.test_engine_batching import run

PROFILE = dataclasses.replace(BATCHING, kv_capacity_tokens=4096, max_batched_tokens=128, load_s=5.0, slots=2)


def server(models: str = "a", **options: int | float) -> SlotEngine:
    return SlotEngine(dict.fromkeys(models, PROFILE), **options)  # type: ignore[arg-type]


def seq(name: str, prompt: int, output: int, model: str = "a", prefix: tuple[int, ...] = ()) -> Sequence:
    return Sequence(name, prompt, output, prefix, model)


def loaded_names(engine: SlotEngine, now: float) -> set[str]:
    return {one.model for one in engine.loaded(now)}


def test_the_first_request_waits_for_the_load() -> None:
    engine = server()
    one = seq("1", 100, 2)
    engine.submit(one, 1.0)
    assert (engine.loading, engine.pending, engine.running) == ("a", 1, 0)
    assert engine.next_at() == 6.0
    out = run(engine)
    first = 6.0 + 0.002 + 0.010 + 5050e-7
    assert [p.at_s for p in out] == pytest.approx([first, first + 0.012 + 101e-6])
    assert (one.submitted_at_s, one.runner_at_s, one.admitted_at_s) == (1.0, 6.0, 6.0)
    assert one.first_token_at_s == pytest.approx(first)
    assert engine.loads_total == 1


def test_slots_are_shared_first_come_first_served() -> None:
    engine = server()
    work = [seq(str(number), 50, 10) for number in range(5)]
    for one in work:
        engine.submit(one, 0.0)
    engine.advance(5.0)
    assert (engine.running, engine.waiting, engine.pending) == (2, 3, 0)
    run(engine)
    admitted = [one.admitted_at_s or 0.0 for one in work]
    assert admitted == sorted(admitted)
    assert len(set(admitted)) == 3


def test_slots_decode_in_one_batch_and_prompts_come_in_chunks() -> None:
    engine = server()
    engine.submit(seq("1", 10, 50), 0.0)
    engine.submit(seq("2", 500, 2), 0.0)
    out = run(engine)
    first_of_2 = next(p.at_s for p in out if p.seq_id == "2")
    # 10 + 118 tokens, then one of the first and 127 of the second: 4 chunks in all.
    assert sum(p.at_s <= first_of_2 for p in out if p.seq_id == "1") == 5
    after = [p.at_s for p in out if p.seq_id == "1" and p.at_s >= first_of_2]
    assert after[1] - after[0] == pytest.approx(PROFILE.step_s(0, 2, 15 + 501))


def test_several_models_take_turns() -> None:
    engine = server("ab")
    engine.submit(seq("1", 10, 20, "a"), 0.0)
    engine.submit(seq("2", 10, 20, "b"), 0.0)
    alone = server("a")
    alone.submit(seq("1", 10, 20, "a"), 10.0)
    alone_s = run(alone)[-1].at_s - 15.0
    # Loads come one after another: the second model is there at 10 s, when the first has long finished.
    ends = {p.seq_id: p.at_s for p in run(engine) if p.finished}
    assert ends == pytest.approx({"1": 5.0 + alone_s, "2": 10.0 + alone_s})
    engine.submit(seq("3", 10, 20, "a"), 20.0)
    engine.submit(seq("4", 10, 20, "b"), 20.0)
    ends = {p.seq_id: p.at_s for p in run(engine) if p.finished}
    assert ends["4"] == pytest.approx(20.0 + 2 * alone_s)
    assert 20.0 + 1.9 * alone_s < ends["3"] < ends["4"]


def test_the_idle_model_used_least_recently_makes_room() -> None:
    engine = server("abc", max_loaded_models=2)
    for at, model in ((0.0, "a"), (10.0, "b"), (20.0, "a"), (30.0, "c")):
        engine.submit(seq(f"{model}{at}", 10, 2, model), at)
        engine.advance(at + 8.0)
    assert loaded_names(engine, 40.0) == {"a", "c"}
    assert (engine.loads_total, engine.unloads_total) == (3, 1)


def test_a_load_waits_for_a_busy_model() -> None:
    engine = server("ab", max_loaded_models=1)
    engine.submit(seq("1", 10, 500, "a"), 0.0)
    engine.submit(seq("2", 10, 2, "b"), 6.0)
    assert engine.loading is None
    engine.submit(seq("3", 10, 2, "a"), 7.0)  # a model in memory does not wait for the load
    out = run(engine)
    ends = {p.seq_id: p.at_s for p in out if p.finished}
    assert ends["3"] < ends["1"] < ends["2"]
    assert ends["2"] > ends["1"] + PROFILE.load_s
    assert loaded_names(engine, ends["2"]) == {"b"}


def test_memory_bounds_the_loaded_models() -> None:
    engine = SlotEngine(
        dict.fromkeys("abc", PROFILE),
        model_bytes={"a": 5, "b": 5, "c": 2},
        memory_bytes=8,
        max_loaded_models=3,
    )
    for at, model in ((0.0, "a"), (10.0, "c"), (20.0, "b")):
        engine.submit(seq(model, 10, 2, model), at)
        engine.advance(at + 8.0)
    assert loaded_names(engine, 30.0) == {"b", "c"}
    with pytest.raises(ValueError, match="larger than the memory"):
        SlotEngine({"a": PROFILE}, model_bytes={"a": 9}, memory_bytes=8)


def test_only_those_waiting_for_a_load_fill_the_queue() -> None:
    engine = server(max_pending=2)
    engine.submit(seq("1", 10, 5), 0.0)
    engine.submit(seq("2", 10, 5), 0.0)
    with pytest.raises(QueueFull):
        engine.submit(seq("3", 10, 5), 0.0)
    engine.advance(5.0)
    for number in range(4, 20):
        engine.submit(seq(str(number), 10, 5), 5.0)
    assert len([p for p in run(engine) if p.finished]) == 18


def test_requests_that_cannot_be() -> None:
    engine = server(context_tokens=100)
    assert engine.slot_context_tokens("a") == 100
    assert server().slot_context_tokens("a") == 2048  # two slots share 4,096 tokens
    with pytest.raises(KeyError, match="'b'"):
        engine.submit(seq("1", 10, 5, "b"), 0.0)
    with pytest.raises(PromptTooLong):
        engine.submit(seq("1", 100, 1), 0.0)
    with pytest.raises(ValueError, match="at least one prompt token"):
        engine.submit(seq("1", 0, 1), 0.0)
    engine.submit(seq("1", 90, 50), 0.0)
    with pytest.raises(ValueError, match="already"):
        engine.submit(seq("1", 90, 50), 0.0)
    out = run(engine)
    assert len(out) == 10
    assert out[-1].finished == "length"
    with pytest.raises(ValueError, match="at least one"):
        server(slots=0)


def test_keep_alive() -> None:
    engine = server("ab", keep_alive_s=60.0)
    engine.submit(seq("1", 10, 2), 0.0)
    end = run(engine)[-1].at_s
    (one,) = engine.loaded(end)
    assert one.expires_at_s == pytest.approx(end + 60.0)
    assert loaded_names(engine, end + 59.9) == {"a"}
    assert engine.advance(end + 60.1) == []
    assert loaded_names(engine, end + 60.1) == set()
    # A request's own wish replaces the default while the model stays.
    engine.submit(seq("2", 10, 2), 200.0, keep_alive_s=math.inf)
    run(engine)
    assert loaded_names(engine, 1e6) == {"a"}
    engine.submit(seq("3", 10, 2), 1e6, keep_alive_s=0.0)
    (one,) = engine.loaded(1e6)
    assert one.expires_at_s is None
    assert one.active == 1
    run(engine)
    assert loaded_names(engine, 1e6 + 1) == set()
    assert engine.next_at() is None
    engine.submit(seq("4", 10, 2), 2e6)  # loaded again with the default
    run(engine)
    assert loaded_names(engine, 2e6 + 50) == {"a"}


def test_load_only_and_unload() -> None:
    engine = server()
    engine.submit(seq("load", 0, 0), 0.0)
    assert run(engine) == [Progress("load", 5.0, 0, "stop")]
    assert loaded_names(engine, 5.0) == {"a"}
    engine.submit(seq("1", 10, 20), 6.0)
    engine.unload("a", 6.05)
    assert loaded_names(engine, 6.05) == {"a"}  # it is busy
    run(engine)
    assert loaded_names(engine, 10.0) == set()
    engine.submit(seq("both", 0, 0), 20.0, keep_alive_s=0.0)
    engine.submit(seq("2", 10, 2), 20.0)
    assert {p.seq_id for p in run(engine) if p.finished} == {"both", "2"}


def test_a_slot_reuses_the_prompt_it_has_in_common() -> None:
    engine = server()
    prefix = tuple(range(10))
    engine.submit(seq("1", 170, 2, prefix=prefix), 0.0)
    engine.submit(seq("other", 170, 2, prefix=tuple(range(100, 110))), 0.0)
    run(engine)
    warm = seq("2", 200, 2, prefix=(*prefix[:8], 50, 51, 52, 53))
    engine.submit(warm, 20.0)
    out = run(engine)
    assert warm.cached_tokens == 128
    assert out[0].at_s == pytest.approx(20.0 + PROFILE.step_s(72, 0, 0, 72 * (128 + 36.5)))
    assert (engine.prefix_queries_total, engine.prefix_hits_total) == (540, 128)
    same = seq("same", 200, 2, prefix=warm.prefix)
    engine.submit(same, 30.0)
    run(engine)
    assert same.cached_tokens == 192  # in the slot used last, not in the one free for longest
    # The other slot's prompt is still there: the one with more in common was taken.
    again = seq("3", 170, 2, prefix=tuple(range(100, 110)))
    engine.submit(again, 40.0)
    run(engine)
    assert again.cached_tokens == 160


def test_the_last_token_of_a_cached_prompt_is_computed() -> None:
    engine = server()
    for at in (0.0, 10.0):
        one = seq(str(at), 32, 1, prefix=(1, 2))
        engine.submit(one, at)
        run(engine)
    assert one.cached_tokens == 16


def test_aborts() -> None:
    engine = server()
    for number in range(4):
        engine.submit(seq(str(number), 10, 50), 0.0)
    engine.abort("3", 1.0)  # pending
    engine.advance(5.0)
    engine.submit(seq("4", 10, 5), 5.0)
    engine.abort("4", 5.0)  # waits for a slot
    engine.abort("0", 5.1)  # decodes
    engine.abort("unknown", 5.1)
    assert engine.running == 2  # the next one has its slot
    engine.advance(5.1)
    out = run(engine)
    assert {p.seq_id for p in out} == {"1", "2"}  # the step under way gave the aborted one nothing
    assert Counter(p.seq_id for p in out if p.finished) == Counter(["1", "2"])
    engine.submit(seq("6", 100, 5), 50.0)
    engine.submit(seq("7", 10, 2), 50.0)
    engine.advance(50.0)
    engine.abort("6", 50.001)  # its prompt is in the step under way
    assert [p.seq_id for p in run(engine)] == ["7", "7"]
    engine.submit(seq("5", 10, 50), 100.0, keep_alive_s=0.0)
    assert engine.next_at() is not None
    engine.abort("5", 100.001)  # idle now: unloaded in mid-step
    assert run(engine) == []
    assert loaded_names(engine, 101.0) == set()
