"""The workload file: round trips, and errors that name line and reason."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, read, read_header, write

FULL = WorkloadRequest(
    id="a",
    arrival_s=0.25,
    prompt="Grüße",
    prompt_tokens=2,
    max_tokens=64,
    output_tokens={"small": 5, "large": 9},
    quality={"small": 0.5},
    prefix_hashes=(1, 2),
    session="s",
    routing={"policy": "slo", "slo": {"ttft_ms": 500.0}, "on_miss": "reject", "max_cost_usd": 0.01},
    source="test",
)
SOUND = '"id": "x", "arrival_s": 0, "prompt_tokens": 1'
PLAIN = WorkloadRequest(id="b", arrival_s=1.5, prompt_tokens=10, output_tokens=3)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "w.jsonl"
    header = Header("test", "CC0", 7, 2, {"limit": 2}, "test: wins", {"note": 1})
    assert write(path, header, [FULL, PLAIN]) == 2
    assert list(read(path)) == [FULL, PLAIN]
    assert read_header(path) == header
    assert [name.name for name in path.parent.iterdir()] == ["w.jsonl"]


def test_longest_output() -> None:
    assert FULL.longest_output_tokens() == 9
    assert PLAIN.longest_output_tokens() == 3
    assert WorkloadRequest("c", 0.0, 1).longest_output_tokens() is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a mapping (given: a list)"),
        ('{"arrival_s": 0, "prompt_tokens": 1}', "id: is missing"),
        ('{"id": "x", "arrival_s": -1, "prompt_tokens": 1}', "arrival_s: must be"),
        ('{"id": "x", "arrival_s": true, "prompt_tokens": 1}', "arrival_s: must be"),
        ('{"id": "x", "arrival_s": 0, "prompt_tokens": 0}', "prompt_tokens: must be"),
        ('{"id": "x", "arrival_s": 0, "prompt_tokens": 1.5}', "prompt_tokens: must be"),
        ('{SOUND, "max_tokens": "9"}', "max_tokens: must be"),
        ('{SOUND, "output_tokens": {"m": 0}}', "output_tokens.m: must"),
        ('{SOUND, "quality": {"m": 2}}', "quality.m: must"),
        ('{SOUND, "prefix_hashes": ["a"]}', "prefix_hashes[0]: must"),
        ('{SOUND, "prompt": 3}', "prompt: must be"),
        ('{SOUND, "colour": 3}', "colour: unknown key"),
        ('{SOUND, "routing": {"slo": {"ttft": 1}}}', "routing.slo.ttft"),
        ('{SOUND, "routing": {"slo": {"ttft_ms": 0}}}', "above 0"),
        ('{SOUND, "routing": {"polcy": "slo"}}', "routing.polcy"),
        ('{SOUND, "routing": {"on_miss": "die"}}', "routing.on_miss"),
        ('{SOUND, "routing": {"max_cost_usd": -1}}', "max_cost_usd"),
        ('{"id": "", "arrival_s": 0, "prompt_tokens": 1}', "id: must have at least 1 character"),
        ('{"id": "x", "arrival_s": NaN, "prompt_tokens": 1}', "arrival_s: must be a finite number"),
        ('{SOUND, "routing": {"slo": {}}}', "routing.slo: must have"),
        ('{"id": "b", "arrival_s": 2, "prompt_tokens": 1}', "occurs twice"),
        ('{"id": "x", "arrival_s": 1, "prompt_tokens": 1}', "earlier than the line before"),
    ],
)
def test_bad_line_is_named_with_its_number_and_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "w.jsonl"
    write(path, Header("test"), [PLAIN])
    with path.open("a") as out:
        out.write(line.replace("SOUND", SOUND) + "\n")
    with pytest.raises(WorkloadError, match="line 3: ") as caught:
        list(read(path))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("", r"line 1: not a workload \(no header such as {.headway_workload"),
        ('{"id": "x"}', "line 1: not a workload"),
        ('{"headway_workload": 9, "source": "x"}', "line 1: workload version 9"),
        ('{"headway_workload": 1}', "line 1: source"),
    ],
)
def test_bad_header(tmp_path: Path, first: str, reason: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(first + "\n")
    with pytest.raises(WorkloadError, match=reason):
        read_header(path)


def test_missing_file_and_unwritable_place_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot read"):
        list(read(tmp_path / "nothing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkloadError, match="cannot write"):
        write(tmp_path / "file" / "w.jsonl", Header("test"), [])


def test_a_broken_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    write(path, Header("test"), [PLAIN])

    def broken():  # type: ignore[no-untyped-def]
        yield FULL
        raise WorkloadError("no more")

    with pytest.raises(WorkloadError, match="no more"):
        write(path, Header("test"), broken())
    assert list(read(path)) == [PLAIN]
    assert [name.name for name in tmp_path.iterdir()] == ["w.jsonl"]


def test_a_pipe_or_a_device_stays_what_it_is(tmp_path: Path) -> None:
    """`--out /dev/null` as root put a file in its place, and other programs of the machine failed."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(path.read_bytes)
        write(path, Header("test"), [PLAIN])
        assert reading.result().count(b"\n") == 2
    assert [(each.name, each.is_fifo()) for each in tmp_path.iterdir()] == [("pipe", True)]


def test_a_second_pass_need_not_remember_ids(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    write(path, Header("test"), [PLAIN, PLAIN])
    with pytest.raises(WorkloadError, match="line 3: id 'b' occurs twice"):
        list(read(path))
    assert list(read(path, check_ids=False)) == [PLAIN, PLAIN]
    with path.open("a") as out:
        out.write("{")
    with pytest.raises(WorkloadError, match="line 4: not valid JSON"):
        list(read(path, check_ids=False))
