"""The report as one self-contained HTML page: no script, no outside file, light and dark.

The key at the top works by style alone: a box hides a policy in all plots and tables, the pointer (or the
keyboard's focus) on a name shows it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.compare import bars, plots
from benchmarks.compare.capacity import NEAR_FACTOR
from benchmarks.compare.distributions import distributions
from benchmarks.compare.headline import gap_note, headline, oracle_note
from benchmarks.compare.looks import OUTCOME_GROUPS, Look, looks_of, style
from benchmarks.compare.page_tables import (
    capacity_table,
    fleet_table,
    predictions_table,
    regret_table,
    results_table,
)
from benchmarks.compare.tables import ENDINGS_NOTE, arrivals_text, rate_text, rates_hint, short_note

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6570;--paper:#fcfcfa;--card:#fff;--line:#dfe3e6;--best:#dff1e8;--heat:#b8400a;--oracle:#111;}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--soft:#9aa4ae;--paper:#14171a;--card:#1a1e22;--line:#333a40;--best:#173a2d;--heat:#ff9a5e;--oracle:#fff;}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1290px;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.65rem;line-height:1.2;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.6rem 0 .3rem}h3{font-size:.95rem;margin:1.2rem 0 .2rem}
p{margin:.3rem 0;max-width:75ch}.soft{color:var(--soft)}svg .soft{fill:var(--soft)}.strong{font-weight:600}
.lead{font-size:1.08rem;margin:1rem 0;padding:0 0 0 1rem;border-left:3px solid var(--heat)}.lead p{margin:.35rem 0}
.warn{border-left:3px solid #d55e00;padding-left:.7rem}
.key{position:sticky;top:0;z-index:2;display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:1.2rem 0;padding:.5rem 0;border:0;border-bottom:1px solid var(--line);background:var(--paper);font-size:.86rem}
.key legend{position:absolute;clip-path:inset(50%)}
.key label{display:inline-flex;align-items:center;gap:.35rem;cursor:pointer;padding:.1rem .2rem;border-radius:4px}
.key label:focus-within:has(:focus-visible){outline:2px solid var(--heat)}
.key input{margin:0;accent-color:var(--c)}.key svg{width:30px;height:10px;margin:0;min-width:0}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:.5rem 1.5rem}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:.4rem 1.2rem}
figure{margin:.4rem 0;min-width:0;overflow-x:auto}figcaption{font-size:.9rem;font-weight:600}
svg{width:100%;height:auto;display:block;margin:.2rem 0;font:12px system-ui,sans-serif;min-width:330px}
.wide svg{min-width:760px}
svg text{fill:currentColor;font-variant-numeric:tabular-nums}svg text.soft{fill:var(--soft)}
.grid{stroke:currentColor;stroke-opacity:.12;fill:none}.axis{stroke:currentColor;stroke-opacity:.55;fill:none}
.target{stroke:currentColor;stroke-opacity:.6;stroke-dasharray:3 4;fill:none}
.line{fill:none;stroke:var(--c);stroke-width:2.2;stroke-dasharray:var(--d);stroke-linejoin:round}.line.thin{stroke-width:1.6}
.band{fill:var(--c);fill-opacity:.1}.dot{fill:var(--c)}.whisker{stroke:var(--c);stroke-width:2.4;fill:none}
.leader{stroke:var(--c);stroke-opacity:.5;fill:none}svg text.name{fill:var(--c);font-weight:600;paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
.oracle{--c:var(--oracle);--d:none}.line.oracle{stroke-width:1.2}.line.bound{--d:2 2}.band.oracle{fill-opacity:.08}
.heat{fill:var(--heat)}
.tags{display:flex;flex-wrap:wrap;gap:.1rem .9rem;font-size:.84rem;margin:.3rem 0}.tags span{display:inline-flex;align-items:center;gap:.35rem}
.tags svg{width:12px;height:12px;min-width:0;margin:0}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{padding:.26rem .36rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600;vertical-align:bottom;white-space:normal}td:first-child,th:first-child{text-align:left}
tr.first td{border-top:2px solid var(--line)}td.best{background:var(--best);font-weight:600}.pm{color:var(--soft);font-weight:400}
td .chip{display:inline-block;width:.7em;height:.7em;border-radius:2px;background:var(--c);margin-right:.45em}
td.bar{background:linear-gradient(90deg,color-mix(in srgb,var(--c) 30%,transparent) var(--w),color-mix(in srgb,var(--c) 10%,transparent) var(--w) var(--v,0%),transparent var(--v,0%))}
td.text,th.text{text-align:left}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;font-size:.88rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
code{font:.95em ui-monospace,monospace}summary{cursor:pointer;color:var(--soft);margin:.5rem 0}
@media print{.key{position:static}details>*{display:block}}
"""

