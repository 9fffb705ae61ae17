"""What docs/pickers.md shows of a `report.json` of `python -m benchmarks.pickers`, also of one of `--second-look`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.pages.marked import table
from benchmarks.pickers.figures import percent_of, points_of
from benchmarks.pickers.judge import OURS, RIVALS
from benchmarks.pickers.second_look import auc_of

_Row = Mapping[str, Any]
#: What is possible, from the report's bounds; those with each picker's own estimates are only in the report.
_BOUNDS = (
    "oracle",
    "fixed price, our predictions",
    "fixed price, our quality and true cost",
    "fixed price, means of tasks",
    "fixed price, TF-IDF + logistic regression",
)
#: The price of a check for which the second table has rows.
_SHOWN_PRICE = 0.1


def text_of(results: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    cases: Sequence[_Row] = results["cases"]
    sections = [_judged_on(results)]
    sections += [
        _section(who, [case for case in cases if case["artifacts"] == who])
        for who in dict.fromkeys(case["artifacts"] for case in cases)
    ]
    return "\n\n".join(sections)


def looks_of(results: Mapping[str, Any]) -> str:
    """The results of second looks as Markdown."""
    cases: Sequence[_Row] = results["cases"]
    lines = [
        _judged_on(results),
        "",
        "The correlation of two models beyond what is predicted (median of all pairs): "
        + ", ".join(f"{case['correlation'][1]:.2f} in `{case['case']}`" for case in cases)
        + ".",
        "",
        "Saving at equal quality (*) with the check, and in brackets its difference from that without one, in points, with its "
        "interval:",
        "",
        table(
            ["check", "price", *(f"`{case['case']}`, {case['prompts']} prompts" for case in cases)],
            [
                ["none", "", *(percent_of(case["without"]["saving_at_equal_quality"]) for case in cases)],
                *_by_check(cases, _saving),
            ],
        ),
        "",
        f"At the default targets and a price of {_SHOWN_PRICE:g}: quality above the best single model in points, saving, and the "
        "shares of requests whose answer was checked and replaced:",
        "",
        table(
            ["check", *(f"`{case['case']}`" for case in cases)],
            [
                ["none", *(_own(case["without"]) for case in cases)],
                *(
                    [check, *cells]
                    for check, price, *cells in _by_check(cases, _own)
                    if price == f"{_SHOWN_PRICE:g}"
                ),
            ],
        ),
    ]
    return "\n".join([*lines, "", *map(_pays, cases), *map(_measured, cases)])


def _by_check(cases: Sequence[_Row], shown: Callable[[_Row], str]) -> Iterator[list[str]]:
    """A row for each check: what is shown of it in each case."""
    for at, row in enumerate(cases[0]["checks"]):
        yield [_check(row), f"{row['price']:g}", *(shown(case["checks"][at]) for case in cases)]


def _saving(row: _Row) -> str:
    return f"{row['saving_at_equal_quality'][0]:.1%} ({points_of(row['more'])}: {row['saves']})"


def _measured(case: _Row) -> str:
    """How good the checks are that are not simulated."""
    found = [each for each in case["checks"] if _actual(each) is None]
    return "".join(
        f"What {each['check']} tells of an answer in `{case['case']}`: d' {each['told']:.2f} (AUC {auc_of(each['told']):.2f})."
        for each in found
    )


def _pays(case: _Row) -> str:
    """From which d' on a check pays at each price, by the intervals."""
    least: dict[float, str] = {}
    honest = [each for each in case["checks"] if _actual(each) == each["told"]]
    for row in sorted(honest, key=lambda each: each["told"]):
        if row["saves"] == "more":
            least.setdefault(row["price"], f"d' {row['told']:g} (AUC {auc_of(row['told']):.2f})")
    prices = sorted({each["price"] for each in honest})
    found = "; ".join(f"at price {price:g} {least.get(price, 'none of these')}" for price in prices)
    return f"The least simulated check with which `cost` saves more in `{case['case']}`: {found}."


def _actual(row: _Row) -> float | None:
    """The true d' of a simulated check; None for another one."""
    name = str(row["check"])
    return float(name.rpartition(" ")[2]) if name.startswith("simulated") else None


def _check(row: _Row) -> str:
    actual = _actual(row)
    if actual is None:
        return str(row["check"])
    assumed = "" if row["told"] == actual else f", assumed {row['told']:g}"
    return f"{row['check']}{assumed} (AUC {auc_of(actual):.2f})"


def _own(row: _Row) -> str:
    text = f"{100 * row['above_best_single'][0]:+.1f}, {row['saving'][0]:.0%}"
    return f"{text}; {row['checked']:.0%}, {row['replaced']:.0%}" if row["checked"] else text


def _judged_on(results: Mapping[str, Any]) -> str:
    judged = (
        f"{results['parts']} of {results['folds']} folds" if results["held_out"] == "folds" else "another set"
    )
    return f"Judged on {judged}, {results['seeds']} orders, seed {results['seed']}."


def _section(who: str, cases: Sequence[_Row]) -> str:
    names = [case["case"] for case in cases]
    lines = [
        f"### Artifacts: {who}",
        "",
        f"Saving at equal quality (*), with its interval, and the verdict on `{OURS}` - picker:",
        "",
        table(
            ["", *(f"`{name}`, {case['prompts']} prompts" for name, case in zip(names, cases, strict=True))],
            [*_savings(cases)],
        ),
        "",
        "Quality in points, with its interval:",
        "",
        table(["", *(f"`{name}`" for name in names)], [*_qualities(cases)]),
    ]
    return "\n".join([*lines, "", _counted(cases)])


def _savings(cases: Sequence[_Row]) -> Iterator[list[str]]:
    for name in (OURS, *RIVALS):
        cells = []
        for case in cases:
            row = case["policies"][name]
            shown = percent_of(row["saving_at_equal_quality"])
            cells.append(shown if name == OURS else f"{shown}: {row['ours_saves']}")
        yield [f"`{name}`", *cells]
    for name in _BOUNDS:
        if all(name in case["bounds"] for case in cases):
            yield [name, *(f"{case['bounds'][name]['saving_at_equal_quality']:.1%}" for case in cases)]


def _qualities(cases: Sequence[_Row]) -> Iterator[list[str]]:
    own = [case["policies"][OURS] for case in cases]
    yield [
        f"`{OURS}` at its own point - best single model",
        *(points_of(each["above_best_single"]) for each in own),
    ]
    yield [f"saving of `{OURS}` at its own point", *(percent_of(each["saving"]) for each in own)]
    for name in cases[0]["relevance"]:
        found = [case["relevance"][name] for case in cases]
        yield [
            f"`relevance` - {name}",
            *(f"{points_of(each['difference'])}: {each['verdict']}" for each in found),
        ]


def _counted(cases: Sequence[_Row]) -> str:
    shown = [case["policies"][name]["ours_saves"] for case in cases for name in RIVALS]
    best = []
    for case in cases:
        of = max(RIVALS, key=lambda name: case["policies"][name]["saving_at_equal_quality"][0])
        row = case["policies"][of]
        best.append(f"`{of}` in `{case['case']}` ({points_of(row['ours_minus_its'])}: {row['ours_saves']})")
    return (
        f"Of {len(shown)} comparisons at equal quality `{OURS}` saves more in {shown.count('more')} and less in "
        f"{shown.count('less')}; {shown.count('no difference shown')} show no difference. The picker of greatest saving, chosen "
        f"after looking, and `{OURS}` minus it in points: {'; '.join(best)}."
    )
