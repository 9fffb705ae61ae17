"""What became of a simulated run's requests: typed columns, some 100 bytes a request, however long the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log, nan
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from benchmarks.workloads.format import written_whole
from router.compiled import compiled_init
from router.core.settlement import Settlement
from router.core.types import Outcome, Prediction, Request

OUTCOMES: tuple[str, ...] = tuple(outcome.value for outcome in Outcome)
_CODE = {outcome: code for code, outcome in enumerate(Outcome)}

#: Columns and their type codes, those of `struct`. Times in seconds; unknown is NaN; `instance` and `model` index the
#: run's names, with their count for none; `met` is 1, 0, or 2 for no SLO.
COLUMNS: dict[str, str] = {
    "index": "q",  # place in the workload
    "arrival_s": "d",
    "outcome": "B",
    "met": "B",
    "hard": "B",
    "instance": "H",
    "model": "H",
    "attempts": "B",  # all of them, hedges too
    "hedged": "B",
    "prompt_tokens": "i",
    "output_tokens": "i",
    "ttft_s": "d",
    "tpot_s": "f",
    "e2e_s": "d",
    "queue_wait_s": "f",
    "cost_usd": "d",
    "max_cost_usd": "f",
    "budget_overrun_usd": "f",
    "quality": "f",  # true quality of the answer that was given; NaN if unknown or none was
    "slo_ttft_s": "f",
    "slo_tpot_s": "f",
    "slo_e2e_s": "f",
    "predicted_ttft_s_p50": "f",
    "predicted_ttft_s_p95": "f",
    "predicted_e2e_s_p50": "f",
    "p_miss": "f",
    "propensity": "f",  # probability with which the policy took it; NaN if there were several attempts
}
_NO_PREDICTION = Prediction()
#: A request's row, without padding.
_ROW = Struct("=" + "".join(COLUMNS.values()))


_MOST = float(np.finfo(np.float32).max)


def _number(value: float | None) -> float:
    return nan if value is None else value


def _single(value: float | None) -> float:
    """A client's bound in single precision: one beyond its range bounds nothing either way."""
    if value is None:
        return nan
    return value if value < _MOST else _MOST


class Log:
    """Rows in the order in which requests end."""

    def __init__(self, instances: Sequence[str], models: Sequence[str]) -> None:
        self.instances = tuple(instances)
        self.models = tuple(models)
        self._instance = {name: index for index, name in enumerate(self.instances)}
        self._model = {name: index for index, name in enumerate(self.models)}
        self._rows = bytearray()

    def add(self, index: int, request: Request, settlement: Settlement, quality: float) -> None:
        """One request has ended. `index` is its place in the workload, `quality` the true one of its answer (NaN:
        unknown, or there is no answer)."""
        slo, answer = request.slo, settlement.answer
        instance, model, propensity = len(self.instances), len(self.models), None
        prediction, output_tokens, attempts = _NO_PREDICTION, 0, len(settlement.attempts)
        if answer is not None:
            prediction, output_tokens = answer.prediction, answer.output_tokens
            propensity = answer.propensity if attempts == 1 else None  # as in the records
            instance = self._instance[answer.candidate.instance]
            model = self._model[answer.candidate.model]
        met = settlement.slo_met
        self._rows += _ROW.pack(
            index,
            request.arrived_at,
            _CODE[settlement.outcome],
            2 if met is None else met,
            request.hard,
            instance,
            model,
            attempts,
            settlement.hedged,
            request.prompt_tokens,
            output_tokens,
            _number(settlement.ttft_s),
            _number(settlement.tpot_s),
            settlement.e2e_s,
            settlement.queue_wait_s,
            settlement.cost_usd,
            _single(request.max_cost_usd),
            _number(settlement.overrun_usd),
            quality,
            nan if slo is None else _single(slo.ttft_s),
            nan if slo is None else _single(slo.tpot_s),
            nan if slo is None else _single(slo.e2e_s),
            _number(prediction.ttft_s_p50),
            _number(prediction.ttft_s_p95),
            _number(prediction.e2e_s_p50),
            _number(prediction.p_miss),
            _number(propensity),
        )

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns in the workload's order."""
        rows = np.frombuffer(self._rows, dtype=[(name, f"={code}") for name, code in COLUMNS.items()])
        order = np.argsort(rows["index"], kind="stable")
        return {name: rows[name][order] for name in COLUMNS}


