"""Published logs of engines as runs, attempts and states."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.datasets.engine_logs import BURST_PROFILE, BURST_PROMPT_SHARE, PooledCache
from benchmarks.datasets.public import read_public
from predictors.training.dataset import Attempt, Dataset, State
from router.core.profile import EngineProfile
from tests.data_files import put


def burst(folder: Path) -> Dataset:
    requests = {"max_tokens": 1024, "out_chars_with_prompt": 7000}
    put(
        folder / "vllm_burst_llama32_1b" / "requests.csv.gz",
        [
            requests | {"scale": "1000", "arrival_s": 2.0, "in_tokens": 100, "ttft_s": 0.5, "e2e_s": 4.0},
            requests | {"scale": "1000", "arrival_s": 1.0, "in_tokens": 1, "ttft_s": 0.25, "e2e_s": 2.0},
            requests | {"scale": "200", "arrival_s": 0.0, "in_tokens": 10, "ttft_s": 0.25, "e2e_s": 2.0},
        ],
    )
    state = {"num_swapped": 0, "prompt_tok_per_s": 9.5, "gen_tok_per_s": 80.0}
    put(
        folder / "vllm_burst_llama32_1b" / "engine_state.csv.gz",
        [
            state | {"scale": "1000", "t_s": 1.5, "num_running": 3, "num_pending": 1, "kv_usage": 12.5},
            state | {"scale": "1000", "t_s": 1.0, "num_running": 0, "num_pending": 0, "kv_usage": 0.0},
        ],
    )
    return read_public(folder)


def test_burst_levels_are_runs_in_order_of_time(tmp_path: Path) -> None:
    data = burst(tmp_path)
    found = [(run.id, run.level, run.profile) for run in data.runs]
    assert found == [("vllm_burst/200", "200", None), ("vllm_burst/1000", "1000", None)]
    assert EngineProfile(**dict(data.runs[0].profile_values or {})) == BURST_PROFILE
    assert data.attempts[1:] == (
        Attempt("vllm_burst/1000", "llama-3.2-1b", 1.0, 1, 1.25, 3.0, None, 1024, 0),
        Attempt(
            "vllm_burst/1000", "llama-3.2-1b", 2.0, round(BURST_PROMPT_SHARE * 100), 2.5, 6.0, None, 1024, 0
        ),
    )
    seen = data.states
    assert seen == (State("vllm_burst/1000", 1.0, 0, 0, 0.0), State("vllm_burst/1000", 1.5, 3, 1, 0.125))


def aibrix(
    folder: Path, rows: list[tuple[str, str, float, str, int]], release: str = "v0.2.1"
) -> list[Attempt]:
    put(
        folder / "aibrix_vllm_llama31_8b" / "requests.csv.gz",
        [
            {
                "release": release,
                "config": config,
                "qps": qps,
                "launch_s": launch_s,
                "prompt_tokens": tokens,
                "generation_tokens": 100,
                "ttft_s": 1.0,
                "generation_s": 2.0,
                "user_id": user,
            }
            for config, qps, launch_s, user, tokens in rows
        ],
    )
    return list(read_public(folder).attempts)


def test_a_users_earlier_prompt_is_found_where_the_router_looks_for_it(tmp_path: Path) -> None:
    rows = [
        ("ps_naive", "0.1", 0.0, "7", 20_000),
        ("ps_naive", "0.5", 0.0, "7", 20_000),  # a later level of the same configuration
        ("ps_naive", "0.5", 1.0, "8", 20_000),
        ("ps_naive", "0.5", 3.5, "8", 21_000),  # the earlier one still runs
        ("ps_naive", "0.5", 9.0, "8", 21_000),
        ("naive", "0.1", 0.0, "7", 20_000),
        ("naive", "0.5", 9.0, "7", 20_000),
        ("ps_stack", "0.1", 0.0, "7", 20_000),
    ]
    found = aibrix(tmp_path, rows)
    cached = {}
    for each in found:
        cached.setdefault(each.run.split("/")[2], []).append(each.cached_tokens)
    assert cached == {"naive": [0, 0], "ps_naive": [0, 19_984, 0, 0, 20_992], "ps_stack": [19_984]}
    assert found[0] == Attempt(
        "aibrix/v0.2.1/naive/0.1", "llama-3.1-8b", 0.0, 20_000, 1.0, 3.0, 100, None, 0, session="7"
    )


def test_a_level_that_is_not_there_served_the_same_users(tmp_path: Path) -> None:
    # At 0.5 in the folder, 0.1 not: it had a fifth of the requests.
    rows = [("ps_naive", "0.5", float(at), str(at), 20_000) for at in range(5)]
    assert [each.cached_tokens for each in aibrix(tmp_path, rows)] == [19_984, 0, 0, 0, 0]


def test_aibrix_runs_are_clusters(tmp_path: Path) -> None:
    aibrix(tmp_path, [("naive", "2.1", 0.0, "7", 20_000)], release="v0.3.0")
    (run,) = read_public(tmp_path).runs
    assert (run.replicas, run.level, run.hardware) == (8, "2.1", "h20-96g")
    assert run.profile == "llama-3.1-8b@a100-80g"
    assert EngineProfile(**dict(run.profile_values or {})).max_batched_tokens == 8192


def test_a_pool_drops_who_came_longest_ago() -> None:
    pool = PooledCache(100)
    pool.add("a", 48)
    pool.add("b", 48)
    pool.add("a", 48)
    assert (pool.found("a", 48), pool.found("b", 64)) == (32, 48)  # at least one token is computed
    pool.add("c", 48)
    assert (pool.found("a", 64), pool.found("b", 64)) == (48, 0)
    assert PooledCache(0).found("a", 64) == 0
    assert PooledCache(None, warm=True).found("new", 65) == 64


def test_helix_clusters_of_one_kind(tmp_path: Path) -> None:
    row = {"policy": "helix", "mode": "online", "in_tokens": 50, "out_tokens": 0, "ttft_s": 1.0, "e2e_s": 9.0}
    rows = [
        row
        | {"setup": "s", "model": "llama-70b", "gpu": gpu, "query_id": at, "dispatch_s": float(count - at)}
        for gpu, count in (("l4", 25), ("mixed", 25))
        for at in range(count)
    ]
    rows += [row | {"setup": "few", "model": "llama-70b", "gpu": "t4", "query_id": 0, "dispatch_s": 0.0}]
    put(tmp_path / "helix_llama_gpu" / "requests.csv.gz", rows)
    data = read_public(tmp_path, ["helix"])
    assert [(run.id, run.hardware, run.profile_values) for run in data.runs] == [("helix/s", "l4", None)]
    assert [each.dispatched_s for each in data.attempts] == [float(at) for at in range(1, 26)]
    assert {each.output_tokens for each in data.attempts} == {1}


def test_a_wrong_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2: launch_s: must be a number"):
        aibrix(tmp_path, [("naive", "0.1", "soon", "7", 20_000)])  # type: ignore[list-item]
