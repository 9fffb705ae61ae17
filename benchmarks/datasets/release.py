"""A release of training data: what the licences of its sources allow, split, with a card (`card.txt`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.datasets.card import card
from benchmarks.datasets.contents import rows_by_source
from benchmarks.datasets.sources import load
from benchmarks.datasets.splits import split_runs_and_time
from benchmarks.datasets.terms import TERMS
from predictors.training.dataset import Dataset, DatasetError, Prompt, split_prompts, write

TRAIN, HELD_OUT = "train", "held_out"


@dataclass(frozen=True, slots=True)
class Released:
    """The parts of a release, and by source why it was left out."""

    train: Dataset
    held_out: Dataset
    left_out: Mapping[str, str]

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """What each part has of each source."""
        return {TRAIN: rows_by_source(self.train), HELD_OUT: rows_by_source(self.held_out)}


def release(
    paths: Sequence[str], out: Path, *, non_commercial: bool = False, held_out: float = 0.2, seed: int = 0
) -> Released:
    """Write the data that `paths` name (as for `load`) to `out`. Raises DatasetError."""
    if out.exists() and any(out.iterdir()):
        raise DatasetError(f"{out}: is not empty")
    data = load(paths)
    licences = {str(row["name"]): row["licence"] for row in rows_by_source(data)}
    reasons = {name: _why_not(name, licence, non_commercial) for name, licence in licences.items()}
    left_out = {name: why for name, why in reasons.items() if why}
    kept = data.keep(
        prompt=lambda each: each.source not in left_out, run=lambda each: each.source not in left_out
    )
    if not kept.prompts and not kept.runs:
        why = "; ".join(map(": ".join, left_out.items())) or "the data are empty"
        raise DatasetError(f"nothing may be released: {why}")
    released = Released(*_split(_without_private_values(kept), held_out, seed), left_out)
    rows = released.rows()
    for name, part in ((TRAIN, released.train), (HELD_OUT, released.held_out)):
        write(replace(part, about={"sources": rows[name]}), out / name)
    text = card(rows, left_out, held_out=held_out, seed=seed, non_commercial=non_commercial)
    (out / "README.md").write_text(text, encoding="utf-8")
    return released


def _why_not(source: str, licence: str | None, non_commercial: bool) -> str:
    """Why a source's rows may not be passed on; "" if they may. What is in no table is the publisher's own, if its licence is
    told."""
    if source not in TERMS:
        return "" if licence else "no licence is told, or not the same one for all of it"
    allowed = ("any", "non_commercial") if non_commercial else ("any",)
    return "" if TERMS[source].release in allowed else TERMS[source].why_not


def _without_private_values(data: Dataset) -> Dataset:
    """Without texts that may not be passed on; of the operator's own data without any text, and without sessions, which
    name clients' keys."""
    own = {run.id for run in data.runs if run.source not in TERMS}
    return replace(
        data,
        prompts=tuple(each if _has_text(each) else replace(each, text=None) for each in data.prompts),
        attempts=tuple(replace(each, session=None) if each.run in own else each for each in data.attempts),
    )


def _has_text(prompt: Prompt) -> bool:
    terms = TERMS.get(prompt.source)
    return terms is not None and terms.texts and prompt.task not in terms.withheld_tasks


def _split(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Prompts by group; runs by level, else by time."""
    parts = zip(split_prompts(data, share, seed), split_runs_and_time(data, share, seed), strict=True)
    train, held_out = (
        replace(runs, prompts=prompts.prompts, answers=prompts.answers) for prompts, runs in parts
    )
    return train, held_out
