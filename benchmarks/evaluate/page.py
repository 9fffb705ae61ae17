"""Evaluations as one self-contained HTML page: no script, no outside file, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from benchmarks.evaluate import plots
from benchmarks.evaluate.figures import Evaluation, Figure

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6570;--paper:#fcfcfa;--line:#dfe3e6;--heat:#b8400a}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--soft:#9aa4ae;--paper:#14171a;--line:#333a40;--heat:#ff9a5e}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1290px;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.65rem;line-height:1.2;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.6rem 0 .3rem}h3{font-size:.95rem;margin:1.6rem 0 .2rem}
p{margin:.3rem 0;max-width:75ch}.soft{color:var(--soft)}
.tags{display:flex;flex-wrap:wrap;gap:.1rem .9rem;font-size:.86rem;margin:.6rem 0}.tags span{display:inline-flex;align-items:center;gap:.35rem}
.tags svg{width:10px;height:10px;margin:0;min-width:0}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:.5rem 1.5rem}
figure{margin:.4rem 0;min-width:0;overflow-x:auto}figcaption{font-size:.9rem;font-weight:600}
svg{width:100%;height:auto;display:block;margin:.2rem 0;font:12px system-ui,sans-serif;min-width:330px}
svg text{fill:currentColor;font-variant-numeric:tabular-nums}svg text.soft{fill:var(--soft)}
.grid{stroke:currentColor;stroke-opacity:.12;fill:none}.axis{stroke:currentColor;stroke-opacity:.55;fill:none}
.target{stroke:currentColor;stroke-opacity:.6;stroke-dasharray:3 4;fill:none}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-dasharray:var(--d);stroke-linejoin:round}.line.c0{stroke-width:2.6}
.dot{fill:var(--c)}.whisker{stroke:var(--c);stroke-width:2.4;fill:none}
.leader{stroke:var(--c);stroke-opacity:.5;fill:none}svg text.name{fill:var(--c);font-weight:600}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums}
th,td{padding:.26rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600;vertical-align:bottom}td:first-child,th:first-child{text-align:left}
td .chip{display:inline-block;width:.7em;height:.7em;border-radius:2px;background:var(--c);margin-right:.45em}
summary{cursor:pointer;color:var(--soft);margin:.5rem 0}
@media print{details>*{display:block}}
"""
#: (light, dark) for colour-blind readers, as in reports of comparisons; what is evaluated has the first.
_COLOURS = (
    ("#d1470b", "#ff8f5a"),
    ("#0067a8", "#5ab0f0"),
    ("#00805c", "#35cba0"),
    ("#a5368f", "#e58fd3"),
    ("#a37500", "#e6b84a"),
    ("#5748b5", "#a99cf5"),
    ("#5b6470", "#aab3bd"),
)
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2")


def page(results: Sequence[tuple[str, str, Evaluation]]) -> str:
    """The page of (title, subtitle, evaluation)."""
    body = "".join(_section(*each) for each in results)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Predictors evaluated</title><style>{_STYLE}{_colours()}</style></head><body>"
        "<header><h1>Predictors evaluated</h1>"
        '<p class="soft">Intervals are 95 % block bootstraps: whole groups of prompts, or stretches of time, are'
        " drawn anew.</p></header>"
        f"<main>{body}</main></body></html>\n"
    )


def _colours() -> str:
    def rules(dark: bool) -> str:
        return "".join(f".c{place}{{--c:{pair[dark]}}}" for place, pair in enumerate(_COLOURS))

    dashes = "".join(f".c{place}{{--d:{dash}}}" for place, dash in enumerate(_DASHES))
    return f"{rules(False)}{dashes}@media (prefers-color-scheme:dark){{{rules(True)}}}"


def _section(title: str, subtitle: str, found: Evaluation) -> str:
    looks = plots.looks_of(found)
    notes = "".join(f"<p>{escape(note)}</p>" for note in found.notes)
    curves = "".join(_picture(picture, name) for name, picture in plots.curves(found.curves, looks))
    groups = _groups(found.figures)
    shown = "".join(
        _picture(picture, _caption(group[0]), _key((each.of for each in group), looks))
        for group in groups
        if (picture := plots.intervals(group, looks))
    )
    tables = "".join(_table(group, looks) for group in groups)
    return (
        f"<section><h2>{escape(title[:1].upper() + title[1:])}</h2>"
        f'<p class="soft">{escape(subtitle)}</p>{notes}'
        f'<div class="two">{curves}</div><div class="two">{shown}</div>'
        f"<details open><summary>All figures</summary>{tables}</details></section>"
    )


def _key(ofs: Iterable[str], looks: Mapping[str, str]) -> str:
    tags = "".join(
        f'<span class="{looks[of]}"><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="dot" cx="6" cy="6" r="5"/>'
        f"</svg>{escape(of)}</span>"
        for of in dict.fromkeys(ofs)
    )
    return f'<div class="tags">{tags}</div>'


def _groups(figures: Sequence[Figure]) -> list[list[Figure]]:
    """Figures of one name and unit together, as they first come; differences apart."""
    groups: dict[tuple[str, str, bool], list[Figure]] = {}
    for each in figures:
        groups.setdefault((each.name, each.unit, each.is_difference), []).append(each)
    return list(groups.values())


def _caption(figure: Figure) -> str:
    return f"{figure.name}: difference" if figure.is_difference else figure.name


def _picture(picture: str, caption: str, key: str = "") -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{key}{picture}</figure>"


def _table(group: Sequence[Figure], looks: Mapping[str, str]) -> str:
    """Parts down, `of` across."""
    parts, ofs = (list(dict.fromkeys(names)) for names in ((e.part for e in group), (e.of for e in group)))
    by_cell = {(each.part, each.of): each for each in group}
    unit = f" ({group[0].unit})" if group[0].unit else ""
    head = "".join(f'<th class="{looks[of]}">{escape(of)}</th>' for of in ofs)
    body = "".join(
        f"<tr><td>{escape(part)}</td>{''.join(_cell(by_cell.get((part, of))) for of in ofs)}</tr>"
        for part in parts
    )
    return (
        f"<h3>{escape(_caption(group[0]) + unit)}</h3>"
        f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "<td></td>"
    interval = plots.interval_text(figure)
    return f'<td>{plots.value_text(figure.value)} <span class="soft">{interval}</span></td>'
