"""The backend of every registered kind against the emulated server that speaks its wire format."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import backends
from backends import KINDS
from backends.emulator.faults import Fault, FaultKind
from backends.emulator.instance import EmulatedInstance
from router.core.errors import UpstreamError, UpstreamTimeout
from router.core.interfaces import Backend
from tests.contract.backends import engine_suite as suite
from tests.contract.backends.engine_suite import *  # noqa: F403 (its tests are collected here)
from tests.contract.backends.engine_suite import KEY, Check, Served
from tests.virtual_time import loop_time

PROFILE = "llama-3.1-8b@a100-80g"
MODEL = "engine-model"


#: How each emulated server is started.
OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {"speed": 20, "max_model_len": 2048, "api_key": KEY},
    "ollama": {"speed": 100, "num_ctx": 2048},
}


@pytest.fixture(params=KINDS)
async def emulated(request: pytest.FixtureRequest) -> AsyncIterator[tuple[EmulatedInstance, Served]]:
    kind = str(request.param)
    server = KINDS[kind].emulator
    instance = EmulatedInstance("e", server, {MODEL: PROFILE}, clock=loop_time, **OPTIONS[server])
    await instance.start()
    yield instance, Served(kind, instance.url, MODEL)
    await instance.stop()


@pytest.fixture
def served(emulated: tuple[EmulatedInstance, Served]) -> Served:
    return emulated[1]


@suite.AS_VLLM
@pytest.mark.parametrize(
    "emulated", [kind.name for kind in KINDS.values() if kind.emulator == "vllm"], indirect=True
)
async def test_as_vllm_does(check: Check, served: Served, backend: Backend) -> None:
    await check(served, backend)


@pytest.mark.parametrize(
    "kind",
    [
        k
        for k in FaultKind
        if k not in {FaultKind.UNHEALTHY, FaultKind.REFUSE, FaultKind.KILL, FaultKind.HANG_BEFORE_FIRST_TOKEN}
    ],
)
async def test_faults(emulated: tuple[EmulatedInstance, Served], backend: Backend, kind: FaultKind) -> None:
    instance, served = emulated
    await suite.streamed(backend, served.chat(bound=3))  # so that a connection is pooled
    instance.arm(Fault(kind, after_tokens=2))
    backend_of_fault = backends.create(
        served.kind, url=served.url, candidates=[served.candidate], api_key=KEY, idle_timeout_s=0.2
    )
    with pytest.raises(UpstreamError) as failed:
        await suite.streamed(backend_of_fault, served.chat(bound=40))
    assert isinstance(failed.value, UpstreamTimeout) == (kind is FaultKind.HANG_MID_STREAM)
    assert (await suite.streamed(backend, served.chat(bound=3)))[0]
    await backend_of_fault.aclose()
