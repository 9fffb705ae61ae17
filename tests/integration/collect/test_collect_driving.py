"""Loads, endings and what is left out: the driver over emulated engines of both kinds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import yaml

from backends.emulator.instance import EmulatedInstance
from benchmarks.collect.drive import Collection, Level, Progress, Settings, collect
from benchmarks.collect.engines import open_engines
from benchmarks.collect.prompts import Question
from router.config import FleetConfig, loads
from tests.integration.collect.conftest import Engines
from tests.integration.gateway.live import MODELS, fault, fleet_of

QUESTIONS = [Question(f"Tell me of the number {number}.") for number in range(12)]


def fleet(*engines: EmulatedInstance, **instance: Any) -> FleetConfig:
    return loads(yaml.safe_dump({"models": MODELS, "instances": fleet_of(engines, instance)}))


def with_settings(**values: Any) -> Settings:
    usual = {"requests": 6, "max_tokens": 40, "timeout_s": 60.0, "report_s": 0.02, "seed": 1}
    return Settings(**usual | values)


async def collected(
    config: FleetConfig,
    levels: Sequence[Level],
    *,
    questions: Sequence[Question] = QUESTIONS,
    on_progress: Callable[[Progress], None] = lambda _: None,
    show: Callable[[str], None] = lambda _: None,
    collection: Collection | None = None,
    settings: Settings | None = None,
    **values: Any,
) -> Collection:
    found = collection or Collection()
    asked = settings or with_settings(**values)
    async with open_engines(config, {}) as opened:
        await collect(opened, levels, questions, asked, found, show=show, on_progress=on_progress)
    return found


def asked(collection: Collection, instance: str, model: str) -> list[list[str]]:
    """By level the prompts that a candidate got."""
    return [
        [each.question.id for each in run.sent]
        for run in collection.runs
        if (run.engine.name, run.candidate.model) == (instance, model)
    ]


async def test_every_candidate_gets_the_same_prompts_at_every_level(engines: Engines) -> None:
    config = fleet(engines.vllm("a"), engines.ollama("b", "llama-3.1-8b", "qwen2.5-7b"))
    seen: list[tuple[int, int]] = []
    found = await collected(
        config,
        [Level(rate_per_s=200.0), Level(concurrency=3)],
        on_progress=lambda now: seen.append((now.ended, now.planned)),
    )
    assert found.finished
    assert found.left_out == {}
    first, second = asked(found, "a", "llama-3.1-8b")
    assert sorted(first + second) == sorted(each.id for each in QUESTIONS)
    assert asked(found, "b", "llama-3.1-8b") == asked(found, "b", "qwen2.5-7b") == [first, second]
    replies = [each.reply for run in found.runs for each in run.sent]
    assert {each.ended_how for each in replies} == {"ok"}
    for each in replies:
        assert each.first_token_at <= each.ended_at
        assert 1 <= (each.output_tokens or 0) <= 40
        assert each.prompt_tokens
        assert each.capped == (each.output_tokens == 40)
        assert each.text.startswith("Emulated text")
    assert {each.capped for each in replies} == {True, False}
    assert seen[-1] == (36, 36)
    kinds = {run.engine.name: bool(run.reports) for run in found.runs}
    assert kinds == {"a": True, "b": False}  # Ollama tells nothing of its load


async def test_a_closed_loop_has_so_many_in_flight_and_never_more(engines: Engines) -> None:
    found = await collected(fleet(engines.vllm("a")), [Level(concurrency=3)], requests=12)
    sent = found.runs[0].sent
    changes = sorted([(each.at, 1) for each in sent] + [(each.reply.ended_at or 0.0, -1) for each in sent])
    in_flight = list(itertools.accumulate(step for _, step in changes))
    assert in_flight[:3] == [1, 2, 3]
    assert max(in_flight) == 3


async def test_poisson_arrivals_follow_from_the_seed_not_from_the_answers(engines: Engines) -> None:
    slow = fleet(engines.vllm("a", speed=1.0))
    found = await collected(slow, [Level(rate_per_s=1000.0)], requests=12)
    (run,) = found.runs
    dispatched = sorted(each.at - run.start for each in run.sent)
    ended = min(each.reply.ended_at or 0.0 for each in run.sent) - run.start
    assert dispatched[6] < ended  # half of them were sent before the first answer was there


async def test_failures_and_time_outs_are_kept_as_what_they_are(engines: Engines) -> None:
    for engine in (engines.vllm("a"), engines.ollama("b", "qwen2.5-7b")):
        kinds = ["cut_mid_stream", "error_mid_stream", "status", "truncate_without_done"]
        waiting = [
            *(fault(kind, count=1, **({} if kind == "status" else {"after_tokens": 2})) for kind in kinds),
            fault("hang_before_first_token", count=1),
            fault("hang_mid_stream", count=1, after_tokens=2),
        ]
        limits_s = [*[60.0] * len(kinds), 0.2, 2.0, 60.0]  # of what hangs a short one
        settings = with_settings(requests=8)

        def arm(
            now: Progress,
            engine: EmulatedInstance = engine,
            waiting: list[Any] = waiting,
            settings: Settings = settings,
            limits_s: list[float] = limits_s,
        ) -> None:
            if limits_s and now.ended == now.sent:
                object.__setattr__(settings, "timeout_s", limits_s.pop(0))
                engine.faults += waiting[:1]
                del waiting[:1]

        questions = [Question(f"What of {n}?", max_tokens=16) for n in range(8)]
        found = await collected(
            fleet(engine), [Level(concurrency=1)], questions=questions, settings=settings, on_progress=arm
        )
        replies = [each.reply for each in found.runs[0].sent]
        assert [each.ended_how for each in replies] == ["ok", *["failed"] * 4, *["cancelled"] * 2, "ok"]
        assert [each.first_token_at is None for each in replies[3:7]] == [True, False, True, False]
        assert all(each.error for each in replies[1:5])
        waited = [(s.reply.ended_at or 0.0) - s.at for s in found.runs[0].sent[5:7]]
        assert waited[0] >= 0.2
        assert waited[1] >= 2.0


async def test_what_cannot_be_asked_is_told_and_the_rest_goes_on(engines: Engines) -> None:
    config = loads(
        yaml.safe_dump(
            {
                "models": MODELS,
                "instances": [
                    *fleet_of([engines.vllm("a")], {}),
                    {
                        "name": "b",
                        "kind": "ollama",
                        "url": engines.ollama("x", "qwen2.5-7b").url,
                        "serves": {"llama-3.1-8b": "absent", "qwen2.5-7b": "qwen2.5-7b:latest"},
                    },
                    {"name": "c", "kind": "vllm", "url": "http://127.0.0.1:1", "serves": {"qwen2.5-7b": "q"}},
                ],
            }
        )
    )
    told: list[str] = []
    standing: list[Progress] = []
    found = await collected(config, [Level(concurrency=2)], show=told.append, on_progress=standing.append)
    assert found.finished
    seen = {(run.engine.name, run.candidate.model) for run in found.runs}
    assert seen == {("a", "llama-3.1-8b"), ("b", "qwen2.5-7b")}
    assert set(found.left_out) == {"b (llama-3.1-8b)", "c"}
    assert len(told) == 2
    assert all("\n" not in line for line in told)
    assert (standing[-1].planned, standing[-1].ended) == (12, 12)


@pytest.mark.parametrize("levels", [1, 3])
async def test_an_engine_that_dies_on_the_way_is_left_out_by_name(engines: Engines, levels: int) -> None:
    """Also if it had answered before, and if no level follows."""
    engine = engines.vllm("a")
    told: list[str] = []

    def kill(now: Progress) -> None:
        if now.ended == 2:
            engine.faults.append(fault("status", count=None))

    at = [Level(concurrency=number + 1) for number in range(levels)]
    found = await collected(fleet(engine), at, on_progress=kill, show=told.append)
    assert [[each.reply.ended_how for each in run.sent] for run in found.runs] == [
        ["ok", "ok", *["failed"] * 4]
    ]
    assert "does not answer" in found.left_out["a"]
    assert [line.split()[0] for line in told] == ["a"]


async def test_a_stop_keeps_what_was_collected(engines: Engines) -> None:
    found = Collection()
    config = fleet(engines.vllm("a", speed=1.0))
    collecting = asyncio.ensure_future(
        collected(
            config,
            [Level(rate_per_s=50.0), Level(rate_per_s=1.0)],
            collection=found,
            requests=12,
            max_tokens=400,
            on_progress=lambda now: collecting.cancel() if now.ended == 3 else None,
        )
    )
    with suppress(asyncio.CancelledError):
        await collecting
    assert not found.finished
    (run,) = found.runs
    ends = [each.reply.ended_how for each in run.sent]
    assert ends.count("ok") >= 3
    assert set(ends) == {"ok", "cancelled"}
    assert all(each.reply.ended_at is not None for each in run.sent)


@pytest.mark.parametrize("told", [23, {"llama-3.1-8b": 23, "other": 5}])
async def test_an_emulated_vllm_can_be_told_the_lengths(engines: Engines, told: Any) -> None:
    questions = [Question("How long?", output_tokens=told)]
    config = fleet(engines.vllm("a"))
    for emulate in (True, False):
        found = await collected(
            config, [Level(concurrency=1)], questions=questions, requests=1, emulate_lengths=emulate
        )
        (sent,) = found.runs[0].sent
        assert (sent.reply.output_tokens == 23) is emulate
