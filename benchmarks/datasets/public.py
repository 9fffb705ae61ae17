"""Published sets, from a folder like the one that HEADWAY_DATA names: one subfolder a set. None comes with Headway
(docs/datasets.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.datasets.engine_logs import ENGINE_LOGS
from benchmarks.datasets.prompt_sets import PROMPT_SETS, read_prompt_sets
from benchmarks.workloads.format import WorkloadError
from predictors.training.dataset import Dataset, DatasetError, joined

#: Names of the sets that can be read.
PUBLIC: tuple[str, ...] = (*PROMPT_SETS, *ENGINE_LOGS)


def folder_of(name: str) -> str:
    """The subfolder in which a set lies."""
    return name if name in PROMPT_SETS else ENGINE_LOGS[name][0]


def present(folder: Path | None, names: Iterable[str] = PUBLIC) -> list[str]:
    """Those of the sets that the folder has; None is no folder."""
    return [] if folder is None else [name for name in names if (folder / folder_of(name)).is_dir()]


def read_public(folder: Path, names: Sequence[str] | None = None) -> Dataset:
    """The named sets (None: all that the folder has) as one data set. Raises DatasetError for a set that is not
    there or not as published."""
    unknown = [name for name in names or () if name not in PUBLIC]
    if unknown:
        raise DatasetError(f"no set {unknown[0]!r}: there are {', '.join(PUBLIC)}")
    there = present(folder)
    wanted = there if names is None else [name for name in PUBLIC if name in names]
    missing = [name for name in wanted if name not in there]
    if missing or not wanted:
        raise DatasetError(f"{folder}: has no folder {folder_of((missing or PUBLIC)[0])}")
    try:
        prompts = {name: folder / name for name in wanted if name in PROMPT_SETS}
        parts = [read_prompt_sets(prompts)] if prompts else []
        parts += [ENGINE_LOGS[name][1](folder / folder_of(name)) for name in wanted if name in ENGINE_LOGS]
    except WorkloadError as error:
        raise DatasetError(str(error)) from error
    return joined(parts)
