"""The runs of a comparison: one for each rate and policy, kept as files so that an interrupted one resumes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from benchmarks.replay.row import Row, row_from_dict
from benchmarks.workloads.format import WorkloadError, WorkloadRequest

_SETTINGS_FILE = "settings.json"


@dataclass(frozen=True, slots=True)
class Run:
    """One policy at one rate. `rate_per_s` None is the workload's own rate."""

    policy: str
    rate_per_s: float | None

    @property
    def name(self) -> str:
        return f"{self.policy}@{'own' if self.rate_per_s is None else format(self.rate_per_s, 'g')}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that came to its end."""

    run: Run
    started_at: float
    rows: tuple[Row, ...]


def plan(policies: Sequence[str], rates: Sequence[float] | None) -> list[Run]:
    """The runs in order: all policies at one rate, then at the next, so that an interrupted comparison has
    whole rates."""
    return [Run(policy, rate) for rate in (rates or (None,)) for policy in policies]


def settings_of(workload: Path, **settings: Any) -> dict[str, Any]:
    """What makes two runs comparable: the workload's bytes and how it is sent."""
    digest = sha256()
    try:
        with workload.open("rb") as data:
            while chunk := data.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise WorkloadError(f"cannot read {workload}: {error.strerror or error}") from error
    return {"workload_sha256": digest.hexdigest(), **settings}


class RunFolder:
    """`DIR/runs`: settings and one JSON file for each finished run."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Opens or creates it. A WorkloadError if it holds runs made with other settings."""
        self._folder = folder
        wanted = orjson.loads(orjson.dumps(settings))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / _SETTINGS_FILE
            if path.exists():
                kept = _read_json(path)
                changed = sorted(
                    name
                    for name in {*wanted, *kept["settings"]}
                    if wanted.get(name) != kept["settings"].get(name)
                )
                if changed:
                    raise WorkloadError(
                        f"{folder} holds runs made with another {changed[0]}; give another --out, or remove it"
                    )
                self.salt = str(kept["salt"])
            else:
                # Made-up prompts differ between comparisons, so that no engine still has them in its cache.
                self.salt = str(time.time_ns())
                _write_json(path, {"salt": self.salt, "settings": wanted})
        except OSError as error:
            raise WorkloadError(f"cannot write {folder}: {error.strerror or error}") from error

    def load(self, run: Run) -> RunResult | None:
        """A finished run, or None."""
        path = self._path(run)
        if not path.exists():
            return None
        data = _read_json(path)
        return RunResult(run, data["started_at"], tuple(row_from_dict(row) for row in data["rows"]))

    def save(self, result: RunResult) -> None:
        """Keep a finished run; a file is there whole or not at all."""
        data = {
            "policy": result.run.policy,
            "rate_per_s": result.run.rate_per_s,
            "started_at": result.started_at,
            "rows": [row.as_dict() for row in result.rows],
        }
        try:
            _write_json(self._path(result.run), data)
        except OSError as error:
            raise WorkloadError(f"cannot write {self._folder}: {error.strerror or error}") from error

    def _path(self, run: Run) -> Path:
        return self._folder / f"{run.name.replace('/', '_')}.json"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise WorkloadError(f"{path}: not valid JSON ({error.msg}); remove it to run again") from None
    if not isinstance(data, dict):
        raise WorkloadError(f"{path}: not a run; remove it to run again")
    return data


def _write_json(path: Path, data: Any) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(orjson.dumps(data))
    part.replace(path)


def at_rate(
    requests: Sequence[WorkloadRequest], own_rate_per_s: float | None, rate_per_s: float | None
) -> Iterator[WorkloadRequest]:
    """The requests with their times scaled so that they arrive at `rate_per_s` (None: as they are)."""
    factor = 1.0
    if rate_per_s is not None:
        if own_rate_per_s is None:
            raise WorkloadError("--rates needs a workload with at least two different arrival times")
        factor = own_rate_per_s / rate_per_s
    for request in requests:
        yield replace(request, arrival_s=request.arrival_s * factor)
