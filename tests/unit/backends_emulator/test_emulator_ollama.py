from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import ollama
import openai
import pytest
from emulator_client import CHAT, ask, serve
from emulator_profiles import QUICK, SLOW, emulated

from backends.emulator.instance import EmulatedInstance
from tests.waiting import until

MESSAGES = [{"role": "user", "content": "x" * 40}]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": MESSAGES, **more}


def wish(tokens: int, **more: Any) -> dict[str, Any]:
    return {"options": {"emulate_output_tokens": tokens, **more}}


async def post(
    instance: EmulatedInstance, path: str, body: dict[str, Any]
) -> tuple[int, list[dict[str, Any]]]:
    answer = await ask(instance, path, body)
    return answer.status, answer.lines


async def loaded(instance: EmulatedInstance) -> list[dict[str, Any]]:
    return (await ask(instance, "/api/ps")).json["models"]


async def test_a_chat_stream_has_ollamas_shape(ollama_server: EmulatedInstance) -> None:
    answer = await ask(ollama_server, "/api/chat", chat(**wish(7)))
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    *chunks, last = answer.lines
    assert answer.text.endswith("\n")
    assert all(set(chunk) == {"model", "created_at", "message", "done"} for chunk in chunks)
    assert "".join(chunk["message"]["content"] for chunk in chunks) == "Emulated text, not a model's"
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert (last["prompt_eval_count"], last["eval_count"]) == (10, 7)
    assert last["load_duration"] >= 50_000_000
    assert last["eval_duration"] == pytest.approx(6_000_000, abs=2)
    parts = last["load_duration"] + last["prompt_eval_duration"] + last["eval_duration"]
    assert last["total_duration"] >= parts - 3
    datetime.fromisoformat(last["created_at"])


async def test_the_ollama_client_works(ollama_server: EmulatedInstance) -> None:
    async with ollama.AsyncClient(host=ollama_server.url) as client:
        whole = await client.chat(model="tiny", messages=MESSAGES)
        pieces = [part async for part in await client.chat(model="tiny", messages=MESSAGES, stream=True)]
        assert "".join(part.message.content or "" for part in pieces) == whole.message.content
        assert pieces[-1].eval_count == whole.eval_count
        generated = await client.generate(model="tiny", prompt="hello", options={"num_predict": 5})
        assert (generated.eval_count, generated.done_reason) == (5, "length")
        assert len(generated.context or []) == 2 + 5
        embedded = await client.embed(model="tiny", input=["a", "b"], dimensions=16)
        assert [len(vector) for vector in embedded.embeddings] == [16, 16]
        assert embedded.prompt_eval_count == 2
        assert len((await client.embeddings(model="tiny", prompt="a")).embedding) == 256
        found = sorted(model.model or "" for model in (await client.list()).models)
        assert found == ["other:1b", "tiny:latest"]
        assert [model.model for model in (await client.ps()).models] == ["tiny:latest"]
        assert "completion" in (await client.show("tiny")).capabilities
        probable = {"model": "tiny", "prompt": "hello", "options": {"num_predict": 5}, "logprobs": True}
        in_one = (await client.generate(**probable, top_logprobs=2)).logprobs or []
        assert [len(token.top_logprobs or []) for token in in_one] == [2] * 5
        assert "".join(token.token for token in in_one) == generated.response
        streamed = [part.logprobs or [] async for part in await client.generate(**probable, stream=True)]
        assert [token.token for part in streamed for token in part] == [token.token for token in in_one]
        formed = await client.chat(
            model="tiny", messages=MESSAGES, format="json", options={"emulate_output_tokens": 20}
        )
        assert list(json.loads(formed.message.content or "")) == ["emulated"]
        with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as caught:
            await client.chat(model="nope", messages=MESSAGES)
        assert caught.value.status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/chat", chat(model="nope"), 404, "model 'nope' not found"),
        ("/api/generate", {"prompt": "x"}, 404, "model '' not found"),
        ("/api/chat", {"messages": MESSAGES}, 400, "model is required"),
        ("/api/show", {}, 400, "model is required"),
        ("/api/chat", chat(keep_alive="300"), 400, 'time: missing unit in duration "300"'),
        ("/api/chat", chat(messages="x"), 400, "cannot unmarshal string"),
        ("/api/chat", chat(model=5), 400, "cannot unmarshal number"),
        ("/api/chat", chat(top_logprobs=21), 400, "top_logprobs"),
        ("/api/chat", chat(options={"num_ctx": "big"}), 500, 'option "num_ctx" must be of type'),
        (
            "/api/generate",
            {"model": "tiny", "prompt": "x", "raw": True, "system": "y"},
            400,
            "raw mode does not support",
        ),
        (
            "/api/embed",
            {"model": "tiny", "input": "x" * 9000, "truncate": False},
            400,
            "the input length exceeds the context length",
        ),
        (
            "/api/chat",
            chat(messages=[{"role": "user", "content": "x" * 9000}], truncate=False),
            400,
            "exceeds the available context",
        ),
    ],
)
async def test_refusals(
    ollama_server: EmulatedInstance, path: str, body: Any, status: int, text: str
) -> None:
    found, (error,) = await post(ollama_server, path, body)
    assert found == status
    assert set(error) == {"error"}
    assert text in error["error"]


