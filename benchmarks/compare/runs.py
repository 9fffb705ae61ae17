"""The runs of a comparison or an experiment, kept as files so that an interrupted one goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

import backends
import benchmarks
import policies
import predictors
import router
from benchmarks.checks import json_object
from benchmarks.compare.pool import Processes
from benchmarks.workloads.format import WorkloadError, writing, written_whole

Trial = TypeVar("Trial")

_SETTINGS_FILE = "settings.json"


@cache
def program() -> str:
    """A digest of the code that makes a run's numbers: another program's runs are no match for this one's."""
    found = sha256()
    for package in (router, policies, predictors, backends, benchmarks):
        root = Path(package.__path__[0])
        for file in sorted(root.rglob("*.py")):
            found.update(f"{root.name}/{file.relative_to(root)}\0".encode() + file.read_bytes())
    return found.hexdigest()


class RunFolder:
    """`DIR/runs`: settings and one JSON file for each finished run, by the run's name."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Opens or creates it. A WorkloadError if it holds runs made with other settings."""
        self.path = path
        wanted = orjson.loads(orjson.dumps(settings))
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            file = path / _SETTINGS_FILE
            if file.exists():
                kept = _read_json(file)
                if not isinstance(kept.get("settings"), dict) or "salt" not in kept:
                    raise WorkloadError(f"{file}: not the settings of a comparison; remove {path}")
                before = kept["settings"]
                changed = sorted(name for name in {*wanted, *before} if wanted.get(name) != before.get(name))
                if changed and any(each != file for each in path.iterdir()):
                    raise WorkloadError(
                        f"{path} holds runs made with another {changed[0]}; give another --out, or remove it"
                    )
                self.salt = str(kept["salt"])
            else:
                # Made-up prompts differ between comparisons, so that no engine still has them in its cache.
                self.salt = str(time.time_ns())
            _write_json(file, {"salt": self.salt, "settings": wanted})

    def load(self, name: str) -> dict[str, Any] | None:
        """A finished run, or None; what cannot be read counts as not there and is run again."""
        try:
            return _read_json(self._file(name))
        except (OSError, WorkloadError):
            return None

    def save(self, name: str, run: Mapping[str, Any]) -> None:
        """Keep a finished run; a file is there whole or not at all."""
        with writing(self.path):
            _write_json(self._file(name), run)

    def _file(self, name: str) -> Path:
        return self.path / f"{name.replace('/', '_')}.json"


class KeptRuns(Generic[Trial]):
    """Runs trials, and keeps what came of each in a file of JSON lines, under its key: a text that tells trials apart. Runs
    of another program, and a line that a kill has cut, count as not there."""

    def __init__(
        self,
        file: Path,
        processes: Processes,
        run: Callable[[Trial], dict[str, Any]],
        key: Callable[[Trial], str],
    ) -> None:
        """A WorkloadError for a file that cannot be written."""
        self._file, self._processes, self._run, self._key = file, processes, run, key
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
            with file.open("ab") as kept:
                kept.write(b"\n" if lines and not lines[-1].endswith(b"\n") else b"")
        rows = [row for row in map(json_object, lines) if row is not None and row.get("program") == program()]
        self._known: dict[str, dict[str, Any]] = {row["key"]: row["run"] for row in rows}

    def of(self, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        """What came of each trial; those that have not run do so now."""
        keys = [self._key(trial) for trial in trials]
        missing = [place for place, key in enumerate(keys) if key not in self._known]
        runs = self._processes.run(self._run, [trials[place] for place in missing])
        with self._file.open("ab") as file:
            for done, (index, result) in enumerate(runs, start=1):
                key = keys[missing[index]]
                self._known[key] = result
                file.write(orjson.dumps({"key": key, "program": program(), "run": result}) + b"\n")
                file.flush()
                print(f"{done}/{len(missing)} {key}", file=sys.stderr, flush=True)
        return [self._known[key] for key in keys]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise WorkloadError(f"{path}: not valid JSON ({error.msg}); remove {path.parent}") from None
    if not isinstance(data, dict):
        raise WorkloadError(f"{path}: not a JSON object; remove {path.parent}")
    return data


def _write_json(path: Path, data: Any) -> None:
    with written_whole(path) as part:
        part.write_bytes(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY))
