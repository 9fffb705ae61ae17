"""Single steps of the hot path, each by itself in this process: microseconds a call.

They say which step grew, and do not add up to the cost of a request: no sockets, no parsing of HTTP, everything warm in the caches.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from timeit import Timer

import policies
from backends.engine import profiles
from backends.scanning import SseScanner
from benchmarks.overhead import wire
from benchmarks.terminal import aligned
from predictors.learned.models import UNTRAINED, Models, load_models
from predictors.learned.text import prompt_features
from predictors.online.predictor import OnlinePredictor
from router.core.events import Arrived, Dispatch, Ended, FirstToken
from router.core.scheduler import Scheduler
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, LoadReport, Outcome, Price, Request, Slo
from router.gateway.telemetry.metrics import Metrics
from router.store import explanations
from router.store.queries import Store
from router.store.records import RequestRecord, attempt_row, request_row

_PROFILE = "llama-3.1-8b@a100-80g"
_MODEL = "llama-3.1-8b"
SLO = Slo(ttft_s=1.0, tpot_s=0.05, e2e_s=20.0)
_FEATURES = prompt_features("Write a function that merges two sorted lists, and say how long it takes. " * 3)
_REPEATS = 5
#: Candidates of the decisions with the shipped models.
_FLEETS = (16, 256, 4096)


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds that one call of a step takes: the median and the least of some repetitions."""

    step: str
    median_us: float
    least_us: float


def measure(least_s: float = 0.1, records: int = 500) -> list[Cost]:
    """Time every step, each repetition for about `least_s` seconds; the store with `records` a batch."""
    costs = [_time(name, step, calls, least_s) for name, step, calls in steps()]
    return [*costs, asyncio.run(write_to_sqlite(records))]


def text(costs: list[Cost]) -> str:
    rows = [(cost.step, f"{cost.median_us:.2f}", f"{cost.least_us:.2f}") for cost in costs]
    return "\n".join(aligned([("step", "median us", "least us"), *rows]))


def steps() -> Iterator[tuple[str, Callable[[], object], int]]:
    """Each step's name, a function that takes it, and how often that function takes it."""
    for policy in ("least_load", "latency"):
        for candidates in (8, 64):
            bench = SchedulerBench(policy, candidates)
            yield f"schedule a request to its end: {policy}, {candidates} candidates", bench.life, 1
    bench = SchedulerBench("latency", 8, SLO)
    yield "schedule a request to its end: latency, 8 candidates, SLO", bench.life, 1
    models = load_models()
    for candidates in _FLEETS:
        trained = SchedulerBench("slo", candidates, SLO, models)
        yield (
            f"schedule a request to its end: slo, {candidates} candidates, SLO, shipped models",
            trained.life,
            1,
        )
    yield "predict one candidate, no SLO", SchedulerBench("latency", 8).predict, 1
    yield "predict one candidate, TTFT, TPOT and E2E targets", bench.predict, 1
    yield "scan a stream's chunk, one event a read", scan(events=1), 1000
    yield "scan a stream's chunk, 16 events a read", scan(events=16), 1600
    record = finished_record()
    metrics = Metrics()
    metrics.set_fleet(policies=("least_load",), models=(_MODEL,), instances={"engine-0": "vllm"})
    yield "make a request's record", finished_record, 1
    yield "count a record in the metrics", lambda: metrics.record(record), 1
    yield "turn a record into rows and its explanation (writer)", lambda: encode(record), 1


class SchedulerBench:
    """A scheduler over a fleet of `candidates` instances with some load, and requests to put through it."""

    def __init__(
        self, policy: str, candidates: int, slo: Slo | None = None, models: Models = UNTRAINED
    ) -> None:
        predictor = OnlinePredictor(models)
        settings = policies.PolicySettings(cached_tokens=predictor.cached_tokens)
        instances = [_instance(number) for number in range(candidates)]
        self.scheduler = Scheduler(instances, policies.create_all(settings), predictor, rng=Random(1))
        self._predictor = predictor
        self._instance = instances[0]
        self._policy = policy
        self._slo = slo
        self._numbers = count()
        self._now = 0.0
        for _ in range(50):  # something to have learned from
            self.life()

    def life(self) -> None:
        """Arrival, decision, first token, end."""
        dispatch = self.dispatch()
        now, handle = self._now, self.scheduler.handle
        handle(FirstToken(dispatch.request_id, dispatch.attempt), now + 0.1)
        self._now = now + 1.0
        handle(Ended(dispatch.request_id, dispatch.attempt, EndedHow.OK, 100, 210), self._now)

    def dispatch(self) -> Dispatch:
        """A new request's way to its dispatch."""
        [instruction] = self.scheduler.handle(Arrived(self.request()), self._now)
        if not isinstance(instruction, Dispatch):
            raise TypeError("an idle fleet refused a request")
        return instruction

    def request(self) -> Request:
        return Request(
            f"req_{next(self._numbers)}",
            self._now,
            self._policy,
            (_MODEL,),
            prompt_tokens=200,
            prompt_tokens_bound=400,
            max_tokens=512,
            slo=self._slo,
            features=_FEATURES,
        )

    def predict(self) -> None:
        self._predictor.predict(self.request(), self._instance.candidates[_MODEL], self._instance, self._now)