async def test_odd_requests(ollama_server: EmulatedInstance) -> None:
    for path, options, status, text in (
        ("/", {}, 200, "Ollama is running"),
        ("/api/version", {"method": "HEAD"}, 200, ""),
        ("/api/chat", {"method": "POST", "data": b""}, 400, '{"error":"missing request body"}'),
        ("/api/chat", {"method": "POST", "data": b"{"}, 400, None),
        ("/nowhere", {}, 404, "404 page not found"),
        ("/", {"headers": {"Host": "evil.example.com"}}, 403, ""),
    ):
        answer = await ask(ollama_server, path, **options)
        assert (answer.status, answer.text) == (status, answer.text if text is None else text)


async def test_load_and_unload(ollama_server: EmulatedInstance) -> None:
    assert await loaded(ollama_server) == []
    status, (answer,) = await post(ollama_server, "/api/chat", chat(messages=[]))
    assert (status, answer["done_reason"], answer["done"]) == (200, "load", True)
    (entry,) = await loaded(ollama_server)
    assert (entry["name"], entry["context_length"]) == ("tiny:latest", 2048)
    body = {"model": "tiny", "prompt": "", "keep_alive": 0}
    status, (answer,) = await post(ollama_server, "/api/generate", body)
    assert (status, answer["done_reason"]) == (200, "unload")
    assert await loaded(ollama_server) == []


async def test_keep_alive_ends() -> None:
    # A hundred times as fast: keep-alive stays wall time.
    async with serve(emulated("o", "ollama", {"tiny": QUICK}, speed=100)) as (instance,):
        for keep, stays in (("1h", True), (-1, True), (0, False), ("30ms", False)):
            body = chat(keep_alive=keep, **wish(2))
            assert (await post(instance, "/api/chat", body))[0] == 200
            if keep == -1:
                assert (await loaded(instance))[0]["expires_at"].startswith("23")
            await asyncio.sleep(0.1 if keep == "30ms" else 0)
            assert bool(await loaded(instance)) is stays, keep


async def test_another_num_ctx_reloads_after_those_that_run() -> None:
    async with serve(emulated("o", "ollama", {"tiny": replace(SLOW, overhead_s=0.01)})) as (instance,):
        state = instance.app.state
        long = asyncio.create_task(post(instance, "/api/chat", chat(**wish(60))))
        await until(lambda: state()["running"] == 1)
        other = asyncio.create_task(post(instance, "/api/chat", chat(**wish(2, num_ctx=512))))
        await until(lambda: state()["waiting"] == 1)
        # Whoever comes after waits behind the reload, though the loaded runner would suit.
        third = asyncio.create_task(post(instance, "/api/chat", chat(**wish(2))))
        await until(lambda: state()["waiting"] == 2)
        assert not other.done()
        assert (await long)[1][-1]["eval_count"] == 60
        assert (await other)[1][-1]["load_duration"] > 50_000_000
        assert (await third)[1][-1]["eval_count"] == 2
        assert state()["loads_total"] == 3
        assert (await loaded(instance))[0]["context_length"] == 2048


