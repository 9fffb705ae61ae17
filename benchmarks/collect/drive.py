"""Sends the load: each engine goes through the levels at its own pace, all engines at once.

A level is a Poisson rate (open loop: each request at its own time, whatever became of those before it) or a
number of requests that are always in flight (closed loop). Every candidate gets the same prompts in the same
order, the next level those that follow. Before its first level a candidate gets one short request that is not
kept: it opens the connection, loads the model, and shows whether the candidate answers at all.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.collect.clients import Reply
from benchmarks.collect.engines import Engine
from benchmarks.collect.prompts import Question
from benchmarks.workloads.sources.generators import poisson
from router.core.errors import UpstreamError
from router.core.types import Candidate, EndedHow, LoadReport

_WARM_UP = "Say hello."
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Level:
    """One load: arrivals a second at each instance, or requests in flight at each."""

    rate_per_s: float | None = None
    concurrency: int | None = None

    @property
    def name(self) -> str:
        return f"{self.rate_per_s:g}/s" if self.rate_per_s is not None else f"{self.concurrency} at once"

    def times(self, rng: Random) -> Iterator[float]:
        """When requests are due, in seconds from the level's start."""
        return itertools.repeat(0.0) if self.rate_per_s is None else poisson(rng, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Settings:
    """`requests` a level and candidate; `max_tokens` bounds every answer; `report_s` between two looks at an
    engine's load."""

    requests: int
    max_tokens: int
    timeout_s: float
    report_s: float
    seed: int
    emulate_lengths: bool = False


@dataclass(slots=True)
class Sent:
    """One request that was sent; `at` on `time.perf_counter`."""

    question: Question
    max_tokens: int
    at: float
    reply: Reply


@dataclass(slots=True)
class Run:
    """One candidate under one level. `started_at_s` since the epoch is the moment `start` of
    `time.perf_counter`; `reports` have their time on the latter."""

    engine: Engine
    candidate: Candidate
    level: Level
    started_at_s: float
    start: float
    sent: list[Sent] = field(default_factory=list)
    reports: list[tuple[float, LoadReport]] = field(default_factory=list)


@dataclass(slots=True)
class Collection:
    """What was seen so far. It grows as things happen, so that an interrupted collection is kept. `left_out`
    says of engines, or of one of its models, why no more was asked."""

    runs: list[Run] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    finished: bool = False


@dataclass(slots=True)
class Progress:
    """How a collection stands. `planned` falls when an engine is left out."""

    planned: int
    sent: int = 0
    ended: int = 0
    failed: int = 0


async def collect(
    engines: Sequence[Engine],
    levels: Sequence[Level],
    questions: Sequence[Question],
    settings: Settings,
    collection: Collection,
    *,
    show: Callable[[str], None],
    on_progress: Callable[[Progress], None],
) -> None:
    """Do all of it, into `collection`. `show` gets one line about each engine that does not answer."""
    order = list(questions)
    Random(settings.seed).shuffle(order)
    await _Driver(levels, order, settings, collection, show, on_progress).all(engines)
    collection.finished = True


@dataclass(slots=True)
class _Driver:
    levels: Sequence[Level]
    questions: Sequence[Question]
    settings: Settings
    collection: Collection
    show: Callable[[str], None]
    on_progress: Callable[[Progress], None]
    progress: Progress = field(default_factory=lambda: Progress(0))

    async def all(self, engines: Sequence[Engine]) -> None:
        candidates = sum(len(each.candidates) for each in engines)
        self.progress.planned = candidates * len(self.levels) * self.settings.requests
        async with asyncio.TaskGroup() as tasks:
            for each in engines:
                tasks.create_task(self._engine(each), name=each.name)

    async def _engine(self, engine: Engine) -> None:
        """All of one engine: its models one after another, so that none is loaded and dropped in between."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                healthy = await engine.backend.probe()
        except (UpstreamError, TimeoutError):
            healthy = False
        if not healthy:
            self._leave_out(engine, engine.candidates, len(self.levels), "does not answer")
            return
        for candidate in engine.candidates:
            await self._candidate(engine, candidate)

    async def _candidate(self, engine: Engine, candidate: Candidate) -> None:
        answered = False
        for number, level in enumerate((*self.levels, None)):
            # At first, and after a level whose last request was not answered: overloaded, or gone?
            if not answered and (reason := await self._warm_up(engine, candidate)) is not None:
                self._leave_out(engine, [candidate], len(self.levels) - number, reason)
                return
            if level is not None:
                run = await self._run(engine, candidate, number, level)
                answered = run.sent[-1].reply.ended_how is EndedHow.OK

    def _leave_out(self, engine: Engine, candidates: Sequence[Candidate], levels: int, reason: str) -> None:
        name = engine.name
        if len(candidates) < len(engine.candidates):
            name = f"{name} ({', '.join(each.model for each in candidates)})"
        self.collection.left_out[name] = reason
        self.show(f"{name} {reason}; left out from here on")
        self.progress.planned -= len(candidates) * levels * self.settings.requests
        self.on_progress(self.progress)

    async def _warm_up(self, engine: Engine, candidate: Candidate) -> str | None:
        """Send one short request. Returns why the candidate does not answer; None if it does."""
        reply = await self._ask(engine, candidate, _WARM_UP, _WARM_UP_TOKENS, Reply())
        if reply.ended_how is EndedHow.OK:
            return None
        return f"does not answer: {reply.error or 'no answer in time'}"

    async def _run(self, engine: Engine, candidate: Candidate, number: int, level: Level) -> Run:
        settings = self.settings
        questions = itertools.islice(
            itertools.cycle(self.questions),
            (first := number * settings.requests % len(self.questions)),
            first + settings.requests,
        )
        times = level.times(Random(f"{settings.seed}/{engine.name}/{candidate.model}/{level.name}"))
        run = Run(engine, candidate, level, time.time(), time.perf_counter())
        self.collection.runs.append(run)
        watch = asyncio.create_task(self._watch(run), name=f"load of {engine.name}")
        places = asyncio.Semaphore(level.concurrency) if level.concurrency is not None else None
        try:
            async with asyncio.TaskGroup() as tasks:
                for question, due_s in zip(questions, times, strict=False):
                    await asyncio.sleep(max(0.0, run.start + due_s - time.perf_counter()))
                    if places is not None:
                        await places.acquire()
                    tasks.create_task(self._send(run, question, places))
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        return run

    async def _send(self, run: Run, question: Question, places: asyncio.Semaphore | None) -> None:
        settings = self.settings
        max_tokens = min(question.max_tokens or settings.max_tokens, settings.max_tokens)
        sent = Sent(question, max_tokens, time.perf_counter(), Reply())
        run.sent.append(sent)
        self.progress.sent += 1
        emulated_tokens = _emulated_tokens(question, run.candidate) if settings.emulate_lengths else None
        try:
            await self._ask(
                run.engine, run.candidate, question.prompt, max_tokens, sent.reply, emulated_tokens
            )
        finally:
            if places is not None:
                places.release()
            self.progress.ended += 1
            self.progress.failed += sent.reply.ended_how is not EndedHow.OK
            self.on_progress(self.progress)

    async def _ask(
        self,
        engine: Engine,
        candidate: Candidate,
        prompt: str,
        max_tokens: int,
        reply: Reply,
        output_tokens: int | None = None,
    ) -> Reply:
        """Ask within the time limit. One that is given up, by us or by the limit, ends as `cancelled`."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                await engine.client.ask(candidate, prompt, max_tokens, reply, output_tokens)
        except TimeoutError:
            reply.ended_at = time.perf_counter()
        except asyncio.CancelledError:
            reply.ended_at = time.perf_counter()
            raise
        return reply

    async def _watch(self, run: Run) -> None:
        """Read the engine's load until cancelled. An engine that reports none adds nothing."""
        while True:
            try:
                report = await run.engine.backend.load()
            except UpstreamError:
                report = LoadReport()
            if (report.running, report.waiting, report.kv_usage) != (None, None, None):
                run.reports.append((time.perf_counter(), report))
            await asyncio.sleep(self.settings.report_s)


def _emulated_tokens(question: Question, candidate: Candidate) -> int | None:
    """The true length of this model's answer, where the prompts' file knows it."""
    tokens = question.output_tokens
    return tokens.get(candidate.model) if isinstance(tokens, Mapping) else tokens
