"""What a workload looks like: quantiles of its lengths, its rate, the CV of its gaps, its routing parameters; what is known
of the models; the same by source where several are mixed."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measures import Summary, coefficient_of_variation, mean_rate
from benchmarks.workloads import sketch
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, writing

_SPARK_WIDTH = 60


@dataclass(slots=True)
class Mean:
    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value

    def as_dict(self) -> dict[str, float | int]:
        return {"count": self.count, "mean": self.total / self.count}


@dataclass(slots=True)
class Description:
    """The numbers of a workload, and the values that plots need (16 bytes a request)."""

    requests: int = 0
    with_prompt: int = 0
    with_slo: int = 0
    with_budget: int = 0
    budget_usd: float = 0.0
    blocks: int = 0
    blocks_seen_before: int = 0
    arrivals_s: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: array[int] = field(default_factory=lambda: array("I"))
    output_tokens: array[int] = field(default_factory=lambda: array("I"))
    policies: Counter[str] = field(default_factory=Counter)
    tokens_by_model: dict[str, Mean] = field(default_factory=dict)
    quality_by_model: dict[str, Mean] = field(default_factory=dict)
    sources: dict[str, Description] = field(default_factory=dict)

    def add(self, request: WorkloadRequest) -> None:
        """Take in one request, later than those before."""
        self.requests += 1
        self.arrivals_s.append(request.arrival_s)
        self.prompt_tokens.append(request.prompt_tokens)
        output_tokens = request.longest_output_tokens()
        if output_tokens is not None:
            self.output_tokens.append(output_tokens)
        if isinstance(request.output_tokens, Mapping):
            for model, tokens in request.output_tokens.items():
                self.tokens_by_model.setdefault(model, Mean()).add(tokens)
        for model, quality in (request.quality or {}).items():
            self.quality_by_model.setdefault(model, Mean()).add(quality)
        self.with_prompt += request.prompt is not None
        routing = request.routing or {}
        self.with_slo += "slo" in routing
        if "max_cost_usd" in routing:
            self.with_budget += 1
            self.budget_usd += routing["max_cost_usd"]
        if "policy" in routing:
            self.policies[routing["policy"]] += 1

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: counts, rate, gaps, lengths in tokens, means by model, each source."""
        found: dict[str, Any] = {
            "requests": self.requests,
            "span_s": self.arrivals_s[-1] - self.arrivals_s[0] if self.arrivals_s else None,
            "rate_per_s": mean_rate(self.arrivals_s),
            "gap_cv": coefficient_of_variation(np.diff(self.arrivals_s)),
            "prompt_tokens": asdict(Summary.of(self.prompt_tokens)),
            "output_tokens": asdict(Summary.of(self.output_tokens)),
            "output_tokens_by_model": _means(self.tokens_by_model),
            "quality_by_model": _means(self.quality_by_model),
            "with_prompt": self.with_prompt,
            "with_slo": self.with_slo,
            "with_budget": self.with_budget,
            "mean_budget_usd": self.budget_usd / self.with_budget if self.with_budget else None,
            "policies": dict(self.policies),
            "prefix_blocks": self.blocks or None,
            "prefix_blocks_seen_before_share": self.blocks_seen_before / self.blocks if self.blocks else None,
        }
        if self.sources:
            found["sources"] = {name: each.as_dict() for name, each in self.sources.items()}
        return found


def _means(means: Mapping[str, Mean]) -> dict[str, Any] | None:
    return {model: mean.as_dict() for model, mean in means.items()} or None


def describe(requests: Iterable[WorkloadRequest]) -> Description:
    found = Description()
    for _ in passing(requests, found):
        pass
    return found


def passing(requests: Iterable[WorkloadRequest], whole: Description) -> Iterator[WorkloadRequest]:
    """The same requests, one by one; at their end `whole` describes them. Its `sources` are filled where there is more than
    one."""
    sources: dict[str, Description] = {}
    seen: set[int] = set()
    for request in requests:
        own = sources.setdefault(request.source, Description())
        for description in (whole, own):
            description.add(request)
        for block in request.prefix_hashes or ():
            before = block in seen
            for description in (whole, own):
                description.blocks += 1
                description.blocks_seen_before += before
            seen.add(block)
        yield request
    if len(sources) > 1:
        whole.sources = dict(sorted(sources.items()))


