"""What a data set consists of, counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from predictors.learned.models import ArtifactKind
from predictors.training.dataset import Dataset

#: What a source may say beside its licence.
_KEPT = ("limited_to", "from", "seed")


def with_source(data: Dataset, name: str, licence: str | None, tables: Sequence[str], **more: Any) -> Dataset:
    """The data of one source, with what `about` has of it: how many rows it has of these tables, and `more`."""
    counts = {table: len(getattr(data, table)) for table in tables}
    source = {"name": name, "licence": licence, "rows": counts, **more}
    return replace(data, about={"sources": [source]})


def rows(kind: ArtifactKind, data: Dataset) -> int:
    """How many rows of a data set this kind can use, roughly: answers with a length or a quality, or attempts."""
    if kind.learns_from == "attempts":
        return len(data.attempts)
    if kind.learns_from == "lengths":
        return sum(each.output_tokens is not None for each in data.answers)
    return sum(each.quality is not None for each in data.answers)


def rows_by_source(data: Dataset) -> list[dict[str, Any]]:
    """For each source: name, licence (None if its data sets do not tell the same one), rows by table, and the days of its
    first and last row where known."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    times: dict[str, list[float]] = defaultdict(list)
    of_prompt = {each.id: each.source for each in data.prompts}
    of_run = {each.id: each.source for each in data.runs}
    for name, table, at_s in chain(
        ((source, "prompts", None) for source in of_prompt.values()),
        ((of_prompt[each.prompt], "answers", each.at_s) for each in data.answers),
        ((each.source, "runs", each.started_at_s) for each in data.runs),
        ((of_run[each.run], "attempts", None) for each in data.attempts),
    ):
        counts[name][table] += 1
        if at_s is not None:
            times[name].append(at_s)
    known: dict[str, dict[str, Any]] = defaultdict(dict)
    licences: dict[str, set[str | None]] = defaultdict(set)
    for each in data.about.get("sources", ()):
        known[each["name"]].update(each)
        licences[each["name"]].add(each.get("licence"))
    return [
        {
            "name": name,
            "licence": next(iter(licences[name])) if len(licences[name]) == 1 else None,
            **counts[name],
            "first_day": _day(min(times[name], default=None)),
            "last_day": _day(max(times[name], default=None)),
            **{each: value for each, value in known[name].items() if each in _KEPT},
        }
        for name in sorted(counts)
    ]


def _day(at_s: float | None) -> str | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC).date().isoformat()
