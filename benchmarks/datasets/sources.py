"""What a user names as data, read and joined: `load(["records.sqlite", "emulated"])`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from backends import KINDS
from benchmarks.datasets.conversations import is_conversations, read_conversations
from benchmarks.datasets.emulated import SOURCE as EMULATED
from benchmarks.datasets.emulated import emulate
from benchmarks.datasets.from_store import read_store
from benchmarks.datasets.groups import join_and_group
from benchmarks.datasets.public import present, read_public
from predictors.training.dataset import Dataset, DatasetError, Run, read
from router.config import FleetConfig


def load(
    paths: Sequence[str],
    *,
    since: float | None = None,
    fleet: FleetConfig | None = None,
    seed: int = 1,
    sets: Sequence[str] | None = None,
) -> Dataset:
    """All that `paths` name, as one data set. Each is

    - the word `emulated`: made now by the simulator (`seed`);
    - a folder of a data set (it has a dataset.json);
    - a folder of published sets, like the one that HEADWAY_DATA names (`sets`: only these of them);
    - conversations, a file or a folder (`read_conversations`);
    - the gateway's database, a SQLite file or a URL. `since` (seconds since the epoch) and `fleet` are for it alone.

    Raises DatasetError, in one line."""
    if not paths:
        raise DatasetError("no data: name a data set, a folder of published sets, a database or `emulated`")
    return join_and_group(_read(path, since, fleet, seed, sets) for path in paths)


def is_database(name: str) -> bool:
    """Whether `load` takes this for a gateway's database, if it is there."""
    path = Path(name)
    return "://" in name or (name != EMULATED and not path.is_dir() and not is_conversations(path))


def _read(
    name: str, since: float | None, fleet: FleetConfig | None, seed: int, sets: Sequence[str] | None
) -> Dataset:
    path = Path(name)
    if name == EMULATED:
        return emulate(seed=seed)
    if path.is_file() and is_conversations(path):
        return read_conversations(path)
    if "://" in name or path.is_file():
        return read_store(name, since=since, fleet=fleet)
    if not path.is_dir():
        raise DatasetError(f"{name}: there is no such file or folder")
    if (path / "dataset.json").is_file():
        data = read(path)
        return replace(data, runs=tuple(map(_with_seats, data.runs)))
    if sets or present(path):
        return read_public(path, sets)
    if is_conversations(path):
        return read_conversations(path)
    raise DatasetError(f"{name}: neither a data set (dataset.json), nor published sets, nor conversations")


def _with_seats(run: Run) -> Run:
    """A run of a data set from a version whose runs had no `fixed_slots`: it follows from the engine's kind."""
    if run.fixed_slots is not None or run.kind not in KINDS:
        return run
    return replace(run, fixed_slots=KINDS[run.kind].fixed_slots)
