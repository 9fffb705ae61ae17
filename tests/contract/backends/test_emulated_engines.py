"""Every backend against the emulator's wire formats."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import backends
from backends.emulator import EmulatedInstance
from backends.emulator.faults import Fault, FaultKind
from router.core.errors import UpstreamError, UpstreamTimeout
from tests.contract.backends import engine_suite as suite
from tests.contract.backends.engine_suite import (  # noqa: F401 (collected here)
    KEY,
    Served,
    test_a_prompt_over_the_context_is_refused,
    test_a_streamed_answer,
    test_a_whole_answer,
    test_an_aborted_stream_frees_the_engine,
    test_an_unknown_model_is_a_failed_attempt,
    test_events_are_openai_s,
    test_many_at_once,
    test_probe_and_load,
    test_prompt_tokens,
)

PROFILE = "llama-3.1-8b@a100-80g"
MODEL = "engine-model"


@pytest.fixture(params=["vllm", "openai", "ollama"])
async def emulated(request: pytest.FixtureRequest) -> AsyncIterator[tuple[EmulatedInstance, Served]]:
    kind = str(request.param)
    if kind == "ollama":
        instance = EmulatedInstance("e", "ollama", {MODEL: PROFILE}, speed=100, num_ctx=2048)
    else:
        instance = EmulatedInstance("e", "vllm", {MODEL: PROFILE}, speed=20, max_model_len=2048, api_key=KEY)
    await instance.start()
    yield instance, Served(kind, instance.url, MODEL)
    await instance.stop()


@pytest.fixture
def served(emulated: tuple[EmulatedInstance, Served]) -> Served:
    return emulated[1]


@pytest.mark.parametrize(
    "check",
    [
        suite.check_a_wrong_key,
        suite.check_a_bad_field,
        suite.check_usage_on_every_chunk,
        suite.check_two_choices,
    ],
)
@pytest.mark.parametrize("emulated", ["vllm", "openai"], indirect=True)
async def test_as_vllm_does(check: type, served: Served) -> None:
    await check(served)


@pytest.mark.parametrize(
    "kind",
    [
        k
        for k in FaultKind
        if k not in {FaultKind.UNHEALTHY, FaultKind.REFUSE, FaultKind.KILL, FaultKind.HANG_BEFORE_FIRST_TOKEN}
    ],
)
async def test_faults(emulated: tuple[EmulatedInstance, Served], kind: FaultKind) -> None:
    instance, served = emulated
    backend = served.backend()
    await suite.streamed(backend, served.chat(bound=3))  # so that a connection is pooled
    instance.arm(Fault(kind, after_tokens=2))
    backend_of_fault = backends.create(
        served.kind, url=served.url, candidates=[served.candidate], api_key=KEY, idle_timeout_s=0.2
    )
    with pytest.raises(UpstreamError) as failed:
        await suite.streamed(backend_of_fault, served.chat(bound=40))
    assert isinstance(failed.value, UpstreamTimeout) == (kind is FaultKind.HANG_MID_STREAM)
    assert (await suite.streamed(backend, served.chat(bound=3)))[0]
    await backend.aclose()
    await backend_of_fault.aclose()
