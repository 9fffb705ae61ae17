"""A release of training data: what the licences of its sources allow, split, with a card (`card.txt`): what it has, from where, under
which terms, how it is split, and what is wrong with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.datasets.contents import rows_by_source
from benchmarks.datasets.groups import SHARED_PART, SHINGLE_WORDS
from benchmarks.datasets.sources import load
from benchmarks.datasets.splits import split_runs_and_time
from benchmarks.datasets.terms import TERMS, Terms
from benchmarks.pages import marked, render
from predictors.training.dataset import TABLES, Dataset, DatasetError, Prompt, split_prompts, write

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


_COUNTED = ("prompts", "answers", "runs", "attempts")


def card(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    left_out: Mapping[str, str],
    *,
    held_out: float,
    seed: int,
    non_commercial: bool,
) -> str:
    """The card in Markdown. `rows` are the rows of each part by source (`rows_by_source`)."""
    licences = {str(row["name"]): row.get("licence") for found in rows.values() for row in found}
    counts = [
        (part, str(row["name"]), *(f"{row.get(table, 0):,}" for table in _COUNTED))
        for part, found in rows.items()
        for row in found
    ]
    return render(
        "datasets/card.txt",
        parts=[f"`{name}`" for name in rows],
        non_commercial=non_commercial,
        counts=marked.table(("part", "source", *_COUNTED), counts),
        tables=[
            (table, [f"`{each.name}`" for each in fields(row)], inspect.getdoc(row)) for table, row in TABLES
        ],
        held_out=f"{held_out:.0%}",
        shared_part=f"{SHARED_PART:.0%}",
        shingle_words=SHINGLE_WORDS,
        seed=seed,
        sources=marked.table(
            ("source", "content", "from", "licence", "texts of prompts"),
            (_source(name, licence) for name, licence in sorted(licences.items())),
        ),
        left_out=left_out,
        faults=[(name, each) for name in sorted(licences) if name in TERMS for each in TERMS[name].faults],
    )


def _source(name: str, licence: str | None) -> tuple[str, ...]:
    terms = TERMS.get(name)
    if terms is None:
        return name, "the publisher's own", "-", str(licence), "no"
    return name, terms.title, terms.origin, terms.licence, _texts(terms)


def _texts(terms: Terms) -> str:
    if not terms.texts:
        return "no"
    return f"yes, except {', '.join(sorted(terms.withheld_tasks))}" if terms.withheld_tasks else "yes"
