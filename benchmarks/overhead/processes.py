"""Starts, pins and ends the processes of a measurement."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from benchmarks.overhead import usage, wire
from benchmarks.overhead.plan import RESULTS, Plan, Result
from router.listening import free_port

_START_S = 60.0
_END_S = 10.0
FLEET_FILE = "fleet.yaml"
DATABASE_FILE = "headway.db"
#: Gateways of ours with other fleet files (`fleet_of`).
VARIANTS = ("when_needed", "slo")
_SLO = {"ttft_ms": 2000, "tpot_ms": 200, "e2e_ms": 30_000}


class StartError(RuntimeError):
    """A process of the measurement does not start or fails; the message says why."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores each process may use; None where processes cannot be pinned."""

    target: frozenset[int] | None = None
    upstream: frozenset[int] | None = None
    load: frozenset[int] | None = None

    @classmethod
    def of(cls, available: Sequence[int]) -> Cores:
        """The target gets a core of its own; the engine and the load generator each one if there are three,
        else they share the other."""
        if len(available) < 2:
            return cls()
        target, *others = sorted(available)
        return cls(frozenset({target}), frozenset({others[0]}), frozenset({others[1 % len(others)]}))

    @classmethod
    def here(cls) -> Cores:
        return cls.of(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else cls()

    @property
    def shared(self) -> bool:
        """Whether the engine and the load generator share a core."""
        return self.upstream is not None and self.upstream == self.load

    def text(self) -> str:
        if self.target is None or self.upstream is None or self.load is None:
            return "processes not pinned"
        pinned = {"target": self.target, "engine": self.upstream, "load": self.load}
        return "cores: " + ", ".join(
            f"{name} on {','.join(map(str, sorted(cores)))}" for name, cores in pinned.items()
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Something that load can be sent to. Without a process of its own (`direct`) `pids` is empty."""

    ports: tuple[int, ...]
    pids: tuple[int, ...] = ()


@contextmanager
def pinned(cores: frozenset[int] | None) -> Iterator[None]:
    """Processes started inside run on these cores only: a child inherits from its first instruction on."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(
    command: Sequence[str], cores: frozenset[int] | None, log: Path | None = None, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A program of this machine on these cores, its output in `log` if `options` (of Popen) say nothing else. It is ended
    with the block."""
    with nullcontext() if log is None else log.open("wb") as output, pinned(cores):
        process = subprocess.Popen(command, **{"stdout": output, "stderr": output, **options})  # noqa: S603
    with process:
        try:
            yield process
        finally:
            end(process)


@contextmanager
def upstream(cores: Cores) -> Iterator[Target]:
    """The canned engine, two instances of it."""
    command = [sys.executable, "-m", "benchmarks.overhead.upstream"]
    pipe = subprocess.PIPE
    with running(command, cores.upstream, stdin=pipe, stdout=pipe) as process:
        ports = orjson.loads(_line(process, "the canned engine"))["ports"]
        yield Target(tuple(ports), (process.pid,))


def fleet_of(engine: Target, directory: Path, variant: str = "headway") -> dict[str, Any]:
    """The fleet file of a gateway over the canned engine: least_load, SQLite in `directory`, metrics. The variant
    `when_needed` has that `upstream_stream`; `slo` has the policy `slo`, targets, and eight candidates."""
    slo = variant == "slo"
    ports = engine.ports * (4 if slo else 1)
    fleet: dict[str, Any] = {
        "server": {"host": "127.0.0.1", "port": free_port()},
        "store": {"url": f"sqlite+aiosqlite:///{directory / DATABASE_FILE}"},
        "defaults": {"policy": "slo", "slo": _SLO} if slo else {"policy": "least_load"},
        "models": [{"name": wire.MODEL}],
        "instances": [
            {
                "name": f"engine-{number}",
                "kind": "vllm",
                "url": f"http://127.0.0.1:{port}",
                "serves": {wire.MODEL: wire.MODEL},
            }
            for number, port in enumerate(ports)
        ],
    }
    if variant == "when_needed":
        fleet["upstream_stream"] = variant
    return fleet


@contextmanager
def gateway(fleet: Mapping[str, Any], directory: Path, cores: Cores) -> Iterator[Target]:
    """`headway serve` of a fleet, in an empty directory."""
    path = directory / FLEET_FILE
    path.write_text(yaml.safe_dump(dict(fleet)))
    command = [sys.executable, "-m", "router.cli", "serve", "--config", str(path), "--log-level", "error"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    log = directory / "headway.log"
    with running(
        command, cores.target, log, stdout=subprocess.PIPE, cwd=directory, env=environment
    ) as process:
        port = int(_line(process, "the gateway", log).strip().rpartition(b":")[2])
        yield Target((port,), tuple(usage.tree(process.pid)))


@contextmanager
def peer(name: str, engine: Target, directory: Path, cores: Cores) -> Iterator[Target]:
    """Another proxy of `PEERS` with one worker. Raises StartError if it is not installed or does not start."""
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise StartError(f"{name} is not installed")
    port = free_port()
    log = directory / f"{name}.log"
    command = [program, *PEERS[name](engine.ports, port, directory)]
    with running(command, cores.target, log) as process:
        wait_for_port(process, port, name, log)
        yield Target((port,), tuple(usage.tree(process.pid)))


def _nginx(engines: Sequence[int], port: int, directory: Path) -> list[str]:
    configuration = directory / "nginx.conf"
    servers = " ".join(f"server 127.0.0.1:{engine};" for engine in engines)
    configuration.write_text(f"""
daemon off; worker_processes 1; worker_rlimit_nofile 16384; pid {directory}/nginx.pid;
events {{ worker_connections 8192; multi_accept on; }}
http {{
  access_log off; keepalive_requests 1000000000; client_body_buffer_size 64k;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
  upstream engines {{ least_conn; {servers} keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
""")
    return ["-p", str(directory), "-e", "stderr", "-c", str(configuration)]


def _vllm_router(engines: Sequence[int], port: int, directory: Path) -> list[str]:
    del directory
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        *("--worker-urls", *(f"http://127.0.0.1:{engine}" for engine in engines)),
        *("--policy", "round_robin", "--max-concurrent-requests", "8192", "--disable-retries"),
        *("--log-level", "error"),
    ]


#: The arguments of each, for the engines' ports, its own and an empty directory.
PEERS: dict[str, Callable[[Sequence[int], int, Path], list[str]]] = {
    "nginx": _nginx,
    "vllm-router": _vllm_router,
}


def generate(plan: Plan, cores: Cores) -> Result:
    """Run the load generator. Raises StartError if it fails."""
    limit_s = plan.warmup_s + plan.duration_s + plan.stream_s + 60.0
    with pinned(cores.load):
        try:
            run = subprocess.run(
                [sys.executable, "-m", "benchmarks.overhead.load"],
                input=orjson.dumps(plan),
                capture_output=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StartError(f"the load generator did not end within {limit_s:.0f} s") from None
    if run.returncode:
        raise StartError(_last_line(run.stderr) or "the load generator failed")
    return RESULTS.validate_json(run.stdout)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that we started, kindly at first."""
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[bytes], name: str, log: Path | None = None) -> bytes:
    """The first line that a process prints: it is ready."""
    stdout = process.stdout
    if stdout is None:
        raise StartError(f"{name} has no output")
    ready, _, _ = select.select([stdout], [], [], _START_S)
    line = stdout.readline() if ready else b""
    if not line:
        raise StartError(_why(process, name, log))
    return line


def wait_for_port(process: subprocess.Popen[bytes], port: int, name: str, log: Path) -> None:
    """Wait until a process listens. Raises StartError."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.02)
    raise StartError(_why(process, name, log))


def _why(process: subprocess.Popen[bytes], name: str, log: Path | None) -> str:
    end(process)
    said = _last_line(log.read_bytes()) if log is not None else ""
    return f"{name} did not start" + (f": {said}" if said else "")


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
