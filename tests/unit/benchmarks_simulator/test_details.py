"""Details of the simulator that a fault could hide in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.simulator import OUTCOMES, Result, open_fleet, simulate
from benchmarks.workloads.format import WorkloadRequest
from tests.unit.benchmarks_simulator.worlds import MODEL, config, emulated, steady, understood


def run(requests: list[WorkloadRequest], *instances: dict[str, Any], **options: Any) -> Result:
    fleet = open_fleet(config(*instances), time_factor=options.pop("time_factor", None))
    return simulate(fleet, understood(requests, fleet))


def outcomes(result: Result) -> list[str]:
    return [OUTCOMES[code] for code in result.columns["outcome"]]


def test_an_answer_cut_by_its_money_cap_has_no_known_quality() -> None:
    whole, cut = steady(2, 5.0, quality={MODEL: 1.0})
    cut = replace(cut, routing={"max_cost_usd": 200 * 0.03e-6 + 10 * 0.05e-6})
    result = run([whole, cut], emulated("a"))
    assert outcomes(result) == ["ok", "budget_exhausted_mid_decode"]
    assert result.columns["quality"][0] == 1.0
    assert np.isnan(result.columns["quality"][1])


def ollama(name: str, **more: Any) -> dict[str, Any]:
    served = {MODEL: {"name": "llama3.1:8b", "quantization": "q4", **more}}
    return emulated(name, "rtx-4090", emulates="ollama", serves=served, profile=f"{MODEL}-q4@rtx-4090")


@pytest.mark.parametrize("instance", [emulated("a"), ollama("a")])
def test_an_answer_has_one_gap_less_than_tokens(instance: dict[str, Any]) -> None:
    result = run(steady(1, 1.0, output_tokens=37), instance)
    gaps_s, counts = result.gaps.arrays()
    assert counts.sum() == 36
    decode_s = result.columns["e2e_s"][0] - result.columns["ttft_s"][0]
    assert (gaps_s * counts).sum() == pytest.approx(decode_s, rel=0.01)  # the width of a bin


def test_gaps_are_in_the_simulators_seconds() -> None:
    means_s = []
    for time_factor in (4.0, 1.0):
        gaps_s, counts = run(steady(1, 1.0), emulated("a", speed=4.0), time_factor=time_factor).gaps.arrays()
        means_s.append(np.average(gaps_s, weights=counts))
    assert means_s[0] == pytest.approx(4 * means_s[1], rel=0.02)


def test_an_answer_ends_where_the_context_does() -> None:
    instance = emulated("a", serves={MODEL: {"name": MODEL, "context_tokens": 512}})
    result = run(steady(1, 1.0, prompt_tokens=500, output_tokens=200), instance)
    assert result.columns["output_tokens"][0] == 12


def test_a_prompt_that_ollama_cut_finds_nothing_in_its_cache() -> None:
    """What is cut is the head, and with it all that a cache could know."""
    hashes = tuple(range(40))
    requests = [
        replace(each, prompt_tokens=40 * 512, output_tokens=4, prefix_hashes=hashes)
        for each in steady(2, 30.0)
    ]
    fleet = open_fleet(config(ollama("a")))
    engine = fleet.engines()["a"]
    assert engine._engine.slot_context_tokens(MODEL) < 40 * 512
    for at, each in enumerate(requests):
        engine.submit(each.id, MODEL, each.prompt_tokens, 4, hashes, 100.0 * at)
        engine.advance(100.0 * (at + 1))
    assert engine._engine.prefix_hits_total == 0


def test_a_long_idle_time_is_passed_over() -> None:
    day_s = 86_400.0
    requests = [replace(each, arrival_s=at * 30 * day_s) for at, each in enumerate(steady(3, 1.0))]
    result = run(requests, *(emulated(f"i{at}") for at in range(20)))
    assert outcomes(result) == ["ok"] * 3
    assert result.end_s > 60 * day_s
    assert result.events < 10_000


def test_a_long_queue_is_served_in_order() -> None:
    instances = [emulated(f"i{at}", max_concurrency=4) for at in range(3)]
    fleet = open_fleet(config(*instances, limits={"max_queue": 10_000, "request_timeout_s": 1e6}))
    requests = [replace(each, arrival_s=0.001 * at) for at, each in enumerate(steady(800, 1.0))]
    result = simulate(fleet, understood(requests, fleet))
    assert set(outcomes(result)) == {"ok"}
    # First come, first served: the waits never fall but for those who come while others are served.
    dispatched_s = result.columns["arrival_s"] + result.columns["queue_wait_s"]
    assert (np.diff(dispatched_s) >= -1e-3).all()


def test_preemptions_are_counted_even_of_an_engine_that_is_lost() -> None:
    crowd = steady(40, 0.01, output_tokens=2000)  # 88,000 tokens, twice what an A30 holds beside the weights
    preempted = run(crowd, emulated("a")).preemptions
    assert preempted > 0
    assert run(crowd[:1], emulated("a")).preemptions == 0
    engine = open_fleet(config(emulated("a"))).engines()["a"]
    for each in crowd:
        engine.submit(each.id, MODEL, each.prompt_tokens, each.output_tokens, (), each.arrival_s)
    while (due := engine.next_at()) is not None:
        engine.advance(due)
    engine.restart()
    assert engine.preemptions == preempted


def test_bounds_beyond_single_precision_are_kept_as_the_largest_number() -> None:
    routing = {"max_cost_usd": 1e300, "slo": {"ttft_ms": 1e300, "tpot_ms": 1e300, "e2e_ms": 1e300}}
    fleet = open_fleet(config(emulated("a")))
    found = simulate(fleet, understood(steady(1, 1.0, routing=routing), fleet))
    assert found.columns["met"].tolist() == [1]
    for name in ("max_cost_usd", "slo_ttft_s", "slo_tpot_s", "slo_e2e_s"):
        assert found.columns[name][0] == np.finfo(np.float32).max
