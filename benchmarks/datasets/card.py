"""The card of a release: what it has, from where, under which terms, how it is split, and what is wrong with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from benchmarks.datasets.groups import SHARED_PART, SHINGLE_WORDS
from benchmarks.datasets.terms import TERMS, Terms
from benchmarks.pages import marked
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
    parts = [
        "# Training data for length, latency, memory and relevance predictors",
        _use(rows, non_commercial),
        "## Rows\n\n" + _counts(rows),
        "## Fields\n\n" + _fields(),
        "## Splits\n\n" + _splits(held_out, seed),
        "## Sources\n\n" + _sources(rows),
    ]
    if left_out:
        parts.append("## Left out\n\n" + _list(f"`{name}`: {why}." for name, why in sorted(left_out.items())))
    parts.append("## Known faults\n\n" + _faults(rows))
    return "\n\n".join(parts) + "\n"


def _use(rows: Mapping[str, Any], non_commercial: bool) -> str:
    folders = " and ".join(f"`{name}`" for name in rows)
    terms = (
        "Some of its sources allow non-commercial use only, so the release as a whole does."
        if non_commercial
        else "Each source keeps its own licence, see below."
    )
    return (
        f"Each of the folders {folders} is a data set: `dataset.json` and five tables of gzipped JSON lines. `headway train`"
        f" and `headway evaluate` read them (`--data`). A value that is unknown is left out. {terms}"
    )


def _counts(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    return marked.table(
        ("part", "source", *_COUNTED),
        (
            (part, str(row["name"]), *(f"{row.get(table, 0):,}" for table in _COUNTED))
            for part, found in rows.items()
            for row in found
        ),
    )


def _fields() -> str:
    """From the row classes themselves."""
    found = []
    for table, row in TABLES:
        names = ", ".join(f"`{each.name}`" for each in fields(row))
        found.append(f"**{table}**: {names}.\n\n{inspect.getdoc(row)}")
    found.append(
        "`features` of a prompt are hashes of the words at its head and tail, and counts; no text can be read from them, but a"
        " text that one has can be recognized."
    )
    return "\n\n".join(found)


def _splits(held_out: float, seed: int) -> str:
    return (
        f"About {held_out:.0%} is held out, never by rows. Prompts: whole groups of near copies, which share more than"
        f" {SHARED_PART:.0%} of their {SHINGLE_WORDS}-word shingles, also across sources. Runs: whole load levels of a source, or"
        f" its last part in time. A hash of the name and the seed {seed} decides, so the split is the same on every machine."
    )


def _sources(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    licences = {str(row["name"]): row.get("licence") for found in rows.values() for row in found}
    return marked.table(
        ("source", "content", "from", "licence", "texts of prompts"),
        (
            (name, terms.title, terms.origin, terms.licence, _texts(terms))
            if (terms := TERMS.get(name)) is not None
            else (name, "the publisher's own", "-", str(licence), "no")
            for name, licence in sorted(licences.items())
        ),
    )


def _texts(terms: Terms) -> str:
    if not terms.texts:
        return "no"
    return f"yes, except {', '.join(sorted(terms.withheld_tasks))}" if terms.withheld_tasks else "yes"


def _faults(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    names = sorted({str(row["name"]) for found in rows.values() for row in found})
    return (
        _list(f"`{name}`: {fault}" for name in names if name in TERMS for fault in TERMS[name].faults)
        or "None."
    )


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
