"""What parts of predictors are worth in goodput, as Markdown, from the `results.json` of `headway experiment training`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pages import marked


def table(results: Mapping[str, Any], *, section: str, fleets: Sequence[str]) -> str:
    """A row for each predictor: in each of these fleets and under each policy the attainment in percent, and in brackets the
    interval of the difference of goodput (requests/s) to the first predictor."""
    found = next(each["tables"][0] for each in results["sections"] if each["title"] == section)
    rows: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row in found["rows"]:
        here = dict(zip(found["columns"], row, strict=True))
        if here["fleet"] not in fleets:
            continue
        column = f"`{here['policy']}`" if len(fleets) == 1 else f"{here['fleet']}, `{here['policy']}`"
        interval = "" if here["95 % interval"] is None else f" ({here['95 % interval']})"
        rows.setdefault(here["predictor"], {})[column] = f"{here['attainment (%)']:.1f}{interval}"
        columns[column] = None
    shown = marked.table(
        ["predictor", *columns], ([name, *(cells[each] for each in columns)] for name, cells in rows.items())
    )
    return f"{shown}\n\nMeasured at commit `{results['commit'][:7]}`."
