"""Runs the engines of `kind: emulated` instances. One child process runs all engines that start together. If a gateway has
several workers, their supervisor runs the engines for all of them.

The child reads its instances from standard input and writes their URLs to standard output. It ends when its standard
input closes, so it never outlives the gateway.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import orjson

from backends import KINDS
from backends.engine.profiles import find
from router.config import ConfigError, InstanceConfig, Problem

if TYPE_CHECKING:
    from backends.emulator.instance import EmulatedInstance

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


class EmulatedEngines:
    """Starts emulated engines, and stops them on exit."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # of two concurrent calls for the same engine, only the first starts it
        self._urls: dict[str, tuple[InstanceConfig, str, asyncio.subprocess.Process]] = {}
        self._children: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
        for child in self._children:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await child.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    child.kill()
                await child.wait()

    async def url(self, instance: InstanceConfig) -> str:
        """The URL of an instance, which is started if it does not run as configured. Raises ConfigError."""
        async with self._lock:
            known = self._urls.get(instance.name)
            if known is None or _engine(known[0]) != _engine(instance) or known[2].returncode is not None:
                await self.start([instance])
            return self._urls[instance.name][1]

    async def start(self, instances: Sequence[InstanceConfig]) -> None:
        """Start these instances in one child process. Raises ConfigError if they do not start."""
        if not instances:
            return
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "router.emulated",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only the gateway, which drains before it stops the engines
        )
        self._children.append(child)
        assert child.stdin is not None  # noqa: S101 (both are pipes)
        assert child.stdout is not None  # noqa: S101 (as above)
        child.stdin.write(orjson.dumps([_engine(each) for each in instances]) + b"\n")
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                answer = await child.stdout.readline()
        except TimeoutError:
            answer = b""
        if not answer:
            raise ConfigError("instances", [Problem((), "the emulated engines did not start")])
        for each, url in zip(instances, orjson.loads(answer), strict=True):
            self._urls[each.name] = (each, url, child)


def _engine(instance: InstanceConfig) -> dict[str, Any]:
    """The settings of one instance for the child process."""
    profiles = instance.engine_profiles(find)
    contexts = [served.context_tokens for served in instance.serves.values()]
    return {
        "name": instance.name,
        "kind": KINDS[instance.emulates].emulator,
        "speed": instance.speed,
        "models": {served.name: profiles[model].name for model, served in instance.serves.items()},
        "context": None if None in contexts else max(each for each in contexts if each),
    }


def _instance(engine: dict[str, Any]) -> EmulatedInstance:
    from backends.emulator.instance import EmulatedInstance
    from backends.emulator.servers import SERVERS

    option = SERVERS[engine["kind"]].CONTEXT_OPTION
    options = {} if option is None else {option: engine["context"]}
    return EmulatedInstance(
        engine["name"],
        engine["kind"],
        engine["models"],
        speed=engine["speed"],
        on_stop="finish",
        **options,
    )


async def _child() -> None:
    from backends.emulator.instance import start_all, stop_all

    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    reader = asyncio.StreamReader(limit=16 * 1024 * 1024)
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    instances = [_instance(engine) for engine in orjson.loads(await reader.readline())]
    await start_all(instances)
    with suppress(BrokenPipeError):  # the gateway has ended meanwhile
        os.write(sys.stdout.fileno(), orjson.dumps([instance.url for instance in instances]) + b"\n")
    gc.collect()
    gc.freeze()

    async def parent_gone() -> None:
        await reader.read()
        stopped.set()

    watch = asyncio.create_task(parent_gone())
    await stopped.wait()
    watch.cancel()
    pipe.close()
    await stop_all(instances, 1.0)


if __name__ == "__main__":
    import uvloop

    uvloop.run(_child())
