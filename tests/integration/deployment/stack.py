"""The services of docker-compose.yml as processes of this machine: their own command lines and environment, with the
addresses and ports put in that containers would have had."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from tests.servers.ports import HeldPort
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
ADMIN_KEY = "the-admin-key"
START_S = 60.0


def filled(value: str, variables: dict[str, str]) -> str:
    """A value of the compose file with its variables put in: `${NAME:-default}`, and `${NAME:?message}` which must be
    there."""
    value = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1], found[2]), value)
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: variables[found[1]], value)


class Stack:
    """Redis, PostgreSQL, the emulated fleet and as many gateways as the compose file has replicas."""

    def __init__(self, directory: Path, postgres: PostgresServer, database: str) -> None:
        self.directory = directory
        self.postgres = postgres
        self._database = database
        self._variables = {
            "HEADWAY_ADMIN_KEY": ADMIN_KEY,
            "HEADWAY_STORE_PASSWORD": postgres.password,
            "HEADWAY_STATE_PASSWORD": "of-redis",
        }
        options = [filled(word, self._variables) for word in SERVICES["redis"]["command"][1:]]
        self.redis = RedisServer(directory / "redis", *options)
        engines = [name for name, service in SERVICES.items() if "emulate" in service.get("command", ())]
        self._held = [HeldPort() for _ in range(len(engines) + SERVICES["gateway"]["deploy"]["replicas"])]
        ports = [each.number for each in self._held]
        self._ports = dict(zip(engines, ports, strict=False))
        self.gateways = ports[len(engines) :]
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.gateways]

    def __enter__(self) -> Self:
        self.redis.start()
        (self.directory / "fleet.yaml").write_text(self._fleet(), encoding="utf-8")
        for name in self._ports:
            self.start(name)
        for number in range(len(self.gateways)):
            self.start(f"gateway-{number}")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait(60)
        self.redis.close()
        for port in self._held:
            port.close()

    def _fleet(self) -> str:
        """The fleet file that the compose file mounts, with this machine's addresses."""
        text = (ROOT / "fleets" / "compose.yaml").read_text(encoding="utf-8")
        for name, port in self._ports.items():
            text = text.replace(f"http://{name}:8000", f"http://127.0.0.1:{port}")
        text = text.replace("redis://redis:6379", f"redis://127.0.0.1:{self.redis.port}")
        text = text.replace("@postgres/headway", f"@127.0.0.1:{self.postgres.port}/{self._database}")
        return text.replace("/var/lib/headway", str(self.directory / "spool"))

    def _command(self, name: str) -> tuple[list[str], dict[str, str]]:
        service = SERVICES["gateway" if name.startswith("gateway-") else name]
        given: dict[str, Any] = service.get("environment", {})
        environment = {key: filled(value, self._variables) for key, value in given.items()}
        command = [str(word) for word in service["command"]]
        put = {"0.0.0.0": "127.0.0.1", "/etc/headway/fleet.yaml": str(self.directory / "fleet.yaml")}
        command = [put.get(word, word) for word in command]
        if name.startswith("gateway-"):
            command += ["--port", str(self.gateways[int(name.removeprefix("gateway-"))])]
        else:
            command[command.index("--port") + 1] = str(self._ports[name])
        return command, environment

    def start(self, name: str) -> None:
        """Start a service (`gateway-0`, or an engine)."""
        command, environment = self._command(name)
        (self.directory / "spool").mkdir(exist_ok=True)
        with (self.directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "router.cli", *command],
                cwd=self.directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self, name: str, how: signal.Signals) -> int:
        """Send a service a signal; its exit code."""
        process = self._running.pop(name)
        process.send_signal(how)
        return process.wait(60)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(encoding="utf-8")

    async def until_ready(self, session: aiohttp.ClientSession, url: str) -> None:
        """Wait until a gateway can serve."""
        give_up_at = time.monotonic() + START_S
        while True:
            try:
                async with session.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            name = f"gateway-{self.urls.index(url)}"
            process = self._running[name]
            assert process.poll() is None, self.log(name)
            assert time.monotonic() < give_up_at, self.log(name)

            await asyncio.sleep(0.1)
