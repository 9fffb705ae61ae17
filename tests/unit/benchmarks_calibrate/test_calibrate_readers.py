"""Readers, on small files in the form of the published ones, and the split by level."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.calibrate.command import read_levels
from benchmarks.calibrate.errors import simulate
from benchmarks.calibrate.measured import (
    Level,
    Measured,
    Split,
    State,
    by_load,
    read_file,
    splitter,
    write_file,
)
from benchmarks.calibrate.sources import SOURCES
from benchmarks.replay.command import RESULTS_KEY
from benchmarks.replay.row import Row
from benchmarks.workloads.format import WorkloadError
from tests.data_files import put
from tests.unit.benchmarks_calibrate.made import TRUTH

HEAD = {"headway_measurement": 1}
ROW = {"level": "a", "arrival_s": 0.5, "prompt_tokens": 10, "output_tokens": 7, "ttft_s": 0.1, "e2e_s": 0.7}


def lines(path: Path, *rows: Mapping[str, Any] | bytes) -> Path:
    path.write_bytes(b"".join((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n" for row in rows))
    return path


# --- the measurement form ------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    levels = [
        Level(
            "low",
            (Measured(0.5, 10, 7, 0.1, 0.7), Measured(1.5, 12, 9, None, None)),
            (State(0.5, 1, 0, kv_usage=0.1),),
        ),
        Level("high", (Measured(0.1, 10, 7, 0.2, 0.8),)),
    ]
    write_file(tmp_path / "m.jsonl", levels, {"model": "m"})
    assert read_file(tmp_path / "m.jsonl") == levels
    assert levels[0].requests[0].tpot_s == pytest.approx(0.1)
    assert Measured(0, 10, 4, 0.1, 0.7).tpot_s is None  # too few tokens to tell


def test_a_request_without_output_tokens_loads_the_engine_with_the_median(tmp_path: Path) -> None:
    unknown = {**ROW, "arrival_s": 0.1, "output_tokens": None}
    (level,) = read_file(lines(tmp_path / "m", HEAD, ROW, unknown, {**ROW, "output_tokens": 9}))
    found = [(each.arrival_s, each.output_tokens, each.e2e_s) for each in level.requests]
    assert found == [(0.1, 8, None), (0.5, 7, 0.7), (0.5, 9, 0.7)]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (({"a": 1},), "line 1: expected"),
        ((HEAD,), "holds no request"),
        ((HEAD, b"{"), "line 2: not valid JSON"),
        ((HEAD, ROW, b"[]"), "line 3: must be a JSON object"),
        ((HEAD, {**ROW, "level": 1}), "line 2: level: must be a text that is not empty"),
        ((HEAD, {**ROW, "arrival_s": None}), r"line 2: arrival_s: must be a number \(given: null\)"),
        ((HEAD, {**ROW, "ttft_s": "x"}), "line 2: ttft_s: must be a number"),
        ((HEAD, {**ROW, "e2e_s": 0.05}), "line 2: expected 0 < ttft_s <= e2e_s"),
        ((HEAD, {**ROW, "prompt_tokens": 0}), "line 2: prompt_tokens: must be at least 1"),
        ((HEAD, {"level": "a", "t_s": 1, "running": 2}), "line 2: waiting: is missing"),
        ((HEAD, {**ROW, "output_tokens": None}), "level a: output_tokens is null in every"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, rows: Any, told: str) -> None:
    path = lines(tmp_path / "bad.jsonl", *rows)
    with pytest.raises(WorkloadError, match=told) as caught:
        read_file(path)
    assert "\n" not in str(caught.value)
    assert "level a" in told or str(path) in str(caught.value)


# --- rows of a replay ----------------------------------------------------------------------------------


def replayed(**changes: Any) -> dict[str, Any]:
    row = Row("r", 1.0, 1.01, complete=True, ttft_s=0.2, e2e_s=0.9, prompt_tokens=20, output_tokens=8)
    return {**asdict(row), **changes}


def test_a_replay_s_row_file_is_one_level(tmp_path: Path) -> None:
    failed = replayed(id="f", complete=False, e2e_s=None)
    path = lines(tmp_path / "rate-2.jsonl", {RESULTS_KEY: 1}, replayed(), failed)
    assert read_levels(path) == [Level("rate-2", (Measured(1.0, 20, 8, 0.2, 0.9),))]


def test_rows_of_a_fleet_are_refused(tmp_path: Path) -> None:
    there, here = ({"x-headway-instance": name} for name in ("there", "here"))
    path = lines(tmp_path / "f.jsonl", {RESULTS_KEY: 1}, replayed(headers=there), replayed(headers=here))
    with pytest.raises(WorkloadError, match="answered by 2 instances"):
        read_levels(path)
    with pytest.raises(WorkloadError, match="no request was answered"):
        read_levels(lines(tmp_path / "n.jsonl", {RESULTS_KEY: 1}, replayed(complete=False)))
    with pytest.raises(WorkloadError, match="is empty"):
        read_levels(lines(tmp_path / "e.jsonl"))


# --- the split -----------------------------------------------------------------------------------------


def test_of_every_three_levels_the_middle_one_is_held_out() -> None:
    assert splitter(None, None)(list("abcdefg")) == Split(tuple("acdfg"), tuple("be"))
    assert splitter(None, None)(["low", "high"]) == Split(("high",), ("low",))
    assert splitter(None, None)(["one"]) == Split(("one",), ())


def test_the_split_is_as_told_and_by_whole_levels() -> None:
    names = ["1", "2", "4"]
    assert splitter(("1", "4"), None)(names) == Split(("1", "4"), ("2",))
    assert splitter(None, ("4",))(names) == Split(("1", "2"), ("4",))
    assert splitter(("1",), ("4",))(names) == Split(("1",), ("4",))
    for fit, test, told in (
        (("3",), None, "unknown level '3'"),
        (("1",), ("1",), "is in --fit and in --test"),
        (None, ("1", "2", "4"), "no level is left"),
    ):
        with pytest.raises(WorkloadError, match=told):
            splitter(fit, test)(names)


def test_levels_are_in_order_of_load_and_their_names_differ() -> None:
    slow = Level("z", (Measured(0, 1, 1, 1, 1), Measured(9, 1, 1, 1, 1)))
    fast = Level("a", (Measured(0, 1, 1, 1, 1), Measured(1, 1, 1, 1, 1)))
    assert by_load([fast, slow]) == [slow, fast]
    with pytest.raises(WorkloadError, match="'a' is in more than one file"):
        by_load([fast, fast])


# --- published tables ----------------------------------------------------------------------------------


def burst(data: Path, *, chars: Mapping[int, int]) -> None:
    """Three speeds; an engine that gives 50 tokens a second to each of two running sequences."""
    requests, states = [], []
    for scale, count in chars.items():
        requests += [
            {
                "scale": scale, "event_id": index, "arrival_s": index * 100 / scale, "in_tokens": 100 + index,
                "max_tokens": 1024,
                "out_chars_with_prompt": count + index, "ttft_s": 0.5, "e2e_s": 0.5 + 2 * (index + 1),
            }
            for index in range(3)
        ]  # fmt: skip
        states += [
            {
                "scale": scale, "t_s": step / 2, "prompt_tok_per_s": 0, "gen_tok_per_s": 100, "num_running": 2,
                "num_pending": 0, "kv_usage": 10,
            }
            for step in range(400)
        ]  # fmt: skip
    put(data / "vllm_burst_llama32_1b" / "requests.csv.gz", requests)
    put(data / "vllm_burst_llama32_1b" / "engine_state.csv.gz", states)


def test_vllm_burst_tells_output_tokens_from_the_fitted_levels(tmp_path: Path) -> None:
    burst(tmp_path, chars={10: 400, 20: 400, 40: 404})
    (study,) = SOURCES["vllm_burst"](tmp_path, splitter(("10", "20"), ("40",)))
    assert list(study.levels) == ["10", "20", "40"]
    assert [each.output_tokens for each in study.levels["10"].requests] == [101, 201, 301]
    # Texts of the held-out level were not seen: the nearest one stands in, whatever its own times were.
    assert [each.output_tokens for each in study.levels["40"].requests] == [101, 201, 301]
    assert "3 of 3 held-out answers were not seen" in study.notes[0]
    assert study.limits["max_seqs"] == (2,)
    assert study.limits["kv_capacity_tokens"][0] > 1000


def test_vllm_burst_takes_prompt_tokens_as_the_engine_counted_them(tmp_path: Path) -> None:
    """The fitted levels' logs have 242 tokens of 303 published ones; the held-out level's log is not looked at."""
    burst(tmp_path, chars={10: 400, 20: 400, 40: 400})
    path = tmp_path / "vllm_burst_llama32_1b" / "engine_state.csv.gz"
    with gzip.open(path, "rt") as text:
        rows = list(csv.DictReader(text))
    for row in rows:
        if row["t_s"] == "3.0":
            row["prompt_tok_per_s"] = "9000" if row["scale"] == "40" else "484"
    put(path, rows)
    (study,) = SOURCES["vllm_burst"](tmp_path, splitter(None, ("40",)))
    for level in study.levels.values():
        assert [each.prompt_tokens for each in level.requests] == [80, 81, 81]
    assert [each.output_tokens for each in study.levels["10"].requests] == [101, 201, 301]


def test_vllm_burst_does_not_look_at_times_of_held_out_levels(tmp_path: Path) -> None:
    burst(tmp_path, chars={10: 400, 20: 400, 40: 400})
    before = SOURCES["vllm_burst"](tmp_path, splitter(None, ("40",)))[0]
    path = tmp_path / "vllm_burst_llama32_1b" / "requests.csv.gz"
    with gzip.open(path, "rt") as text:
        rows = list(csv.DictReader(text))
    put(path, [{**row, "e2e_s": 99} if row["scale"] == "40" else row for row in rows])
    after = SOURCES["vllm_burst"](tmp_path, splitter(None, ("40",)))[0]
    assert after.limits == before.limits
    tokens = [[each.output_tokens for each in one.levels["40"].requests] for one in (before, after)]
    assert tokens[0] == tokens[1]
    assert after.levels["40"].requests[0].e2e_s == 99


def test_helix_fills_missing_queries_and_leaves_mixed_clusters_out(tmp_path: Path) -> None:
    rows = [
        {
            "setup": "s", "model": "m", "policy": policy, "gpu": gpu, "mode": mode, "query_id": index,
            "dispatch_s": index * gap_s, "in_tokens": 50, "out_tokens": 6, "ttft_s": 1, "e2e_s": 6,
        }
        for policy, gpu, mode, gap_s in (
            ("p", "l4", "online", 2.0), ("p", "l4", "offline", 1.0), ("q", "mixed", "online", 1.0),
        )
        for index in range(24)
        if index not in (3, 4)
    ]  # fmt: skip
    put(tmp_path / "helix_llama_gpu" / "requests.csv.gz", rows)
    (study,) = SOURCES["helix"](tmp_path, splitter(None, None))
    assert study.name == "m@l4"
    assert study.split == Split(("p-offline",), ("p-online",))
    level = study.levels["p-offline"]
    assert [each.arrival_s for each in level.requests] == pytest.approx(range(24))
    assert [index for index, each in enumerate(level.requests) if each.e2e_s is None] == [3, 4]
    assert level.requests[3].output_tokens == 6


def aibrix_rows(config: str) -> list[dict[str, Any]]:
    return [
        {
            "release": "v0.2.1", "config": config, "qps": qps, "launch_s": index * 5, "prompt_tokens": 2100,
            "generation_tokens": 10, "ttft_s": 2, "generation_s": 1.5, "user_id": user, "question_id": 1,
        }
        for qps in (0.1, 0.5)
        for index, user in enumerate((7, 9, 7))
    ]  # fmt: skip


def test_aibrix_users_find_their_cache_where_they_have_one_replica(tmp_path: Path) -> None:
    put(
        tmp_path / "aibrix_vllm_llama31_8b" / "requests.csv.gz",
        aibrix_rows("ps_naive") + aibrix_rows("naive"),
    )
    drawn, kept = SOURCES["aibrix"](tmp_path, splitter(None, None))
    assert (drawn.name, kept.name) == ("v0.2.1-naive", "v0.2.1-ps_naive")
    for study in (drawn, kept):  # as the manifests start them
        assert study.prefix_caching
        assert study.limits["chunked_prefill"] == (False,)
        assert study.limits["max_batched_tokens"] == (32_000,)
    assert not kept.paired
    high = kept.levels["0.5"]
    assert [each.replica for each in high.requests] == [0, 1, 0] * 2  # the lower level warms the caches
    assert [each.e2e_s for each in high.requests] == [None] * 3 + [3.5] * 3
    truth = TRUTH.with_limits({"block_tokens": 512})
    waits_s = [each.ttft_s for each in simulate(truth, high.requests, prefix_caching=True)]
    assert max(waits_s[2:]) < min(waits_s[:2]) / 3


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_table_that_is_not_there_or_not_such_a_table_is_named(tmp_path: Path, name: str) -> None:
    file = {
        "vllm_burst": "vllm_burst_llama32_1b/requests.csv.gz",
        "helix": "helix_llama_gpu/requests.csv.gz",
        "aibrix": "aibrix_vllm_llama31_8b/requests.csv.gz",
        "vllm_throughput": "vllm_throughput_a100_tesla.csv",
    }[name]
    path = tmp_path / file
    with pytest.raises(WorkloadError, match=f"cannot read .*{file}"):
        SOURCES[name](tmp_path, splitter(None, None))
    put(path, [{"x": 1}])
    with pytest.raises(WorkloadError, match=f"{path.name}, line 1: column"):
        SOURCES[name](tmp_path, splitter(None, None))


def test_a_wrong_number_in_a_table_is_named(tmp_path: Path) -> None:
    put(
        tmp_path / "aibrix_vllm_llama31_8b" / "requests.csv.gz",
        [*aibrix_rows("naive"), {**aibrix_rows("naive")[0], "ttft_s": "soon"}],
    )
    with pytest.raises(WorkloadError, match=r"requests.csv.gz, line 8: ttft_s: must be a number"):
        SOURCES["aibrix"](tmp_path, splitter(None, None))
