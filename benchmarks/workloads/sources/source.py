"""What a source is: one public set (or generator), where its files are, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.workloads.clients import ClientPool
from benchmarks.workloads.format import WorkloadRequest

#: Own model name -> names it has in a set, the first one found is taken.
ModelNames = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of a reader. `models`: whose answers give the lengths ({our name: names in the set}; None:
    the set's default). `native_lengths`: token counts of the models' own tokenizers where the data folder
    has them, in place of characters / a constant. `quality`: keep true quality by model where it is known.
    `complete`: leave out prompts that lack one of the models, or its quality where that is kept."""

    models: ModelNames | None = None
    native_lengths: bool = False
    quality: bool = False
    complete: bool = False


#: Requests, or clients from whose traffic they are drawn.
Contents = list[WorkloadRequest] | ClientPool
#: Gets the source's name, its files and the choices.
Reader = Callable[[str, Sequence[Path], Choices], Contents]


@dataclass(frozen=True, slots=True)
class Source:
    """A public set. `timed`: it has arrival times; `texts`: it has prompts. `folder_files` are its files under HEADWAY_DATA
    (all are needed), `urls` gives the published originals (commits are pinned, so the content is too). A folder that is
    given stands for the files in it that match `patterns`. `original_quality`: the originals have quality too.
    `lengths_unknown`: there are prompts, but no lengths of answers."""

    name: str
    title: str
    licence: str
    folder_files: tuple[str, ...]
    read_folder: Reader
    read_original: Reader
    urls: Callable[[Choices], Sequence[str]]
    timed: bool = False
    texts: bool = False
    models: ModelNames = field(default_factory=dict)
    patterns: tuple[str, ...] = ("*.json",)
    original_quality: bool = False
    lengths_unknown: bool = False
