"""Many independent pieces of work on a Ray cluster. Every node has this package, in the same release of Python and Ray, and sees
the workload and the folder of results under the same paths."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

from benchmarks.compare.pool import a_few_ahead
from benchmarks.workloads.format import WorkloadError

Item = TypeVar("Item")
Done = TypeVar("Done")

#: `ray status` of a live cluster takes about one second.
_ANSWER_S = 20.0


def run_on_ray(
    function: Callable[[Item], Done], items: Sequence[Item], address: str
) -> Iterator[tuple[int, Done]]:
    """(index, result) of each item as it is done, one core each. `address` is HOST:PORT of a cluster, or `auto`
    for the one of this machine. What `function` raises is raised here, and the rest given up; so it is on
    Ctrl-C. Raises WorkloadError where Ray is not there or fails."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    try:
        import ray as imported
    except ImportError:
        raise WorkloadError("--ray needs Ray: pip install '.[ray]' in Headway's checkout") from None
    ray: Any = imported
    pending: dict[Any, int] = {}
    try:
        _connect(ray, address)

        def work(item: Item) -> Done:  # `ray.remote` takes plain functions only, no partial ones
            return function(item)

        most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))

        def done(waiting: Collection[Any]) -> list[Any]:
            # Ctrl-C is noticed between two waits.
            ready: list[Any] = ray.wait(list(waiting), num_returns=1, timeout=0.5)[0]
            return ready

        for index, reference in a_few_ahead(items, most, ray.remote(work).remote, done, pending):
            yield index, _result(ray, reference)
    finally:
        if ray.is_initialized():
            for reference in pending:
                ray.cancel(reference, force=True)
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    _check(address)
    handler = signal.getsignal(signal.SIGTERM)  # ray.init replaces it
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise WorkloadError(f"cannot use Ray at {address}: {_line(str(error))}") from None
    finally:
        signal.signal(signal.SIGTERM, handler)


def _check(address: str) -> None:
    """Connect, then ask the cluster for its status in a process that can be ended: where nobody answers as Ray does,
    `ray.init` tries for a minute, prints, and then ends the process."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
        except OSError as error:
            raise WorkloadError(f"no Ray at {address}: {error.strerror or error}") from None
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_S)  # noqa: S603 (our own command)
    except subprocess.TimeoutExpired:
        raise WorkloadError(f"no Ray answers at {address} within {_ANSWER_S:.0f} s") from None
    if done.returncode:
        raise WorkloadError(f"no Ray at {address}: {_line(done.stderr or done.stdout, last=True)}")


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if "failed to import on the worker" in str(error.cause):
            missing = _line(str(error.cause), last=True)
            raise WorkloadError(f"Ray's workers lack what this process has: {missing}") from None
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise WorkloadError(f"a Ray worker failed: {_line(str(error))}") from None


def _line(text: str, *, last: bool = False) -> str:
    lines = text.strip().splitlines() or ["no reason given"]
    return lines[-1 if last else 0].partition(". ")[0]
