"""Lines and segments: what goes in comes out, in order, and a disk that takes no more loses nothing that is there."""

from __future__ import annotations

import os
import resource
import stat
import time
from pathlib import Path
from zlib import crc32

import pytest

from router.store.entries import (
    ATTEMPT_COLUMNS,
    REQUEST_COLUMNS,
    Entry,
    checked,
    find_line,
    from_line,
    to_line,
)
from router.store.explanations import encode
from router.store.records import attempt_row, request_row
from router.store.spool import Spool, read_lines, segments
from router.store.writer import record_line
from tests.records import make_record


def lines(first: int, count: int, width: int = 50) -> list[bytes]:
    return [f"{number:0{width}d}\n".encode() for number in range(first, first + count)]


def drain(spool: Spool, limit: int = 7) -> list[int]:
    found = []
    while spool.rows:
        read = spool.read(limit)
        assert 0 < len(read) <= limit
        found += map(int, read)
        spool.remove(len(read))
    return found


def test_an_entry_comes_back_as_it_was() -> None:
    record = make_record(1, model_requested='a "name"\nwith, signs', prompt="é\n\u2028 end")
    line = record_line(record, keep_prompts=True)
    assert line.count(b"\n") == 1
    attempts = [attempt_row(record, attempt) for attempt in record.attempt_states]
    entry = Entry(request_row(record), attempts, (record.id, encode(record), "é\n\u2028 end"))
    assert from_line(line) == from_line(checked(line)) == entry


def test_a_line_of_version_0_1_0_is_read() -> None:
    """Its blob is a text inside the JSON, before the prompt."""
    line = b'[["req_1",null],[["req_1",1]],"{\\"v\\":2}","a prompt"]'
    line = b"%08x %s\n" % (crc32(line), line)
    row = ("req_1", *[None] * (len(REQUEST_COLUMNS) - 1))  # it has fewer columns
    attempt = ("req_1", 1, *[None] * (len(ATTEMPT_COLUMNS) - 2))
    assert from_line(line) == Entry(row, [attempt], ("req_1", b'{"v":2}', "a prompt"))


def test_a_line_is_found_by_its_requests_id() -> None:
    lines = [to_line((f"req_{number}", at), [], None, None) for at, number in enumerate((1, 10, 1, 2))]
    assert find_line("req_1", lines) == lines[2]
    assert find_line("req_1", [*map(checked, lines)]) == checked(lines[2])
    assert find_line("req_", lines) is None


def test_a_damaged_line_is_known_as_one() -> None:
    line = checked(record_line(make_record(1), keep_prompts=False))
    for at in range(len(line)):
        damaged = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
        assert from_line(damaged) is None
        assert from_line(line[:at]) is None
    assert from_line(b"[" + line[1:]) is None


def test_a_line_is_torn_wherever_it_ends() -> None:
    """The socket of a killed process may end anywhere, and its lines have no check sum."""
    line = record_line(make_record(1), keep_prompts=False)
    assert b"\t{" in line
    assert [at for at in range(len(line)) if from_line(line[:at]) is not None] == []


@pytest.mark.parametrize(
    "line", [b"[1,2]", b"[[1],[]]\t{}", b'[{"a":1},[],null]', b"[[],[1],null]", b"[[],[],1,2]", b"[[]]"]
)
def test_json_of_another_shape_is_a_damaged_line(line: bytes) -> None:
    assert from_line(line + b"\n") is None
    assert from_line(checked(line + b"\n")) is None


def test_values_that_no_line_takes_are_made_fit() -> None:
    record = make_record(1, max_tokens=10**30, key_name="half a \ud800 pair", prompt="p")
    line = record_line(record, keep_prompts=True)
    assert line is not None
    read = from_line(line)
    assert 2**63 - 1 in read.request
    assert "half a \ufffd pair" in read.request


def test_lines_come_out_in_order_and_their_room_is_given_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run", max_bytes=4000)  # segments of 1000 bytes: 20 lines
    assert spool.append(lines(0, 30))
    assert spool.append(lines(30, 30))
    found = [int(line) for line in spool.read(7)]
    spool.remove(5)  # fewer than were read
    assert spool.append(lines(60, 10))
    assert found[:5] + drain(spool) == list(range(70))
    assert (spool.rows, spool.bytes) == (0, 0)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_lines_can_be_removed_unread(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run", max_bytes=4000)
    for start in range(0, 60, 20):
        assert spool.append(lines(start, 20))
    spool.remove(50)
    assert drain(spool) == list(range(50, 60))
    spool.close()


def test_a_full_spool_takes_no_more_until_there_is_room(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run", max_bytes=2000)
    for start in range(0, 39, 13):
        assert spool.append(lines(start, 13))
    assert not spool.append(lines(39, 13))
    assert spool.full
    assert (spool.rows, spool.bytes) == (39, 39 * 51)
    spool.remove(13)
    assert not spool.full
    assert spool.append(lines(39, 13))
    assert drain(spool) == list(range(13, 52))
    spool.close()


def test_a_disk_that_is_full_leaves_no_half_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "run", max_bytes=1e6)
    assert spool.append(lines(0, 10))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        assert not spool.append(lines(10, 10))  # the first lines of these would still fit
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert spool.full
    (segment,) = segments(tmp_path / "run")
    assert segment.stat().st_size == 510
    later = time.monotonic() + 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not spool.full  # it is tried again
    assert spool.append(lines(10, 10))
    assert drain(spool) == list(range(20))
    spool.close()


def test_what_stays_can_be_read_by_another_without_its_torn_end(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run", max_bytes=4000)
    for start in range(0, 60, 20):
        assert spool.append(lines(start, 20))
    spool.close()
    left = segments(tmp_path / "run")
    with left[-1].open("ab") as file:
        file.write(b"a line that was never finis")
    read = [line for path in left for line in read_lines(path, 0, 1000)]
    assert list(map(int, read)) == list(range(60))


def test_lines_that_vanish_are_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run", max_bytes=4000)
    for start in range(0, 60, 20):
        assert spool.append(lines(start, 20))
    os.truncate(segments(tmp_path / "run")[0], 0)
    assert [int(line) for line in spool.read(1)] == [20]
    assert (spool.take_lost(), spool.take_lost()) == (20, 0)
    assert drain(spool) == list(range(20, 60))
    spool.close()


def test_lines_that_vanish_when_they_are_removed_are_not_lost(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run", max_bytes=4000)
    assert spool.append(lines(0, 10))
    os.truncate(segments(tmp_path / "run")[0], 0)
    spool.remove(4)
    assert (spool.rows, spool.take_lost()) == (0, 6)
    spool.close()


def test_a_process_without_a_free_descriptor_loses_no_lines(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run", max_bytes=4000)
    assert spool.append(lines(0, 10))
    os.close(first_free := os.dup(0))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        assert len(spool.read(10)) == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert drain(spool) == list(range(10))
    assert spool.take_lost() == 0
    spool.close()
