"""Emulated instances in this process: build them, listen, break them, stop them.

    instance = EmulatedInstance("a100-0", "vllm", {"llama-3.1-8b": "llama-3.1-8b@a100-80g"}, speed=10)
    await instance.start()        # instance.url
    ...
    await instance.stop()

Every instance has, beside its engine's routes, `/emulator/state` and `/emulator/fault` (GET, POST, DELETE),
which no real engine has.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from backends.emulator.faults import FAULT, Fault, FaultBoard, FaultKind
from backends.emulator.http import Exchange, Server
from backends.emulator.servers import SERVERS, EngineServer, first_problem
from backends.engine.profiles import profile as profile_of
from router.core.profile import EngineProfile

logger = logging.getLogger("headway.emulator")

#: What happens to running streams when an instance stops: they finish (within the grace time), get the engine's error
#: and end mark, are reset, or send nothing until the grace time is over.
OnStop = Literal["finish", "error", "cut", "hang"]


class EmulatedInstance:
    """One emulated engine on one port.

    `kind` is a name in `servers.SERVERS`. `models` maps served names to profile names (or profiles); a vLLM
    serves them by one engine. With `speed` 10 it is ten times as fast as its hardware. `keep_alive_s` is how long an
    idle connection stays open (None: as long as the real engine keeps it). `clock` drives the engine's model, in
    seconds. `options` are those of the server (`VllmOptions`, `OllamaOptions`). Raises ValueError for settings with
    which it cannot start (pydantic.ValidationError for single options), KeyError for an unknown profile.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        models: Mapping[str, str | EngineProfile],
        *,
        speed: float = 1.0,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_alive_s: float | None = None,
        on_stop: OnStop = "error",
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        if kind not in SERVERS:
            raise ValueError(f"unknown kind {kind!r}: {' or '.join(SERVERS)}")
        if not 0 < speed < math.inf:
            raise ValueError("speed must be a number greater than 0")
        self.name = name
        self.kind = kind
        self.speed = speed
        self.host = host
        self.port = port
        self.on_stop: OnStop = on_stop
        self._clock = clock
        self.faults = FaultBoard()
        self._profiles = {
            model: profile_of(given) if isinstance(given, str) else given for model, given in models.items()
        }
        self._class = SERVERS[kind]
        self._options = self._class.OPTIONS.model_validate(options)
        self._class.check(self._profiles, self._options)
        self._keep_alive_s = self._class.KEEP_ALIVE_S if keep_alive_s is None else keep_alive_s
        self._app: EngineServer | None = None
        self._server: Server | None = None
        self._back: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL; known once it has started."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def models(self) -> list[str]:
        return list(self._profiles)

    @property
    def app(self) -> EngineServer:
        """The running server with its engine model. Raises RuntimeError before the start."""
        if self._app is None:
            raise RuntimeError(f"instance {self.name} has not been started")
        return self._app

    def describe(self) -> str:
        """One line for the user: kind, name, URL, models and speed."""
        models = ", ".join(f"{model} = {profile.name}" for model, profile in self._profiles.items())
        return f"emulated {self.kind} {self.name} at {self.url}: {models}, speed {self.speed:g}"

    async def start(self) -> str:
        """Listen; returns the URL. Raises OSError if the port is in use."""
        self._app = self._class(self._profiles, self._options, self.speed, self.faults, self._clock)
        self._server = Server(self._handle, self._keep_alive_s)
        try:
            _, self.port = await self._server.listen(self.host, self.port)
        except OSError:
            self._app.close()
            self._app = self._server = None
            raise
        return self.url

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop as on a SIGTERM (see `OnStop`), within `grace_s`. Does nothing if it is not running."""
        if self._back is not None:
            self._back.cancel()
            self._back = None
        app, server = self._app, self._server
        self._app = self._server = None
        if app is None or server is None:
            return
        server.refuse()
        for generation in list(app.live):
            if self.on_stop == "error":
                generation.fail(500, "EngineCore is shutting down")
            elif self.on_stop == "cut":
                generation.cut()
            elif self.on_stop == "hang":
                generation.hang()
        await server.close(grace_s)
        app.close()
        for task in list(self._tasks):
            await task

    # --- breaking it ---
    def arm(self, fault: Fault) -> None:
        """Arm a fault of requests, or break the instance at once."""
        if fault.kind is FaultKind.UNHEALTHY:
            self.app.healthy = False
            self._later(fault.for_s, self._heal)
        elif fault.kind is FaultKind.REFUSE:
            self.refuse_connections(fault.for_s)
        elif fault.kind is FaultKind.KILL:
            self.kill()
        else:
            self.faults.append(fault)

    def kill(self) -> None:
        """Act like a SIGKILL, seen from outside: connections are reset and nothing listens. `start` starts it again
        with an empty engine on the same port."""
        app, server = self._app, self._server
        self._app = self._server = None
        if app is not None and server is not None:
            server.refuse()
            server.drop_connections()
            app.close()

    def refuse_connections(self, for_s: float) -> None:
        """Reset all connections and refuse new ones for `for_s` wall seconds. The engine keeps its state."""
        if self._server is not None:
            self._server.refuse()
            self._server.drop_connections()
            self._later(for_s, self._reopen)

    def _later(self, after_s: float, action: Any) -> None:
        if self._back is not None:
            self._back.cancel()
        self._back = asyncio.get_running_loop().call_later(after_s, action)

    def _heal(self) -> None:
        if self._app is not None:
            self._app.healthy = True

    def _reopen(self) -> None:
        if self._server is not None:
            task = asyncio.get_running_loop().create_task(self._listen_again(self._server))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _listen_again(self, server: Server) -> None:
        try:
            await server.listen(self.host, self.port)
        except OSError as error:
            logger.error("emulator %s: cannot listen on port %d again: %s", self.name, self.port, error)
            return
        if self._server is not server:  # stopped meanwhile
            server.refuse()

    # --- requests ---
    def _handle(self, exchange: Exchange) -> None:
        if not exchange.path.startswith("/emulator/"):
            self.app.handle(exchange)
        elif exchange.path == "/emulator/state" and exchange.method == "GET":
            exchange.respond_json(
                200, {"name": self.name, "kind": self.kind, "speed": self.speed, **self.app.state()}
            )
        elif exchange.path == "/emulator/fault":
            self._handle_fault(exchange)
        else:
            exchange.respond_json(404, {"error": "no such emulator route"})

    def _handle_fault(self, exchange: Exchange) -> None:
        if exchange.method == "POST":
            try:
                fault = FAULT.validate_json(exchange.body)
            except ValidationError as error:
                exchange.respond_json(400, {"error": first_problem(error)})
                return
            if fault.kind in {FaultKind.REFUSE, FaultKind.KILL}:
                # The answer is sent first, because the fault also closes this connection.
                exchange.keep_alive = False
                exchange.respond_json(200, {"armed": [fault]})
                asyncio.get_running_loop().call_later(0.02, self._arm_late, fault)
                return
            self.arm(fault)
        elif exchange.method == "DELETE":
            self.faults.clear()
            self._heal()
        elif exchange.method != "GET":
            exchange.respond_json(405, {"error": "GET, POST or DELETE"})
            return
        exchange.respond_json(200, {"armed": list(self.faults)})

    def _arm_late(self, fault: Fault) -> None:
        if self._app is not None:
            self.arm(fault)


async def start_all(instances: Sequence[EmulatedInstance]) -> None:
    """Start all or none: if one cannot listen, those already started are stopped and its OSError is raised."""
    for index, instance in enumerate(instances):
        try:
            await instance.start()
        except OSError:
            await stop_all(instances[:index])
            raise


async def stop_all(instances: Sequence[EmulatedInstance], grace_s: float = 0.0) -> None:
    await asyncio.gather(*(instance.stop(grace_s) for instance in instances))
