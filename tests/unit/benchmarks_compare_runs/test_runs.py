"""Kept runs: what counts, and which settings may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare import runs
from benchmarks.compare.pool import Processes
from benchmarks.compare.runs import KeptRuns, RunFolder
from benchmarks.workloads.fetch import checksum
from benchmarks.workloads.format import WorkloadError


def test_what_was_saved_is_there_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs", {"speed": 1.0})
    assert folder.load("slo@1#0") is None
    folder.save("slo@1#0", {"name": "slo@1#0"})
    again = RunFolder(tmp_path / "runs", {"speed": 1.0})
    assert again.load("slo@1#0") == {"name": "slo@1#0"}
    assert again.salt == folder.salt


@pytest.mark.parametrize("content", [b"", b'{"name": "slo', b"[1]", b"\xff\xfe"])
def test_a_file_that_is_no_run_counts_as_not_there(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path / "runs", {})
    folder.save("a", {"name": "a"})
    (tmp_path / "runs/a.json").write_bytes(content)
    assert folder.load("a") is None


def test_a_part_that_a_kill_left_counts_as_not_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs", {})
    (tmp_path / "runs/a.json.part").write_bytes(b'{"name"')
    assert folder.load("a") is None
    folder.save("a", {"name": "a"})
    assert folder.load("a") == {"name": "a"}


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    RunFolder(tmp_path, {"speed": 1.0, "model": "auto"}).save("a", {"name": "a"})
    with pytest.raises(WorkloadError, match="made with another speed"):
        RunFolder(tmp_path, {"speed": 2.0, "model": "auto"})
    with pytest.raises(WorkloadError, match="made with another limit"):
        RunFolder(tmp_path, {"speed": 1.0, "model": "auto", "limit": 3})


def test_a_folder_without_runs_takes_other_settings(tmp_path: Path) -> None:
    RunFolder(tmp_path, {"url": "http://wrong"})
    RunFolder(tmp_path, {"url": "http://right"}).save("a", {"name": "a"})
    with pytest.raises(WorkloadError, match="made with another url"):
        RunFolder(tmp_path, {"url": "http://wrong"})


@pytest.mark.parametrize("content", [b"{}", b"x", b"[]"])
def test_settings_that_cannot_be_read_are_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "settings.json").write_bytes(content)
    with pytest.raises(WorkloadError, match=r"settings\.json"):
        RunFolder(tmp_path, {})


def test_a_checksum_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert checksum(tmp_path / "a").startswith("ba7816bf8f01cfea")
    with pytest.raises(WorkloadError, match="cannot read"):
        checksum(tmp_path / "gone")


def test_kept_runs_go_on_after_a_kill_and_not_with_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, ran = tmp_path / "new" / "runs.jsonl", list[str]()

    def run(trial: str) -> dict[str, str]:
        ran.append(trial)
        return {"of": trial}

    def of(*trials: str) -> list[dict[str, str]]:
        ran.clear()
        return KeptRuns(file, Processes(1), run, str).of(trials)

    of("a", "b")
    file.write_bytes(file.read_bytes()[:-9])
    assert (of("a", "b"), ran) == ([{"of": "a"}, {"of": "b"}], ["b"])
    assert (of("a", "b"), ran) == ([{"of": "a"}, {"of": "b"}], [])
    monkeypatch.setattr(runs, "program", lambda: "another")
    assert (of("a"), ran) == ([{"of": "a"}], ["a"])
