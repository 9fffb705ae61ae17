"""The backends against a real vLLM on the CPU, started by the project's own script.

The first run builds the engine's environment (some minutes). An engine that does not start fails the tests.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import pytest

import backends
from router.core.errors import UpstreamError
from router.core.interfaces import Backend
from router.listening import free_port
from tests.contract.backends import engine_suite as suite
from tests.contract.backends.dialects import read_all, stream
from tests.contract.backends.engine_suite import *  # noqa: F403 (its tests are collected here)
from tests.contract.backends.engine_suite import KEY, Check, Served

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
SCRIPT = Path(__file__).parents[2] / "scripts" / "engines" / "start_vllm.sh"
START_S = 1500.0  # with the installation
MODEL = "engine-model"


@dataclass(frozen=True)
class Engine:
    process: subprocess.Popen[bytes]
    url: str


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    url = f"http://127.0.0.1:{(port := free_port())}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SCRIPT), str(port), MODEL, "--api-key", KEY], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        until = time.monotonic() + START_S
        while not healthy(url):
            if process.poll() is not None or time.monotonic() > until:
                pytest.fail("vLLM did not start:\n" + log.read_text(errors="replace")[-4000:])
            time.sleep(0.5)
        yield Engine(process, url)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:  # noqa: S310 (our own loopback)
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@pytest.fixture(params=["vllm", "openai"])
def served(request: pytest.FixtureRequest, engine: Engine) -> Served:
    return Served(str(request.param), engine.url, MODEL)


@suite.AS_VLLM
async def test_as_vllm_does(check: Check, served: Served, backend: Backend) -> None:
    await check(served, backend)


async def test_requests_spread_over_the_engine_s_keep_alive(served: Served, backend: Backend) -> None:
    for pause_s in (0.5, 1.9, 2.1, 4.99, 0.0):
        assert (await suite.streamed(backend, served.chat(bound=2)))[0]
        await asyncio.sleep(pause_s)
    assert (await suite.streamed(backend, served.chat(bound=2)))[0]


async def test_sigterm_in_mid_stream(engine: Engine) -> None:
    """The last test of the module: the engine is gone after it."""
    served = Served("vllm", engine.url, MODEL)
    backend = backends.create("vllm", url=engine.url, api_key=KEY, idle_timeout_s=3)
    reader = stream(backend, served.chat(bound=1500, ignore_eos=True))
    assert await reader.read() is not None
    engine.process.send_signal(signal.SIGTERM)
    with pytest.raises(UpstreamError):
        await asyncio.wait_for(read_all(reader), 60)
    await backend.aclose()
