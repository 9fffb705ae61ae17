"""Reads an engine's load from its Prometheus text, by lists of aliases.

Names are vLLM's (current and older), SGLang's and llama-server's. Only these families are searched for, so the
histograms, most of a scrape, cost nothing. An absent value is unknown (None), never zero. Values are summed over labels
(`engine`, `model_name`); shares are averaged.
"""

from __future__ import annotations

import re
from contextlib import suppress

from router.core.types import LoadReport

RUNNING = (b"vllm:num_requests_running", b"sglang:num_running_reqs", b"llamacpp:requests_processing")
WAITING = (b"vllm:num_requests_waiting", b"sglang:num_queue_reqs", b"llamacpp:requests_deferred")
KV_USAGE = (
    b"vllm:kv_cache_usage_perc",
    b"vllm:gpu_cache_usage_perc",
    b"sglang:token_usage",
    b"llamacpp:kv_cache_usage_ratio",
)
CACHE_CONFIG = b"vllm:cache_config_info"
KV_TOKENS = (b"sglang:max_total_num_tokens",)

#: The most samples of a family; an engine has one for each of its models and processes.
_MAX_SAMPLES = 1000
_MAX_LINE_BYTES = 4096
_LARGEST = 1e15
_MOST_REQUESTS = 1_000_000

#: The labels of a sample. What follows may hold braces too: an exemplar has labels of its own.
_LABELS = re.compile(rb'\{((?:[^"}]|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+)\}')
#: It begins at a word and takes each byte of it once, else a long word would take a time that grows with its square.
_LABEL = re.compile(rb'\b([A-Za-z_][A-Za-z0-9_]*+)="([^"\\]*+(?:\\.[^"\\]*+)*+)"')


def samples(text: bytes, name: bytes) -> list[tuple[bytes, float]]:
    """Label text and value of every sample of `name`. `text` starts with a newline."""
    found: list[tuple[bytes, float]] = []
    needle = b"\n" + name
    at = text.find(needle)
    while at >= 0 and len(found) < _MAX_SAMPLES:
        start = at + len(needle)
        end = text.find(b"\n", start)
        line = text[start : min(end if end >= 0 else len(text), start + _MAX_LINE_BYTES)]
        labels, rest = b"", line
        if (braces := _LABELS.match(line)) is not None:
            labels, rest = braces.group(1), line[braces.end() : braces.end() + 100]
        if rest[:1] in {b" ", b"\t"}:  # otherwise it is a longer name with the same beginning
            with suppress(ValueError, IndexError):
                found.append((labels, float(rest.split(maxsplit=1)[0])))
        at = text.find(needle, start)
    # An impossible value is unknown: no count, share or time is negative, infinite or NaN.
    return [(labels, value) for labels, value in found if 0 <= value <= _LARGEST]


def _values(text: bytes, names: tuple[bytes, ...]) -> list[float] | None:
    """The samples of the first alias that the engine has."""
    for name in names:
        found = samples(text, name)
        if found:
            return [value for _, value in found]
    return None


def _count(text: bytes, names: tuple[bytes, ...]) -> int | None:
    values = _values(text, names)
    return None if values is None else round(sum(values))


def _requests(text: bytes, names: tuple[bytes, ...]) -> int | None:
    count = _count(text, names)
    return count if count is not None and count <= _MOST_REQUESTS else None


def _mean(text: bytes, names: tuple[bytes, ...]) -> float | None:
    values = _values(text, names)
    mean = None if values is None else sum(values) / len(values)
    return mean if mean is not None and mean <= 1 else None


def _kv_capacity_tokens(text: bytes) -> int | None:
    total = 0
    for labels, _ in samples(text, CACHE_CONFIG):
        config = dict(_LABEL.findall(labels))
        block, blocks = config.get(b"block_size", b""), config.get(b"num_gpu_blocks", b"")
        if block.isdigit() and blocks.isdigit() and len(block) + len(blocks) <= 12:
            total += int(block) * int(blocks)
    return total or _count(text, KV_TOKENS)


def load_report(scrape: bytes) -> LoadReport:
    """The load in one scrape."""
    text = b"\n" + scrape
    return LoadReport(
        running=_requests(text, RUNNING),
        waiting=_requests(text, WAITING),
        kv_usage=_mean(text, KV_USAGE),
        kv_capacity_tokens=_kv_capacity_tokens(text),
    )
