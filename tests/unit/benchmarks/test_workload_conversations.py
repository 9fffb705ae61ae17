"""Generated conversations and quality floors."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice, pairwise

import pytest

from benchmarks.workloads.build import build
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS
from benchmarks.workloads.mixes import RoutingMix
from benchmarks.workloads.options import BuildOptions
from benchmarks.workloads.sources.generators import Lengths, conversations, generate


def test_a_turn_repeats_what_was_said_before() -> None:
    talks = defaultdict(list)
    for request in islice(conversations(generate("poisson", Lengths(), 1), 5, 1), 4000):
        talks[request.session].append(request)
    for turns in talks.values():
        for before, after in pairwise(turns):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert after.prefix_hashes[: len(before.prefix_hashes)] == before.prefix_hashes
            assert len(after.prefix_hashes) == after.prompt_tokens // PREFIX_BLOCK_TOKENS
    blocks = [block for turns in talks.values() for block in turns[-1].prefix_hashes]
    assert len(blocks) == len(set(blocks))
    # Geometric with mean 5 and variance 20 over some 800 conversations: the mean is known to 0.16.
    ended = list(talks.values())[:-20]
    assert sum(map(len, ended)) / len(ended) == pytest.approx(5, abs=0.7)


def test_turns_are_an_option_and_stand_in_the_header() -> None:
    header, requests = build("poisson", BuildOptions(limit=50, turns=3.0), {})
    assert header.details["turns"] == 3.0
    assert any(request.prefix_hashes for request in requests)


def test_quality_floors_are_drawn_by_share() -> None:
    mix = RoutingMix.of(quality_mix="0.7=0.3,none=0.7")
    _, requests = build("poisson", BuildOptions(limit=2000, routing=mix), {})
    floors = [(request.routing or {}).get("min_quality") for request in requests]
    assert set(floors) == {0.7, None}
    assert floors.count(0.7) / 2000 == pytest.approx(0.3, abs=0.05)  # 5 standard deviations
    assert mix.as_dict() == {"quality_mix": {"0.7": 0.3, "none": 0.7}}