class Gaps:
    """Gaps between tokens, counted in bins of one per cent."""

    _BINS_A_LOG = 100

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, gap_s: float, count: int) -> None:
        place = round(log(gap_s) * self._BINS_A_LOG)
        counts = self._counts
        counts[place] = counts.get(place, 0) + count

    def arrays(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Gaps in seconds, rising, and how many there were of each."""
        places = sorted(self._counts)
        gaps_s = np.exp(np.array(places, dtype=np.float64) / self._BINS_A_LOG)
        return gaps_s, np.array([self._counts[place] for place in places], dtype=np.int64)


@compiled_init
class LoadSample(NamedTuple):
    """One instance at one moment. `in_flight` is the router's count; `kv_usage` is None for an engine with slots."""

    at_s: float
    instance: int
    in_flight: int
    running: int
    waiting: int
    kv_usage: float | None


@dataclass(slots=True)
class Timeline:
    """Load by instance over time, thinned so that it stays below `most` moments."""

    most: int = 600
    every: int = 1  # rounds between two moments that are kept
    moments: list[list[LoadSample]] = field(default_factory=list)
    _rounds: int = 0

    def wanted(self) -> bool:
        """Whether the round that comes is kept."""
        self._rounds += 1
        return (self._rounds - 1) % self.every == 0

    def add(self, samples: list[LoadSample]) -> None:
        self.moments.append(samples)
        if len(self.moments) >= self.most:
            self.moments = self.moments[::2]
            self.every *= 2

    def __iter__(self) -> Iterator[LoadSample]:
        return (sample for samples in self.moments for sample in samples)


class Change(NamedTuple):
    """A decision: how many instances a pool is to have, and how many are ready then."""

    at_s: float
    pool: str
    desired: int
    ready: int


@dataclass(slots=True)
class Usage:
    """What a run's instances took. `instance_s` by pool; `drained` counts instances that were given up while requests
    were under way there."""

    gpu_hours: float = 0.0
    usd: float = 0.0
    instance_s: dict[str, float] = field(default_factory=dict)
    warm_starts: int = 0
    cold_starts: int = 0
    drained: int = 0
    changes: list[Change] = field(default_factory=list)

    def decided(self, change: Change) -> None:
        """Keep a decision that differs from the pool's last one."""
        last = next((each for each in reversed(self.changes) if each.pool == change.pool), None)
        if last is None or last[2:] != change[2:]:
            self.changes.append(change)

    def pay(self, name: str, seconds: float, gpus: int, usd_per_hour: float) -> None:
        self.gpu_hours += seconds / 3600 * gpus
        self.usd += seconds / 3600 * usd_per_hour
        self.instance_s[name] = self.instance_s.get(name, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class Result:
    """A finished simulation. `columns` as in COLUMNS, in the workload's order; `decision_s` are wall-clock
    seconds of a sample of arrivals' decisions, `wall_s` of the whole run, `events` its number of events, `preemptions` how often an
    engine took a sequence back for lack of KV memory, `usage` what its instances took, if they were scaled."""

    instances: tuple[str, ...]
    models: tuple[str, ...]
    columns: dict[str, npt.NDArray[Any]]
    timeline: Timeline
    gaps: Gaps
    decision_s: tuple[float, ...]
    wall_s: float
    end_s: float
    events: int
    preemptions: int = 0
    usage: Usage | None = None

    def __len__(self) -> int:
        return len(self.columns["index"])

    def save(self, path: Path) -> None:
        """Keep names and columns as plain arrays (.npz); the file is there whole or not at all."""
        names = {"instances": np.array(self.instances), "models": np.array(self.models)}
        with written_whole(path) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **names, **self.columns)

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save` kept; the timeline and timings are empty."""
        with np.load(path, allow_pickle=False) as data:
            columns = {name: data[name] for name in COLUMNS}
            instances, models = (tuple(map(str, data[name])) for name in ("instances", "models"))
        return cls(instances, models, columns, Timeline(), Gaps(), (), 0.0, 0.0, 0)