async def test_long_prompts_are_cut_silently(ollama_server: EmulatedInstance) -> None:
    body = chat(messages=[{"role": "user", "content": "x" * 8000}], **wish(20, num_ctx=256))
    status, found = await post(ollama_server, "/api/chat", body)
    assert status == 200
    assert found[-1]["prompt_eval_count"] == 256 - 20
    assert found[-1]["eval_count"] == 20


async def test_slots_bound_what_runs() -> None:
    async with serve(emulated("o", "ollama", {"tiny": SLOW}, num_parallel=1)) as (instance,):
        state = instance.app.state
        bodies = chat(**wish(500))
        tasks = [asyncio.create_task(post(instance, "/api/chat", bodies)) for _ in range(3)]
        await until(lambda: (state()["running"], state()["waiting"]) == (1, 2))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: (state()["running"], state()["waiting"]) == (0, 0))


async def test_a_full_queue_is_busy() -> None:
    never = replace(QUICK, load_s=1000.0)
    async with serve(emulated("o", "ollama", {"tiny": never}, max_queue=1)) as (instance,):
        body = chat()
        first = asyncio.create_task(post(instance, "/api/chat", body))
        await until(lambda: instance.app.state()["waiting"] == 1)
        status, (error,) = await post(instance, "/api/chat", body)
        assert status == 503
        assert error["error"] == "server busy, please try again.  maximum pending requests exceeded"
        status, (error,) = await post(instance, "/v1/chat/completions", body)
        assert (status, error["error"]["type"], error["error"]["code"]) == (503, "api_error", None)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_openai_endpoints(ollama_server: EmulatedInstance) -> None:
    async with openai.AsyncOpenAI(base_url=f"{ollama_server.url}/v1", api_key="any", max_retries=0) as client:
        messages: Any = MESSAGES
        plain = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=6)
        assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (10, 6)
        assert plain.choices[0].finish_reason == "length"
        stream = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=6, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[0].choices[0].delta.content
        assert chunks[-2].choices[0].finish_reason == "length"
        assert not chunks[-2].choices[0].delta.content
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 6
        completion = await client.completions.create(model="tiny", prompt="x", max_tokens=3)
        assert completion.choices[0].text == "Emulated text,"
        models = [model.id async for model in client.models.list()]
        assert sorted(models) == ["other:1b", "tiny:latest"]
        assert (await client.models.retrieve("other:1b")).id == "other:1b"
        assert len((await client.embeddings.create(model="tiny", input="x")).data[0].embedding) == 256
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=messages)
    status, (error,) = await post(ollama_server, CHAT, chat(messages=[]))
    assert (status, error["error"]["message"]) == (400, "[] is too short - 'messages'")
    status, (error,) = await post(ollama_server, CHAT, chat(response_format={"type": 5}))
    assert status == 400
    assert "cannot unmarshal number" in error["error"]["message"]
    body = {"model": "tiny", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
    events = (await ask(ollama_server, "/v1/completions", body)).events
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert json.loads(events[0])["usage"] == zero
    assert json.loads(events[-2])["usage"]["completion_tokens"] > 0
    assert events[-1] == "[DONE]"


async def test_a_quantised_model_draws_the_answers_of_the_same_model_on_vllm() -> None:
    instances = (
        emulated("o", "ollama", {"tiny": replace(QUICK, name="quick-1b-q4@bench")}),
        emulated("v", "vllm", {"tiny": QUICK}),
    )
    async with serve(*instances) as (one, other):
        *_, last = (await ask(one, "/api/chat", chat())).lines
        answer = await ask(other, CHAT, {"model": "tiny", "messages": MESSAGES})
    assert last["eval_count"] == answer.json["usage"]["completion_tokens"]
