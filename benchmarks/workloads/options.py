"""Everything that shapes a workload, as the builder takes it, and the header that tells of it: sources, licences, files, cuts, and
whose lengths and quality it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.workloads.fetch import Loaded
from benchmarks.workloads.format import Header
from benchmarks.workloads.mixes import RoutingMix
from benchmarks.workloads.restrict import Bounds
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.generators import PROCESSES, Lengths
from benchmarks.workloads.sources.source import Choices


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of one build. Times in seconds of the trace's own clock, before any scaling."""

    seed: int = 0
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)  # by source name
    choices: Choices = Choices()
    mix: Mapping[str, float] = field(default_factory=dict)  # further workloads and their shares
    rate_per_s: float | None = None
    rate_scale: float | None = None
    start_s: float = 0.0
    duration_s: float | None = None
    limit: int | None = None
    arrivals: str | None = None  # a process or a timed source
    cv: float = 4.0
    period_s: float = 86400.0
    depth: float = 0.6
    turns: float = 1.0  # of a generated conversation, on average
    prompts: str | None = None  # a source with texts
    lengths: str | None = None  # a source whose lengths are taken
    generator_lengths: Lengths = Lengths()
    length_wins: Literal["workload", "prompts"] = "workload"
    bounds: Bounds = Bounds()
    max_tokens: int | Literal["auto", "exact"] = "auto"
    routing: RoutingMix = RoutingMix()

    @property
    def end_s(self) -> float:
        """Where the slice ends on the trace's clock; infinite without a duration."""
        return float("inf") if self.duration_s is None else self.start_s + self.duration_s


def header(
    name: str, options: BuildOptions, loaded: Mapping[str, Loaded], details: Mapping[str, Any], requests: int
) -> Header:
    """The header of workload `name`; `details` is what the builder found out on its way."""
    sliced = {"start_s": options.start_s or None, "duration_s": options.duration_s, "limit": options.limit}
    cuts = {
        **options.bounds.as_dict(),
        **{name: value for name, value in sliced.items() if value is not None},
        **({"complete": True} if options.choices.complete else {}),
    }
    names = list(dict.fromkeys([name, *options.mix, *loaded]))
    licences = {each: SOURCES[each].licence for each in names if each in SOURCES}
    found: dict[str, Any] = dict(details)
    if options.lengths is None and not PROCESSES.keys().isdisjoint((name, *options.mix)):
        found["lengths"] = options.generator_lengths.as_dict()
    if loaded:
        found["files"] = {
            each: {
                "route": files.route,
                "sha256": dict(files.sha256),
                **({"lengths": "estimated"} if files.lengths_estimated else {}),
            }
            for each, files in loaded.items()
        }
    own_lengths = options.prompts is not None and options.length_wins == "prompts"
    lengths_of = options.prompts if own_lengths else options.lengths or name
    found |= _models("output_tokens_of_models", options, lengths_of)
    if options.choices.quality:
        found |= _models("quality_of_models", options, options.prompts or name)
    return Header(
        source=" + ".join(names),
        licence="; ".join(f"{each}: {licence}" for each, licence in licences.items()) or None,
        seed=options.seed,
        requests=requests,
        cuts=cuts,
        length_wins=_length_wins(name, options),
        details={**found, **options.routing.as_dict()},
    )


def _models(key: str, options: BuildOptions, first: str | None) -> dict[str, Any]:
    """By set: whose answers they are, as {our name: names in the set}; nothing for sets without models."""
    sets = [each for each in (first, *options.mix) if each is not None and each in SOURCES]
    found = {
        each: {
            ours: list(theirs) for ours, theirs in (options.choices.models or SOURCES[each].models).items()
        }
        for each in sets
        if SOURCES[each].models
    }
    return {key: found} if found else {}


def _length_wins(name: str, options: BuildOptions) -> str | None:
    others = options.lengths or name
    if options.length_wins == "prompts":
        texts = options.prompts or name
        if options.prompts is None or SOURCES[texts].lengths_unknown:
            return f"{texts}: its own prompt lengths are kept, answer lengths are those of {others}"
        return f"{texts}: its own prompt and answer lengths are kept"
    if options.prompts is not None:
        return f"{others}: prompts of {options.prompts} are lengthened or cut to prompt_tokens"
    if options.lengths is None:
        return None
    if name in SOURCES and SOURCES[name].texts:
        return f"{others}: prompts of {name} are lengthened or cut to its lengths"
    return f"{others}: prompts are made up to its lengths"