Report = Mapping[str, Any]
Looks = Mapping[str, Look]


def page(report: Report) -> str:
    """The page of a report."""
    looks = looks_of(report["policies"])
    source = report["workload"]["header"]["source"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>Policies compared: {escape(source)}</title><style>{_STYLE}{style(looks)}</style></head><body>",
        f'<header><h1>Policies compared</h1><p class="soft">{escape(_subtitle(report))}</p>{_short(report)}</header><main>',
    ]
    if not report["complete"]:
        parts.append(
            '<p class="warn">Interrupted: not all runs are in. The same command goes on from here.</p>'
        )
    if report["warning"]:
        parts.append(f'<p class="warn">{escape(report["warning"])}</p>')
    if report["cells"]:
        found = "".join(f"<p>{escape(sentence)}</p>" for sentence in headline(report))
        parts += [f'<div class="lead">{found}</div>' if found else "", _key(looks), *_sections(report, looks)]
    parts += [_section("How it was measured", _about(report)), "</main></body></html>"]
    return "\n".join(part for part in parts if part)


def _subtitle(report: Report) -> str:
    header, described = report["workload"]["header"], report["workload"]["described"]
    seeds = len(report["seeds"])
    rates = report["rates_per_s"]
    facts = [
        "live gateway" if report.get("url") else "simulation",
        report.get("scenario"),
        header["source"],
        f"{described['requests']:,} requests a run",
        arrivals_text(report),
        f"{len(rates)} rates from {rate_text(rates[0])} to {rate_text(rates[-1])} requests/s"
        if len(rates) > 1
        else None,
        f"{seeds} seeds" if seeds > 1 else None,
        None if report["speed"] == 1 else f"time compressed {report['speed']:g} times",
    ]
    return " · ".join(fact for fact in facts if fact)


def _short(report: Report) -> str:
    note = short_note(report)
    return f'<p class="soft">{escape(note)}</p>' if note else ""


def _key(looks: Looks) -> str:
    boxes = "".join(
        f'<label class="{look.css}"><input type="checkbox" id="show-{look.css}" checked>'
        f'<svg viewBox="0 0 30 10" aria-hidden="true"><path class="line" d="M0 5H30"/></svg>{escape(policy)}</label>'
        for policy, look in looks.items()
    )
    return f'<fieldset class="key"><legend>Policies to show</legend>{boxes}</fieldset>'


def _section(title: str, body: str, note: str = "") -> str:
    told = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{told}{body}</section>" if body else ""


def _picture(svg: str | None, caption: str = "", css: str = "") -> str:
    if svg is None:
        return ""
    told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure{f' class={css}' if css else ''}>{told}{svg}</figure>"


def _sections(report: Report, looks: Looks) -> list[str]:
    seeds = len(report["seeds"])
    bands = "Bands are 95 % intervals over seeds. " if seeds > 1 else ""
    near = plots.near_capacity(report)
    against_load = _picture(plots.attainment(report, looks), "Attainment") + _picture(
        plots.goodput(report, looks), "Goodput"
    )
    kept = f"{100 * report['attainment_target']:g} %"
    compared = f"Each policy less {report['baseline']}, draw by draw" + (
        ", with 95 % intervals: where one crosses zero, nothing was shown." if seeds > 1 else "."
    )
    return [
        _section(
            "Against load",
            f'<div class="two">{against_load}</div>' if against_load else "",
            f"{bands}Dotted line: {kept}. {oracle_note(report)}",
        ),
        _section(
            f"At {rate_text(near)} requests/s",
            "" if against_load else _picture(bars.figures(report, looks, near), css="wide"),
        ),
        _section(
            "Load that each bears",
            capacity_table(report, looks),
            f"The highest rate with {kept} of requests within their SLO, draw by draw: between the two rates that"
            f" were run; a number, on a straight line, only where these differ by a factor of {NEAR_FACTOR:g} at most."
            f" The pale part of a bar is what is not known. {rates_hint(report) or ''}",
        ),
        _section(
            "Results",
            results_table(report, looks),
            "TTFT and E2E in seconds, TPOT in milliseconds, of complete answers; USD for 1,000 of them; tokens/req:"
            " output delivered, of all requests. Attainment counts every offered request with an SLO."
            f" {ENDINGS_NOTE} Marked: the best of a rate and all that are not clearly behind it, draw by draw; nothing"
            " where none is.",
        ),
        _section(
            "Latency",
            "".join(
                _picture(svg, f"at {rate_text(rate)} requests/s", "wide")
                for rate, svg in distributions(report, looks)
            ),
            "Cumulative distributions over complete answers: further left is faster. Dotted: the workload's SLO targets."
            f" {plots.shown_note(report)}",
        ),
        _section("Cost", *_cost(report, looks, near)),
        _section(
            "What became of the requests",
            _outcome_tags(report) + _picture(bars.outcomes(report, looks), css="wide"),
            f"Shares of all requests. {ENDINGS_NOTE} {plots.shown_note(report)}",
        ),
        _load(report, looks, near),
        _section(
            "Against the oracle",
            regret_table(report, looks),
            gap_note(report),
        ),
        _section(
            "Differences",
            "".join(
                _picture(bars.differences(report, looks, rate), f"at {rate_text(rate)} requests/s", "wide")
                for rate in plots.shown_rates(report)
            ),
            f"{compared} {plots.shown_note(report)}",
        ),
        _section(
            "Predictions and decisions",
            predictions_table(report, looks),
            "Coverage is the share of TTFTs at or below their predicted 95 % quantile; errors are medians of |predicted"
            " - actual| / actual. Decision time is this machine's.",
        ),
    ]


