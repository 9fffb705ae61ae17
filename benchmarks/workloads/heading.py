"""The header of a built workload: sources, licences, files, cuts, and whose lengths and quality it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.workloads.fetch import Loaded
from benchmarks.workloads.format import Header
from benchmarks.workloads.options import BuildOptions
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.generators import PROCESSES


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