def _instance(number: int) -> Instance:
    name = f"engine-{number}"
    candidate = Candidate(name, _MODEL, _MODEL, Price(0.05, 0.25), context_tokens=32_768, family="llama")
    instance = Instance(name, "vllm", {_MODEL: candidate}, profiles={_MODEL: profiles.profile(_PROFILE)})
    instance.takes_report(LoadReport(running=number % 7, waiting=0, kv_usage=0.1 * (number % 5)), 0.0)
    return instance


def scan(events: int) -> Callable[[], object]:
    """Scans a stream of ordinary chunks, `events` in a read: 1000 reads of one, else 100."""
    reads = 1000 if events == 1 else 100
    data = wire.content_event(1) * events

    def run() -> int:
        scanner = SseScanner(wire.MODEL)
        tokens = 0
        for _ in range(reads):
            batch = scanner.feed(data)
            tokens += batch.tokens if batch is not None else 0
        return tokens

    return run


def finished_record(request_id: str = "req_0") -> RequestRecord:
    """The record of a request that was served at once, with its decision."""
    dispatch = _dispatch()
    record = RequestRecord(
        id=request_id,
        received_at=1.0,
        outcome=Outcome.OK,
        api="chat",
        policy="least_load",
        model_requested=_MODEL,
        model=_MODEL,
        instance="engine-0",
        attempts=1,
        prompt_tokens=200,
        output_tokens=100,
        finish_reason="stop",
        decoded=True,
        ttft_s=0.1,
        tpot_s=0.01,
        e2e_s=1.1,
        cost_usd=0.00003,
        arrived_at=0.0,
    )
    record.set_prediction(dispatch.prediction)
    state = dispatch.state
    state.first_token_at, state.ended_at, state.ended_how = 0.1, 1.1, EndedHow.OK
    record.attempt_states = [state]
    record.decisions.append(dispatch.decision)
    return record


def encode(record: RequestRecord) -> object:
    """What the writer makes of a record before it goes to the database."""
    rows = [attempt_row(record, attempt) for attempt in record.attempt_states]
    return request_row(record), rows, explanations.encode(record)


async def write_to_sqlite(records: int) -> Cost:
    """CPU time (all threads) that a record takes from `put` to its commit, in batches of `records`."""
    values = []
    with TemporaryDirectory(prefix="headway-overhead-") as folder:
        store = await Store.open(f"sqlite+aiosqlite:///{Path(folder) / 'micro.db'}")
        try:
            for repeat in range(_REPEATS):
                made = [finished_record(f"req_{repeat}_{number}") for number in range(records)]
                began_s = time.process_time()
                for record in made:
                    store.writer.put(record)
                if not await store.writer.flush(60.0):
                    raise TimeoutError("SQLite did not take the records in time")
                values.append((time.process_time() - began_s) / records * 1e6)
        finally:
            await store.close()
    return Cost("write a record to SQLite, CPU of all threads (writer)", median(values), min(values))


def _time(name: str, step: Callable[[], object], calls: int, least_s: float) -> Cost:
    values = [value / calls for value in times_us(step, least_s, _REPEATS)]
    return Cost(name, median(values), min(values))


def times_us(step: Callable[[], object], least_s: float, repeats: int) -> list[float]:
    """Microseconds of one call of `step`, in repetitions of about `least_s` seconds each."""
    timer = Timer(step)
    step()
    number = max(1, round(least_s / max(timer.timeit(1), 1e-7)))
    gc.collect()
    return [took_s / number * 1e6 for took_s in timer.repeat(repeats, number)]


@cache
def _dispatch() -> Dispatch:
    return SchedulerBench("least_load", 2).dispatch()
