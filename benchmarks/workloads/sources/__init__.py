"""The registry of public sets. To add one: a file here and a line below."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.workloads.sources import (
    alpaca_eval,
    arena,
    azure,
    length_pairs,
    llmrouter,
    mooncake,
    servegen,
    zeroeval,
)
from benchmarks.workloads.sources.source import Source

SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        azure.CONVERSATION,
        azure.CODE,
        mooncake.CONVERSATION,
        mooncake.SYNTHETIC,
        *servegen.SERVEGEN,
        length_pairs.SHAREGPT,
        length_pairs.ARXIV,
        alpaca_eval.ALPACA_EVAL,
        zeroeval.ZEROEVAL,
        arena.ARENA,
        llmrouter.LLMROUTER,
    )
}
