"""`python -m benchmarks.pickers.page RESULTS PAGE`: writes what a results file shows between two marks of a page.

RESULTS is a `report.json` of `python -m benchmarks.pickers`, or such a file kept beside the page. Nothing that the page
says of results is written by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages.marked import replaced
from benchmarks.pickers.command import percent_of, points_of
from benchmarks.pickers.judge import OURS, RIVALS

_Row = Mapping[str, Any]


def text_of(results: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    cases: Sequence[_Row] = results["cases"]
    judged = (
        f"{results['parts']} of {results['folds']} folds" if results["held_out"] == "folds" else "another set"
    )
    sections = [f"Judged on {judged}, {results['seeds']} orders, seed {results['seed']}."]
    sections += [
        _section(who, [case for case in cases if case["artifacts"] == who])
        for who in dict.fromkeys(case["artifacts"] for case in cases)
    ]
    return "\n\n".join(sections)


def _section(who: str, cases: Sequence[_Row]) -> str:
    names = [case["case"] for case in cases]
    lines = [
        f"### Artifacts: {who}",
        "",
        f"Saving at equal quality (*), with its interval, and the verdict on `{OURS}` - picker:",
        "",
        _line(
            ["", *(f"`{name}`, {case['prompts']} prompts" for name, case in zip(names, cases, strict=True))]
        ),
        _line(["---"] * (len(cases) + 1)),
    ]
    for name in (OURS, *RIVALS):
        cells = []
        for case in cases:
            row = case["policies"][name]
            shown = percent_of(row["saving_at_equal_quality"])
            cells.append(shown if name == OURS else f"{shown}: {row['ours_saves']}")
        lines.append(_line([f"`{name}`", *cells]))
    lines += [
        _line([name, *(f"{case['bounds'][name]['saving_at_equal_quality']:.1%}" for case in cases)])
        for name in cases[0]["bounds"]
        if all(name in case["bounds"] for case in cases)
    ]
    lines += ["", "Quality in points, with its interval:", "", _line(["", *(f"`{name}`" for name in names)])]
    lines.append(_line(["---"] * (len(cases) + 1)))
    above = [points_of(case["policies"][OURS]["above_best_single"]) for case in cases]
    saved = [percent_of(case["policies"][OURS]["saving"]) for case in cases]
    lines.append(_line([f"`{OURS}` at its own point - best single model", *above]))
    lines.append(_line([f"saving of `{OURS}` at its own point", *saved]))
    for name in cases[0]["relevance"]:
        found = [case["relevance"][name] for case in cases]
        cells = [f"{points_of(each['difference'])}: {each['verdict']}" for each in found]
        lines.append(_line([f"`relevance` - {name}", *cells]))
    return "\n".join([*lines, "", _counted(cases)])


def _counted(cases: Sequence[_Row]) -> str:
    shown = [case["policies"][name]["ours_saves"] for case in cases for name in RIVALS]
    best = []
    for case in cases:
        of = max(RIVALS, key=lambda name: case["policies"][name]["saving_at_equal_quality"][0])
        row = case["policies"][of]
        best.append(f"`{of}` in `{case['case']}` ({points_of(row['ours_minus_its'])}: {row['ours_saves']})")
    return (
        f"Of {len(shown)} comparisons at equal quality `{OURS}` saves more in {shown.count('more')} and less in "
        f"{shown.count('less')}; {shown.count('not told apart')} are not told apart. The picker of greatest saving, chosen "
        f"after looking, and `{OURS}` minus it in points: {'; '.join(best)}."
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for files that are not such."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 2:
        print("usage: python -m benchmarks.pickers.page RESULTS PAGE", file=sys.stderr)
        return 2
    results, page = map(Path, given)
    try:
        text = text_of(json.loads(results.read_text(encoding="utf-8")))
        found = replaced(page.read_text(encoding="utf-8"), "results", text)
    except (OSError, ValueError, KeyError) as error:
        print(f"{results}, {page}: {error}", file=sys.stderr)
        return 2
    page.write_text(found, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