def text(header: Header, description: Description) -> str:
    """The numbers as lines for a person, with plots of arrivals and lengths."""
    lines = [f"source     {header.source}"]
    if header.licence:
        lines.append(f"licence    {header.licence}")
    lines.append(f"seed       {header.seed}")
    if header.cuts:
        lines.append("cuts       " + ", ".join(f"{name} {value}" for name, value in header.cuts.items()))
    if header.length_wins:
        lines.append(f"length     {header.length_wins}")
    lines += _numbers(description)
    if description.requests:
        lines += ["", _arrivals(description), ""]
        lines += sketch.histograms({"input": description.prompt_tokens, "output": description.output_tokens})
    for name, own in description.sources.items():
        lines += [
            "",
            f"--- {name or 'no source told'}: {100 * own.requests / description.requests:.1f} % of requests",
        ]
        lines += [*_numbers(own), _arrivals(own)]
        sides = {"input": own.prompt_tokens, "output": own.output_tokens}
        lines += [_spark(side, values) for side, values in sides.items() if values]
    return "\n".join(lines)


def _numbers(description: Description) -> list[str]:
    found = description.as_dict()
    lines = [
        f"requests   {description.requests:,}"
        + ("" if found["span_s"] is None else f" in {found['span_s']:,.1f} s")
        + ("" if found["rate_per_s"] is None else f", {found['rate_per_s']:.3f}/s")
        + ("" if found["gap_cv"] is None else f", CV of gaps {found['gap_cv']:.2f}"),
        _line("input", found["prompt_tokens"]),
        _line("output", found["output_tokens"]),
    ]
    for model, mean in sorted(description.tokens_by_model.items()):
        quality = description.quality_by_model.get(model)
        lines.append(
            f"  {model:<24} mean output {mean.as_dict()['mean']:,.0f} tokens"
            + ("" if quality is None else f", mean quality {quality.as_dict()['mean']:.3f}")
            + f" ({mean.count:,} answers)"
        )
    for model, quality in sorted(description.quality_by_model.items()):
        if model not in description.tokens_by_model:
            lines.append(
                f"  {model:<24} mean quality {quality.as_dict()['mean']:.3f} ({quality.count:,} answers)"
            )
    budget = "" if not description.with_budget else f", mean {found['mean_budget_usd']:.3g} USD"
    lines += [
        f"texts      {description.with_prompt:,} of {description.requests:,} (the others are made up when sent)",
        f"SLO        {description.with_slo:,} requests; budget {description.with_budget:,}{budget}",
    ]
    if description.blocks:
        share = found["prefix_blocks_seen_before_share"]
        lines.append(f"prefixes   {description.blocks:,} blocks, {100 * share:.1f} % seen before")
    return lines


def _line(name: str, summary: dict[str, Any]) -> str:
    if not summary["count"]:
        return f"{name:<10} unknown"
    quantiles = ", ".join(f"{key} {summary[key]:,.0f}" for key in ("p50", "p90", "p99", "max"))
    return f"{name:<10} mean {summary['mean']:,.0f}, {quantiles} tokens"


def _arrivals(description: Description) -> str:
    rates, width_s = sketch.per_second(description.arrivals_s, _SPARK_WIDTH)
    return f"arrivals   {sketch.sparkline(rates)}  {min(rates):.3g} to {max(rates):.3g}/s over {width_s:.3g} s each"


def _spark(side: str, values: Sequence[int]) -> str:
    counts = sketch.doublings(values)
    low, high = min(counts), max(counts)
    line = sketch.sparkline([counts.get(power, 0) for power in range(low, high + 1)])
    return f"{side:<10} {line}  {1 << low:,} to {(2 << high) - 1:,} tokens, a block a doubling"


def plot(path: Path, header: Header, description: Description) -> None:
    """Arrivals over time and lengths as one figure; the format follows the file's ending (.png, .svg, .pdf).
    Needs the extra `bench`."""
    from matplotlib.figure import Figure

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
    with writing(path):
        figure.savefig(path, dpi=150)


def _plot_arrivals(axes: Any, arrivals_s: Sequence[float]) -> None:
    bins = min(200, max(10, len(arrivals_s) // 20))
    rates, width_s = sketch.per_second(arrivals_s, bins)
    first_s = arrivals_s[0] if arrivals_s else 0.0
    axes.stairs(rates, [first_s + index * width_s for index in range(bins + 1)], fill=True, alpha=0.6)
    axes.set(
        title=f"Arrivals (mean over {width_s:.3g} s)", xlabel="time (s)", ylabel="requests/s", ylim=(0, None)
    )


def _plot_lengths(axes: Any, title: str, values: Sequence[int]) -> None:
    if not values:
        axes.set(title=f"{title}: unknown")
        return
    axes.ecdf(values, compress=True)
    axes.set(title=title, xscale="log", xlabel="tokens", ylabel="share at or below", ylim=(0, 1))
    axes.grid(alpha=0.3)
