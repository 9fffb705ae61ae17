"""What Linux tells of processes that a test did not start itself."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process runs. One that has ended does not, even if its parent has not taken its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """The children of a process that run, by number."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(
        child for each in listed for child in map(int, each.read_text().split()) if is_running(child)
    )


def descendants(pid: int) -> list[int]:
    """The running children of a process, each before its own descendants."""
    return [each for child in children(pid) for each in (child, *descendants(child))]
