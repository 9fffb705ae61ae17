"""Tables of policies as Markdown, from the figures that `benchmarks.claims.measured` keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.compare.tables import three_digits

#: `policies`: by policy `rates` (by rate: the measures as (mean, half-width of a 95 % interval), and the attainment of each
#: draw) and `capacity` as text. `oracle`, if there is one: the clairvoyant's attainment by rate.
Figures = Mapping[str, Any]


def by_rate(figures: Figures, times_at: str) -> str:
    """A row for each policy: its attainment at each rate, the rate at which it falls to the target, and mean times at the
    rate `times_at`. The best policy of a column is not marked: intervals overlap. The greatest half-widths follow."""
    rates = list(next(iter(figures["policies"].values()))["rates"])
    lines = [
        _row(["policy", *(f"{rate}/s" for rate in rates), "95 % up to", "TTFT", "E2E"]),
        _row(["---"] * (len(rates) + 4)),
    ]
    for policy, found in figures["policies"].items():
        cells = [f"{100 * found['rates'][rate]['attainment'][0]:.1f} %" for rate in rates]
        times = [f"{found['rates'][times_at][name][0]:.2f} s" for name in ("ttft_s_mean", "e2e_s_mean")]
        lines.append(_row([f"`{policy}`", *cells, found["capacity"] + "/s", *times]))
    oracle = figures.get("oracle")
    if oracle:
        cells = [f"{100 * oracle[rate]:.1f} %" for rate in rates]
        lines.append(_row(["a clairvoyant schedule (one draw)", *cells, "", "", ""]))
    widest = [
        max(found["rates"][rate]["attainment"][1] for found in figures["policies"].values()) for rate in rates
    ]
    told = ", ".join(f"{100 * width:.1f} at {rate}/s" for rate, width in zip(rates, widest, strict=True))
    return "\n".join(
        [*lines, "", f"Half-widths of 95 % intervals of attainment, in points, at most: {told}."]
    )


def by_rate_and_policy(figures: Figures) -> str:
    """A row for each rate and policy: attainment, and the quantiles of times."""
    policies = figures["policies"]
    lines = [_row(["rate", "policy", "attained", "TTFT p50 / p95 s", "E2E p50 / p95 s"]), _row(["---"] * 5)]
    for rate in next(iter(policies.values()))["rates"]:
        for at, (policy, found) in enumerate(policies.items()):
            here = found["rates"][rate]
            times = [
                f"{three_digits(here[f'{name}_p50'][0])} / {three_digits(here[f'{name}_p95'][0])}"
                for name in ("ttft_s", "e2e_s")
            ]
            attained = _percent(here["attainment"])
            lines.append(_row(["" if at else f"{rate}/s", f"`{policy}`", attained, *times]))
    return "\n".join(lines)


def differences(old: Figures, new: Figures, at_most: float) -> Iterator[str]:
    """What the draws that both have attain differently by more than `at_most`, one line each."""
    for policy, found in new["policies"].items():
        for rate, here in found["rates"].items():
            kept = old["policies"][policy]["rates"][rate]["draws"]
            for draw, (before, now) in enumerate(zip(kept, here["draws"], strict=False)):
                if abs(before - now) > at_most:
                    yield f"{policy}, {rate}/s, draw {draw}: {before:.4f} is told, {now:.4f} measured"


def _percent(figure: Sequence[float]) -> str:
    return f"{100 * figure[0]:.1f} ±{100 * figure[1]:.1f} %"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