def _cost(report: Report, looks: Looks, near: float) -> tuple[str, str]:
    found = plots.cost(report, looks)
    if found is None:
        return "", ""
    measure, svg = found
    note = f"One line a policy over its rates; the large point is {rate_text(near)} requests/s."
    if measure == "quality_mean" and any(one["quality_cost"] for one in report["oracle"]):
        note += " The oracle's line is the best quality that its cost can buy."
    return _picture(svg, css="wide"), note


def _outcome_tags(report: Report) -> str:
    seen = {name for cell in report["cells"] for name in cell["outcomes"]}
    tags = "".join(
        f'<span><svg viewBox="0 0 12 12" aria-hidden="true"><rect class="{group.css}" width="12" height="12"/></svg>'
        f"{escape(group.label)}</span>"
        for group in OUTCOME_GROUPS
        if seen.intersection(outcome.value for outcome in group.outcomes)
    )
    return f'<div class="tags">{tags}</div>'


def _load(report: Report, looks: Looks, near: float) -> str:
    found = bars.heat_strips(report, near)
    if found is None:
        return ""
    most, panels = found
    body = "".join(
        f'<div class="policy {looks[policy].css}">{_picture(svg, policy)}</div>' for policy, svg in panels
    )
    return _section(
        "Load of the instances",
        f'<div class="panels">{body}</div>',
        f"Requests in flight over time (s) at {rate_text(near)} requests/s in the first draw, one strip an instance. Colour grows with the"
        f" logarithm; full colour is {most:,}. At the right the mean of what is shown.",
    )


def _about(report: Report) -> str:
    header, described = report["workload"]["header"], report["workload"]["described"]
    seeds: Sequence[Any] = [seed for seed in report["seeds"] if seed is not None]
    facts: dict[str, Any] = {
        "workload": header["source"],
        "licence": header["licence"],
        "seed of the workload": header["seed"],
        "cuts": ", ".join(f"{name} {value}" for name, value in header["cuts"].items()) or None,
        "length": header["length_wins"],
        "input tokens": _quantiles(described["prompt_tokens"]),
        "output tokens": _quantiles(described["output_tokens"]),
        "CV of gaps": None if described["gap_cv"] is None else f"{described['gap_cv']:.2f}",
        "with an SLO": f"{described['with_slo']:,} of {described['requests']:,}",
        "SLO for the others": ", ".join(
            f"{name} {value:g}" for name, value in (report.get("slo") or {}).items()
        )
        or None,
        "with a cost cap": described["with_budget"] or None,
        "runs": f"{len(report['runs']):,}" + (f", seeds {_listed(seeds)}" if seeds else ""),
        "model": report.get("model"),
        "server": report.get("url"),
        "speed": report["speed"] if report.get("url") else None,
    }
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>"
        for name, value in facts.items()
        if value is not None
    )
    if report.get("command"):
        rows += f"<dt>command</dt><dd><code>{escape(report['command'])}</code></dd>"
    live = (
        "Open loop: each request is sent at its own time whatever became of those before it, and measured from"
        " that time. Runs follow one another once the server is idle; made-up prompts differ between runs, so"
        " that no run finds the cache of the one before."
    )
    simulated = (
        "The gateway's own scheduler and policies on virtual time, over models of the engines. Open loop: requests"
        " arrive at their own time whatever became of those before them. With one rate and seed every policy sees"
        " the same requests. Network and the gateway's own work take no time."
    )
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in report["notes"])
    return f"<p>{live if report.get('url') else simulated}</p><dl>{rows}</dl>{notes}{fleet_table(report)}"


def _listed(seeds: Sequence[Any]) -> str:
    told = ", ".join(map(str, seeds[:12]))
    return told if len(seeds) <= 12 else f"{told}, ... ({len(seeds)})"


def _quantiles(summary: Mapping[str, Any]) -> str | None:
    if not summary["count"]:
        return None
    return ", ".join(f"{key} {summary[key]:,.0f}" for key in ("p50", "p90", "p99", "max"))
