"""Work on several processes: all of it, errors, and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

from benchmarks.compare.pool import Executor, ProcessLost, cores, run_local
from benchmarks.workloads.format import WorkloadError


def squared(number: int) -> int:
    if number < 0:
        raise WorkloadError(f"{number} is below 0")
    return number * number


def killed(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def slow(number: int) -> int:
    time.sleep(number)
    return number


@pytest.mark.parametrize("processes", [1, 2])
def test_all_is_done_once_whatever_the_number_of_processes(processes: int) -> None:
    found = list(run_local(squared, range(9), processes))
    assert sorted(found) == [(number, number * number) for number in range(9)]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_is_raised_here(processes: int) -> None:
    with pytest.raises(WorkloadError, match="-1 is below 0"):
        list(run_local(squared, [1, 2, -1, 3, 4], processes))
    assert not multiprocessing.active_children()


def test_nothing_to_do() -> None:
    assert list(run_local(squared, [], 4)) == []


def test_a_process_that_is_killed_is_told() -> None:
    with pytest.raises(ProcessLost, match="killed"):
        list(run_local(killed, range(3), 2))
    assert not multiprocessing.active_children()


def test_who_stops_listening_ends_the_processes() -> None:
    coming = run_local(slow, [0, 60, 60], 2)
    assert next(coming) == (0, 0)
    coming.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


def test_an_interrupted_executor_gives_up_what_it_has_to_do() -> None:
    def interrupted() -> None:
        with Executor(1) as pool:
            assert pool.submit(slow, 0).result() == 0
            for _ in range(3):
                pool.submit(slow, 60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not multiprocessing.active_children()


def test_cores() -> None:
    assert cores() >= 1
