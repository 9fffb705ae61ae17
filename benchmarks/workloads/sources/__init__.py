"""The registry of public sets. To add one: a file here and a line below."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.workloads.sources import alpaca_eval, azure, mooncake, sharegpt, zeroeval
from benchmarks.workloads.sources.source import Source

SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        azure.CONVERSATION,
        azure.CODE,
        mooncake.CONVERSATION,
        mooncake.SYNTHETIC,
        sharegpt.SHAREGPT,
        alpaca_eval.ALPACA_EVAL,
        zeroeval.ZEROEVAL,
    )
}
