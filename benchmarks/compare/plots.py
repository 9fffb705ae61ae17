"""The plots of a report as SVG text: transparent, in the page's own text colour, with real text."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.workloads.format import WorkloadError

#: Stands for the page's text colour; replaced by `currentColor` in the SVG.
_INK = "#010203"
#: Okabe and Ito's palette for colour-blind readers, and greys; legible on light and dark.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#a89c00", "#7a5fb0")
_OUTCOME_COLOURS: Mapping[str, str] = {
    "ok": "#009e73",
    "late": "#e69f00",
    "budget_exhausted_mid_decode": "#a89c00",
    "rejected_slo": "#56b4e9",
    "rejected_overload": "#0072b2",
    "rejected_no_instance": "#7a5fb0",
    "rejected_budget": "#cc79a7",
    "expired_in_queue": "#b5651d",
    "expired_before_first_token": "#d55e00",
    "expired_mid_decode": "#c0504d",
    "backend_error": "#b00020",
}
_MARKERS = "osD^vPX*<"

Runs = Sequence[Mapping[str, Any]]


def attainment(runs: Runs) -> str | None:
    """Attainment against rate, one line a policy (bars where there is one rate only)."""
    known = [run for run in runs if run["attainment"] is not None]
    if not known:
        return None
    figure, axes = _figure(7.5, 4.2)
    policies = _policies(known)
    if len({run["rate_per_s"] for run in known}) == 1:
        values = [next(run["attainment"] for run in known if run["policy"] == policy) for policy in policies]
        bars = axes.bar(policies, [100 * value for value in values], color=_COLOURS[: len(policies)] or None)
        axes.bar_label(bars, fmt="%.1f", color=_INK, fontsize=9)
        axes.tick_params(axis="x", rotation=20)
    else:
        for index, policy in enumerate(policies):
            points = sorted(
                (run["rate_per_s"], 100 * run["attainment"]) for run in known if run["policy"] == policy
            )
            axes.plot(
                [rate for rate, _ in points],
                [share for _, share in points],
                color=_colour(index),
                marker=_MARKERS[index % len(_MARKERS)],
                label=policy,
            )
        axes.set_xlabel("offered requests/s")
        axes.legend(frameon=False, labelcolor=_INK)
    axes.set_ylabel("requests within their SLO (%)")
    axes.set_ylim(0, 104)
    return _svg(figure, "attainment")


def distributions(runs: Runs) -> list[tuple[str, str]]:
    """(caption, SVG) for each rate: the distributions of TTFT, TPOT and E2E by policy."""
    from matplotlib.ticker import LogLocator

    plots = []
    order = _policies(runs)
    for rate in sorted({run["rate_per_s"] for run in runs}, key=lambda rate: rate or 0.0):
        figure, axes = _figure(10.5, 3.4, columns=3)
        for place, (name, title, factor, unit) in zip(
            axes,
            (("ttft_s", "TTFT", 1.0, "s"), ("tpot_s", "TPOT", 1000.0, "ms"), ("e2e_s", "E2E", 1.0, "s")),
            strict=True,
        ):
            for run in (run for run in runs if run["rate_per_s"] == rate):
                curve = [value for value in run["curves"][name] if value is not None]
                if curve:
                    shares = [100 * index / (len(curve) - 1) for index in range(len(curve))]
                    place.plot(
                        [max(value * factor, 1e-6) for value in curve],
                        shares,
                        color=_colour(order.index(run["policy"])),
                        label=run["policy"],
                    )
            place.set(title=title, xlabel=unit, xscale="log", ylim=(0, 100))
            place.title.set_color(_INK)
            low, high = place.get_xlim()
            subs = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
            place.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
            place.xaxis.set_major_formatter("{x:g}")
            place.xaxis.set_minor_formatter("")
        axes[0].set_ylabel("answers at or below (%)")
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(
                handles, labels, loc="outside lower center", ncols=6, frameon=False, labelcolor=_INK
            )
        caption = "at the workload's rate" if rate is None else f"at {rate:.3g} requests/s"
        plots.append((caption, _svg(figure, f"distributions-{rate}")))
    return plots


def cost(runs: Runs) -> str | None:
    """Cost of a thousand requests against attainment, one point a run: up and left is better."""
    known = [run for run in runs if run["cost_usd_per_request"] is not None]
    if not known:
        return None
    figure, axes = _figure(7.5, 4.2)
    policies = _policies(known)
    with_attainment = all(run["attainment"] is not None for run in known)
    for index, policy in enumerate(policies):
        own = sorted(
            (run for run in known if run["policy"] == policy), key=lambda run: run["rate_per_s"] or 0.0
        )
        usd = [1000 * run["cost_usd_per_request"] for run in own]
        heights = [100 * run["attainment"] if with_attainment else run["rate_per_s"] or 0.0 for run in own]
        axes.plot(
            usd,
            heights,
            color=_colour(index),
            marker=_MARKERS[index % len(_MARKERS)],
            linewidth=0.8,
            label=policy,
        )
    axes.set_xlabel("USD for 1,000 requests")
    axes.set_ylabel("requests within their SLO (%)" if with_attainment else "offered requests/s")
    axes.legend(frameon=False, labelcolor=_INK)
    return _svg(figure, "cost")


def outcomes(runs: Runs) -> str:
    """What became of the requests, stacked, one bar a run."""
    names = list(dict.fromkeys([*_OUTCOME_COLOURS, *(name for run in runs for name in run["outcomes"])]))
    return _stacked(runs, "outcomes", names, _OUTCOME_COLOURS)


def instances(runs: Runs) -> str | None:
    """Where requests were served, stacked, one bar a run."""
    names = sorted({name for run in runs for name in run["instances"]})
    return None if names in ([], ["(none)"]) else _stacked(runs, "instances", names, {"(none)": "#8c8c8c"})


def _stacked(runs: Runs, key: str, names: Sequence[str], colours: Mapping[str, str]) -> str:
    figure, axes = _figure(8.5, 1.4 + 0.32 * len(runs))
    labels = [
        f"{run['policy']}  {'' if run['rate_per_s'] is None else format(run['rate_per_s'], '.3g') + '/s'}"
        for run in runs
    ]
    left = [0.0] * len(runs)
    places = list(range(len(runs)))
    for index, name in enumerate(names):
        shares = [100 * run[key].get(name, 0) / max(1, run["requests"]) for run in runs]
        if any(shares):
            axes.barh(places, shares, left=left, label=name, color=colours.get(name, _colour(index)))
            left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("requests (%)")
    axes.grid(False, axis="y")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, labelcolor=_INK)
    return _svg(figure, key)


def _policies(runs: Runs) -> list[str]:
    return list(dict.fromkeys(run["policy"] for run in runs))


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _figure(width_in: float, height_in: float, columns: int = 1) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise WorkloadError("reports need matplotlib: pip install 'headway[bench]'") from error
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots(1, columns)
    for place in [axes] if columns == 1 else axes:
        place.set_facecolor("none")
        place.tick_params(colors=_INK, which="both", labelsize=9)
        place.xaxis.label.set_color(_INK)
        place.yaxis.label.set_color(_INK)
        for side in ("left", "bottom"):
            place.spines[side].set_color(_INK)
        for side in ("top", "right"):
            place.spines[side].set_visible(False)
        place.grid(color=_INK, alpha=0.15)
        place.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any, name: str) -> str:
    """The figure as an `<svg>` element. Its inner ids depend on `name`: several stand in one page."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    # The page's own font; the page's style scales the picture with its column.
    return re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
