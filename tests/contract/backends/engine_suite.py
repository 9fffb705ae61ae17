"""What a backend must do with an engine that works: the same tests for emulated and real ones.

A test module imports them, and `backend_of_served`, and gives a fixture `served`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

import backends
from backends.sse_events import objects
from router.core.errors import UpstreamError, UpstreamRejected
from router.core.interfaces import Backend, Batch, Call
from router.core.types import Candidate
from tests.contract.backends.dialects import answer_of, complete, read_all, stream

KEY = "an-engine-key"
PROMPT = "The quick brown fox jumps over the lazy dog."
LONG = "word " * 6000  # over the context of every engine here


@dataclass(frozen=True)
class Served:
    """A running engine: how it is reached and what it calls its model. `context_tokens` is its limit."""

    kind: str
    url: str
    model: str
    context_tokens: int = 2048

    @property
    def candidate(self) -> Candidate:
        return Candidate("one", "fleet-model", self.model, context_tokens=self.context_tokens)

    def backend(self, api_key: str | None = KEY) -> Backend:
        return backends.create(
            self.kind, url=self.url, candidates=[self.candidate], api_key=api_key, idle_timeout_s=20
        )

    def chat(self, content: str = PROMPT, bound: int | None = None, **fields: Any) -> Call:
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return Call("chat", body, self.candidate, "req-1", bound)

    def completion(self, prompt: Any = PROMPT, bound: int | None = None, **fields: Any) -> Call:
        return Call("completions", {"prompt": prompt, **fields}, self.candidate, "req-2", bound)


@pytest.fixture(name="backend")
async def backend_of_served(served: Served) -> AsyncIterator[Backend]:
    made = served.backend()
    yield made
    await made.aclose()


async def streamed(backend: Backend, call: Call) -> tuple[str, int, Any, str | None]:
    return answer_of(await read_all(stream(backend, call)))


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_a_streamed_answer(served: Served, backend: Backend, api: str) -> None:
    call = served.chat(bound=6) if api == "chat" else served.completion(bound=6)
    for _ in range(2):
        content, tokens, usage, finish = await streamed(backend, call)
        assert content
        assert 1 <= tokens <= usage["completion_tokens"] <= 6
        assert usage["prompt_tokens"] > 5
        assert finish in {"length", "stop"}


async def test_events_are_openai_s(served: Served, backend: Backend) -> None:
    batches = await read_all(stream(backend, served.chat(max_tokens=4)))
    payloads = events_of(batches)
    assert {payload["object"] for payload in payloads} == {"chat.completion.chunk"}
    assert len({payload["id"] for payload in payloads}) == 1
    assert payloads[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [p["choices"][0]["finish_reason"] for p in payloads[:-1]] == [None] * (len(payloads) - 1)
    assert b"[DONE]" not in b"".join(batch.data for batch in batches)


async def test_many_at_once(served: Served, backend: Backend) -> None:
    calls = [served.chat(f"{PROMPT} {i}", bound=5 + i) for i in range(12)]
    answers = await asyncio.gather(*(streamed(backend, call) for call in calls))
    for (content, _, usage, _), call in zip(answers, calls, strict=True):
        assert content
        assert usage["completion_tokens"] <= call.max_output_tokens


async def test_a_whole_answer(served: Served, backend: Backend) -> None:
    answer = await complete(
        backend, served.chat(bound=5, stream=True, stream_options={"include_usage": True})
    )
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "fleet-model"
    assert answer["choices"][0]["message"]["content"]
    assert 1 <= answer["usage"]["completion_tokens"] <= 5


async def test_an_unknown_model_is_a_failed_attempt(served: Served, backend: Backend) -> None:
    call = replace(served, model="nobody").chat()
    with pytest.raises(UpstreamError) as failed:
        await streamed(backend, call)
    assert failed.value.status == 404
    assert not isinstance(failed.value, UpstreamRejected)


async def test_a_prompt_over_the_context_is_refused(served: Served, backend: Backend) -> None:
    with pytest.raises(UpstreamRejected) as refused:
        await streamed(backend, served.chat(LONG))
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert "word word" not in str(refused.value)
    assert (await streamed(backend, served.chat(bound=2)))[0]  # the connection is as good as before


async def test_an_aborted_stream_frees_the_engine(served: Served, backend: Backend) -> None:
    readers = [stream(backend, served.chat(bound=1500)) for _ in range(3)]
    for reader in readers:
        while (batch := await reader.read()) is not None and not batch.tokens:
            pass
        reader.abort()
        with pytest.raises(UpstreamError):
            await reader.read()
    async with asyncio.timeout(20):
        while (await backend.load()).running:  # noqa: ASYNC110 (the engine's own count, polled)
            await asyncio.sleep(0.1)


async def test_models_that_do_not_agree_are_told(served: Served, backend: Backend) -> None:
    assert await backend.mismatches() == []
    unlike = replace(served, model="nobody").backend()
    (told,) = await unlike.mismatches()
    await unlike.aclose()
    assert told.startswith("the engine lists no model 'nobody'; it lists ")
    assert served.model in told


async def test_probe_and_load(served: Served, backend: Backend) -> None:
    await streamed(backend, served.chat(bound=8))
    assert await backend.probe()
    report = await backend.load()
    if backends.KINDS[served.kind].fixed_slots:
        assert report.loaded_models == frozenset({served.model})
        assert report.running is None
    else:
        assert report.running is not None
        assert report.waiting is not None
        assert report.kv_usage is not None
        assert (report.kv_capacity_tokens or 0) >= served.context_tokens


async def test_prompt_tokens(served: Served, backend: Backend) -> None:
    for call in (served.chat(bound=1), served.completion(bound=1)):
        count = await backend.count_tokens(call)
        if backends.KINDS[served.kind].tokenizes:
            assert count == (await streamed(backend, call))[2]["prompt_tokens"]
        else:
            assert count is None


# --- for engines that speak OpenAI's protocol -----------------------------------------------------------
Check = Callable[[Served, Backend], Awaitable[None]]


async def check_a_wrong_key(served: Served, backend: Backend) -> None:
    wrong = served.backend(api_key="wrong")
    with pytest.raises(UpstreamError) as failed:
        await read_all(stream(wrong, served.chat()))
    await wrong.aclose()
    assert failed.value.status == 401
    assert not isinstance(failed.value, UpstreamRejected)


async def check_a_bad_field(served: Served, backend: Backend) -> None:
    with pytest.raises(UpstreamRejected) as refused:
        await read_all(stream(backend, served.chat("a secret prompt", temperature=-3)))
    assert refused.value.status == 400
    assert "temperature" in str(refused.value)
    body = {"messages": "a secret prompt"}
    with pytest.raises(UpstreamRejected) as refused:
        await read_all(stream(backend, Call("chat", body, served.candidate, "req-1")))
    assert "secret" not in str(refused.value)


async def check_usage_on_every_chunk(served: Served, backend: Backend) -> None:
    call = served.chat(bound=5, stream_options={"continuous_usage_stats": True})
    batches = await read_all(stream(backend, call))
    counts = [p["usage"]["completion_tokens"] for p in events_of(batches) if p.get("usage")]
    assert counts == sorted(counts)
    assert len(counts) >= 2
    assert answer_of(batches)[2]["completion_tokens"] == counts[-1]


async def check_two_choices(served: Served, backend: Backend) -> None:
    batches = await read_all(stream(backend, served.chat(bound=4, n=2)))
    payloads = events_of(batches)
    assert {payload["choices"][0]["index"] for payload in payloads} == {0, 1}
    usage = [batch.usage for batch in batches if batch.usage][-1]
    assert 2 <= usage["completion_tokens"] <= 8


AS_VLLM = pytest.mark.parametrize(
    "check", [check_a_wrong_key, check_a_bad_field, check_usage_on_every_chunk, check_two_choices]
)


def events_of(batches: Sequence[Batch]) -> list[Any]:
    return list(objects(b"".join(batch.data for batch in batches)))
