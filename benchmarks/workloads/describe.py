"""What a workload looks like: quantiles of its lengths, its rate, the CV of its gaps, its wishes; plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measures import Summary, coefficient_of_variation, mean_rate
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest


@dataclass(slots=True)
class Description:
    """The numbers of a workload, and the values that plots need."""

    requests: int = 0
    with_prompt: int = 0
    with_slo: int = 0
    with_budget: int = 0
    blocks: int = 0
    blocks_seen_before: int = 0
    arrivals_s: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    policies: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: counts, rate, gaps, lengths in tokens."""
        gaps_s = [
            later - earlier for earlier, later in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)
        ]
        return {
            "requests": self.requests,
            "span_s": self.arrivals_s[-1] - self.arrivals_s[0] if self.arrivals_s else None,
            "rate_per_s": mean_rate(self.arrivals_s),
            "gap_cv": coefficient_of_variation(gaps_s),
            "prompt_tokens": asdict(Summary.of(self.prompt_tokens)),
            "output_tokens": asdict(Summary.of(self.output_tokens)),
            "with_prompt": self.with_prompt,
            "with_slo": self.with_slo,
            "with_budget": self.with_budget,
            "policies": dict(self.policies),
            "prefix_blocks": self.blocks or None,
            "prefix_blocks_seen_before_share": self.blocks_seen_before / self.blocks if self.blocks else None,
        }


def describe(requests: Iterable[WorkloadRequest]) -> Description:
    """Read through a workload once."""
    description = Description()
    seen: set[int] = set()
    for request in requests:
        description.requests += 1
        description.arrivals_s.append(request.arrival_s)
        description.prompt_tokens.append(request.prompt_tokens)
        output_tokens = request.longest_output_tokens()
        if output_tokens is not None:
            description.output_tokens.append(output_tokens)
        description.with_prompt += request.prompt is not None
        routing = request.routing or {}
        description.with_slo += "slo" in routing
        description.with_budget += "max_cost_usd" in routing
        if "policy" in routing:
            description.policies[routing["policy"]] += 1
        for block in request.prefix_hashes or ():
            description.blocks += 1
            if block in seen:
                description.blocks_seen_before += 1
            seen.add(block)
    return description


def text(header: Header, description: Description) -> str:
    """The numbers as lines for a person."""
    told = description.as_dict()
    lines = [f"source     {header.source}"]
    if header.licence:
        lines.append(f"licence    {header.licence}")
    lines.append(f"seed       {header.seed}")
    if header.cuts:
        lines.append("cuts       " + ", ".join(f"{name} {value}" for name, value in header.cuts.items()))
    if header.length_wins:
        lines.append(f"length     {header.length_wins}")
    lines.append(
        f"requests   {description.requests:,}"
        + ("" if told["span_s"] is None else f" in {told['span_s']:,.1f} s")
        + ("" if told["rate_per_s"] is None else f", {told['rate_per_s']:.3f}/s")
        + ("" if told["gap_cv"] is None else f", CV of gaps {told['gap_cv']:.2f}")
    )
    lines.append(_line("input", told["prompt_tokens"]))
    lines.append(_line("output", told["output_tokens"]))
    lines.append(
        f"texts      {description.with_prompt:,} of {description.requests:,} (the others are made up when sent)"
    )
    lines.append(f"SLO        {description.with_slo:,} requests; budget {description.with_budget:,}")
    if description.blocks:
        lines.append(
            f"prefixes   {description.blocks:,} blocks, {100 * told['prefix_blocks_seen_before_share']:.1f} % seen before"
        )
    return "\n".join(lines)


def _line(name: str, summary: dict[str, Any]) -> str:
    if not summary["count"]:
        return f"{name:<10} unknown"
    quantiles = ", ".join(f"{key} {summary[key]:,.0f}" for key in ("p50", "p90", "p99", "max"))
    return f"{name:<10} mean {summary['mean']:,.0f}, {quantiles} tokens"


def plot(path: Path, header: Header, description: Description) -> None:
    """Arrivals over time and lengths as one figure; the format follows the file's ending (.png, .svg, .pdf)."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise WorkloadError("plots need matplotlib: pip install 'headway[bench]'") from error
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise WorkloadError(f"{path}: plots are written as .png, .svg or .pdf")
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    axes = figure.subplot_mosaic([["arrivals", "arrivals"], ["prompt", "output"]])
    _plot_arrivals(axes["arrivals"], description.arrivals_s)
    for name, title, values in (
        ("prompt", "Input tokens", description.prompt_tokens),
        ("output", "Output tokens", description.output_tokens),
    ):
        _plot_lengths(axes[name], title, values)
    figure.suptitle(f"{header.source}: {description.requests:,} requests")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror or error}") from error


def _plot_arrivals(axes: Any, arrivals_s: Sequence[float]) -> None:
    span_s = max(arrivals_s[-1] - arrivals_s[0], 1e-9) if arrivals_s else 1.0
    bins = min(200, max(10, len(arrivals_s) // 20))
    counts = [0] * bins
    for at_s in arrivals_s:
        counts[min(bins - 1, int((at_s - arrivals_s[0]) / span_s * bins))] += 1
    width_s = span_s / bins
    edges = (
        [arrivals_s[0] + index * width_s for index in range(bins + 1)] if arrivals_s else [0.0] * (bins + 1)
    )
    axes.stairs([count / width_s for count in counts], edges, fill=True, alpha=0.6)
    axes.set(
        title=f"Arrivals (mean over {width_s:.3g} s)", xlabel="time (s)", ylabel="requests/s", ylim=(0, None)
    )


def _plot_lengths(axes: Any, title: str, values: Sequence[int]) -> None:
    if not values:
        axes.set(title=f"{title}: unknown")
        return
    ordered = sorted(values)
    step = max(1, len(ordered) // 2000)
    points = [*range(0, len(ordered), step), len(ordered) - 1]
    axes.plot([ordered[at] for at in points], [(at + 1) / len(ordered) for at in points])
    axes.set(title=title, xscale="log", xlabel="tokens", ylabel="share at or below", ylim=(0, 1))
    axes.grid(alpha=0.3)
