"""`python -m benchmarks.overhead.kills`: how many finished requests a SIGKILL loses, and how old the oldest of them was.

For each kill a gateway starts over the canned engine, serves requests at a constant rate, and is killed at a random moment.
The next start writes what was spooled. An answered request without a row is lost; its age is the time from its answer to
the kill. What is promised is in docs/records.md ("What survives a kill").
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.overhead import wire
from benchmarks.overhead.processes import DATABASE_FILE, Cores, Target, fleet_of, gateway, upstream

_CONNECTIONS = 16
_RATE_PER_S = 200.0
_LEAST_S, _MOST_S = 1.0, 2.0  # of load before the kill
_LONGEST_ANSWER_S = 10.0


#: When each request was answered, by its id.
Answers = dict[str, float]


async def _client(port: int, first_at: float, due: itertools.count[int], answers: Answers) -> None:
    """Send requests as they fall due, until the gateway is gone."""
    request = wire.request(port, stream=False, chunks=16)
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                await asyncio.sleep(max(0.0, first_at + next(due) / _RATE_PER_S - time.monotonic()))
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                named = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
                await reader.readexactly(int(named["content-length"]))
                answers[named["x-request-id"]] = time.monotonic()
        finally:
            writer.close()
            await writer.wait_closed()


async def _served_until_killed(target: Target, load_s: float, killed: Sequence[int]) -> tuple[Answers, float]:
    answers, due = Answers(), itertools.count()
    first_at = time.monotonic()
    clients = [
        asyncio.create_task(_client(target.ports[0], first_at, due, answers)) for _ in range(_CONNECTIONS)
    ]
    await asyncio.sleep(load_s)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    await asyncio.wait(clients, timeout=_LONGEST_ANSWER_S)
    return answers, killed_at


def _one(engine: Target, load_s: float, *, both: bool, locked: bool) -> list[float]:
    """The ages in seconds of the requests that one kill loses."""
    with TemporaryDirectory(prefix="headway-kills-") as name:
        folder = Path(name)
        with (
            gateway(fleet_of(engine, folder), folder, Cores()) as target,
            closing(sqlite3.connect(folder / DATABASE_FILE)) as lock,
        ):
            if locked:
                lock.execute("BEGIN IMMEDIATE")
            pids = target.pids if both else target.pids[:1]
            answers, killed_at = asyncio.run(_served_until_killed(target, load_s, pids))
        with gateway(fleet_of(engine, folder), folder, Cores()):  # writes the spool, before it serves
            pass
        with closing(sqlite3.connect(folder / DATABASE_FILE)) as database:
            rows = {row[0] for row in database.execute("SELECT id FROM requests")}
    return sorted(
        killed_at - at for request_id, at in answers.items() if request_id not in rows and at <= killed_at
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill and print; the exit code is 1 if a lost request was older than `--promise-ms`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of each kind")
    parser.add_argument("--promise-ms", type=float, default=200.0)
    options = parser.parse_args(arguments)
    rng, oldest_s = Random(1), 0.0
    with upstream(Cores()) as engine:
        for what, both, locked in (
            ("the serving process", False, False),
            ("serving and writer process", True, False),
            ("both, while the database is locked", True, True),
        ):
            lost = [
                _one(engine, rng.uniform(_LEAST_S, _MOST_S), both=both, locked=locked)
                for _ in range(options.kills)
            ]
            worst_s = max((max(ages, default=0.0) for ages in lost), default=0.0)
            oldest_s = max(oldest_s, worst_s)
            counts = sorted(map(len, lost))
            print(
                f"{what}: {options.kills} kills at {_RATE_PER_S:g}/s; lost rows: median {counts[len(counts) // 2]},"
                f" most {counts[-1]}; the oldest was {worst_s * 1000:.0f} ms old",
                flush=True,
            )
    return int(oldest_s * 1000 > options.promise_ms)


if __name__ == "__main__":
    sys.exit(main())
