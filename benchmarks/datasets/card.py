"""The card of a release (`card.txt`): what it has, from where, under which terms, how it is split, and what is wrong with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from benchmarks.datasets.groups import SHARED_PART, SHINGLE_WORDS
from benchmarks.datasets.terms import TERMS, Terms
from benchmarks.pages import marked, render
from predictors.training.dataset import TABLES

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
