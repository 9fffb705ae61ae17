"""CPU time and memory of running processes, read from /proc; from `ps` where there is no /proc."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

PROC = Path("/proc")


class Memory(TypedDict):
    """Memory of a process tree in MiB. `pss_mib` shares common pages fairly; None where not known."""

    rss_mib: float
    pss_mib: float | None


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of these processes so far; those that have ended count no more."""
    return sum(map(_cpu_s, pids))


def memory(pids: Iterable[int]) -> Memory:
    found = [(_rss_kib(pid), _pss_kib(pid)) for pid in pids]
    shares = [pss for _, pss in found if pss is not None]
    pss_mib = sum(shares) / 1024 if len(shares) == len(found) else None
    return Memory(rss_mib=sum(rss for rss, _ in found) / 1024, pss_mib=pss_mib)


def machine_busy_s() -> float | None:
    """CPU seconds that all cores together have worked so far (not the time stolen from a virtual machine);
    None where not known."""
    with suppress(OSError):
        user, nice, system, _, _, irq, softirq, *_ = map(
            int, (PROC / "stat").read_text().splitlines()[0].split()[1:]
        )
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    return None


def _parents() -> Iterable[tuple[int, int]]:
    if not (PROC / "self/stat").exists():
        for line in _ps("-A", "-o", "pid=,ppid=").splitlines():
            pid, parent = line.split()
            yield int(pid), int(parent)
        return
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def _cpu_s(pid: int) -> float:
    """By the scheduler's own account of each thread, in nanoseconds; else in the kernel's ticks."""
    folder = PROC / str(pid)
    with suppress(OSError):
        total_ns = 0
        for task in (folder / "task").iterdir():
            with suppress(OSError):
                total_ns += int((task / "schedstat").read_text().split()[0])
        if total_ns:
            return total_ns / 1e9
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    if PROC.joinpath("self/stat").exists():
        return 0.0  # it has ended
    return clock_s(_ps("-o", "time=", "-p", str(pid)))


def clock_s(text: str) -> float:
    """Seconds of `ps`'s [[days-]hours:]minutes:seconds; 0 for an empty text."""
    days, _, clock = text.strip().rpartition("-")
    seconds = 0.0
    for part in clock.split(":") if clock else ():
        seconds = seconds * 60 + float(part)
    return seconds + (int(days) * 86400 if days else 0)


def _rss_kib(pid: int) -> int:
    with suppress(OSError):
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // 1024
    if PROC.joinpath("self/stat").exists():
        return 0
    text = _ps("-o", "rss=", "-p", str(pid)).strip()
    return int(text) if text else 0


def _pss_kib(pid: int) -> int | None:
    with suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return None


def _ps(*arguments: str) -> str:
    run = subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607 (fixed arguments)
    return run.stdout
