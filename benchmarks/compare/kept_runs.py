"""The runs of an experiment in one file of JSON lines, so that an interrupted experiment goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from benchmarks.compare.pool import Processes

Trial = TypeVar("Trial")


class KeptRuns(Generic[Trial]):
    """Runs trials, and keeps what came of each under its key, a text that tells trials apart."""

    def __init__(
        self,
        file: Path,
        processes: Processes,
        run: Callable[[Trial], dict[str, Any]],
        key: Callable[[Trial], str],
    ) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._processes, self._run, self._key = file, processes, run, key
        lines = file.read_bytes().splitlines() if file.exists() else []
        self._known: dict[str, dict[str, Any]] = {row["key"]: row["run"] for row in map(orjson.loads, lines)}

    def of(self, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        """What came of each trial; those that have not run do so now."""
        keys = [self._key(trial) for trial in trials]
        missing = [place for place, key in enumerate(keys) if key not in self._known]
        runs = self._processes.run(self._run, [trials[place] for place in missing])
        with self._file.open("ab") as file:
            for done, (index, result) in enumerate(runs, start=1):
                key = keys[missing[index]]
                self._known[key] = result
                file.write(orjson.dumps({"key": key, "run": result}) + b"\n")
                file.flush()
                print(f"{done}/{len(missing)} {key}", file=sys.stderr, flush=True)
        return [self._known[key] for key in keys]
