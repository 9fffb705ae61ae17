"""One engine as a child process, and the environment in which it runs."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress

from router.config import PoolConfig
from router.config.scaling import NUMBER, PORT

#: From SIGTERM until SIGKILL.
GRACE_S = 30.0
#: The keeper itself may take this much longer.
_KEEPER_S = 5.0


class EngineProcess:
    """An engine on 127.0.0.1 under a keeper (`router.scaling.keeper`)."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{port}"

    @classmethod
    async def start(cls, pool: PoolConfig, number: int, environment: Mapping[str, str]) -> EngineProcess:
        """Start a pool's engine in `environment`, with what the pool adds. Its output goes to the gateway's standard error."""
        port = _free_port()

        def filled(text: str) -> str:
            return text.replace(PORT, str(port)).replace(NUMBER, str(number))

        assert pool.command is not None  # noqa: S101 (the fleet file is checked for it)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "router.scaling.keeper",
            str(GRACE_S),
            *map(filled, pool.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env={**environment, **{name: filled(value) for name, value in pool.environment.items()}},
            start_new_session=True,  # Ctrl-C must reach only the gateway, which drains before it stops the engines
        )
        return cls(process, port)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it has ended; returns its exit code."""
        return await self._process.wait()

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL after `GRACE_S`."""
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        self._process.stdin.close()
        try:
            async with asyncio.timeout(GRACE_S + _KEEPER_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
