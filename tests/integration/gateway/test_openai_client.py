"""The `openai` client, unchanged, against the gateway over both kinds of engine."""

from __future__ import annotations

from contextlib import asynccontextmanager

import openai
import pytest

from tests.integration.gateway.live import bearer, fault, key, live, vllm

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "Tell me a joke"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
#: A model of each kind of engine.
MODELS = pytest.mark.parametrize("model", ["qwen2.5-7b", "llama-3.1-8b"])


@asynccontextmanager
async def client(gw, **settings):
    settings = {"api_key": "none", "max_retries": 0} | settings
    async with openai.AsyncOpenAI(base_url=f"{gw.url}/v1", **settings) as opened:
        yield opened


@pytest.fixture
def only(shared):
    """`model` as each kind of engine serves it: qwen at the vLLM `b`, llama at the Ollama `c`."""
    shared.instances["a"].draining = True
    yield shared
    shared.instances["a"].draining = False


@MODELS
async def test_chat(only, model):
    async with client(only) as api:
        answer = await api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=5)
        assert answer.model == model
        assert answer.object == "chat.completion"
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 5
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
        assert answer.headway["outcome"] == "ok"
        assert answer.headway["instance"] == ("b" if model == "qwen2.5-7b" else "c")


@MODELS
@pytest.mark.parametrize("usage", [False, True])
async def test_chat_streaming(only, model, usage):
    async with client(only) as api:
        stream = await api.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": usage}
        )
        chunks = [chunk async for chunk in stream]
        assert {chunk.model for chunk in chunks} == {model}
        assert len({chunk.id for chunk in chunks}) == 1
        if usage:
            last = chunks.pop()
            assert (last.choices, last.usage.completion_tokens) == ([], 5)
            assert last.headway["outcome"] == "ok"
        assert not any(chunk.usage for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@MODELS
async def test_completions_and_embeddings(only, model):
    async with client(only) as api:
        answer = await api.completions.create(model=model, prompt="Once upon", max_tokens=4)
        assert (answer.model, answer.object) == (model, "text_completion")
        assert answer.choices[0].text
        assert answer.usage.completion_tokens == 4
        stream = await api.completions.create(model=model, prompt="Once upon", max_tokens=4, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == answer.choices[0].text
        for form in ("float", "base64"):
            found = await api.embeddings.create(model=model, input=["one", "two"], encoding_format=form)
            assert (found.model, len(found.data), found.data[1].index) == (model, 2, 1)
            assert found.usage.prompt_tokens > 0
            assert found.data[0].embedding != found.data[1].embedding
        found = await api.embeddings.create(model=model, input="one")  # asks for base64, gives floats
        assert all(isinstance(value, float) for value in found.data[0].embedding)


async def test_tools(only):
    model = "qwen2.5-7b"  # an Ollama has no `tool_choice`; its calls are told below
    async with client(only) as api:
        request = {
            "model": model,
            "messages": MESSAGES,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "max_tokens": 60,
        }
        answer = await api.chat.completions.create(**request)
        (call,) = answer.choices[0].message.tool_calls
        assert (call.type, call.function.name) == ("function", "weather")
        assert call.function.arguments.startswith("{")
        stream = await api.chat.completions.create(**request, stream=True)
        name, arguments = "", ""
        async for chunk in stream:
            for choice in chunk.choices:
                for piece in choice.delta.tool_calls or ():
                    name += piece.function.name or ""
                    arguments += piece.function.arguments or ""
        assert (name, arguments) == ("weather", call.function.arguments)
        history = [
            *MESSAGES,
            answer.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny"},
        ]
        after = await api.chat.completions.create(model=model, messages=history, max_tokens=4)
        assert after.choices[0].message.content


async def test_what_is_passed_through_to_a_vllm(only):
    async with client(only) as api:
        answer = await api.chat.completions.create(
            model="qwen2.5-7b",
            messages=MESSAGES,
            n=2,
            max_tokens=5,
            logprobs=True,
            top_logprobs=2,
            extra_body={"top_k": 3, "min_tokens": 2, "unheard_of": {"deep": [1]}},
        )
        assert [choice.index for choice in answer.choices] == [0, 1]
        for choice in answer.choices:
            assert len(choice.logprobs.content) == 5
            assert len(choice.logprobs.content[0].top_logprobs) == 2
        assert answer.usage.completion_tokens == 10
        stream = await api.chat.completions.create(
            model="qwen2.5-7b", messages=MESSAGES, n=2, max_tokens=5, logprobs=True, stream=True
        )
        seen = {0: 0, 1: 0}
        async for chunk in stream:
            for choice in chunk.choices:
                seen[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
        assert seen == {0: 5, 1: 5}
        whole = await api.completions.create(
            model="qwen2.5-7b", prompt="Once", max_tokens=3, extra_body={"prompt_logprobs": 1}
        )
        assert whole.choices[0].text
        row = await only.row(whole.headway["request_id"])
        assert (row["ttft_s"], row["outcome"], row["output_tokens"]) == (None, "ok", 3)
        image = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                ],
            }
        ]
        seen = await api.chat.completions.create(model="qwen2.5-7b", messages=image, max_tokens=3)
        assert seen.choices[0].message.content


@MODELS
async def test_response_format(only, model):
    async with client(only) as api:
        answer = await api.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=60, response_format={"type": "json_object"}
        )
        assert answer.choices[0].message.content.startswith("{")


async def test_models(shared):
    async with client(shared) as api:
        assert [model.id async for model in api.models.list()] == ["llama-3.1-8b", "qwen2.5-7b"]
        assert await shared.get("/v1/models/") == await shared.get("/v1/models")
        for name in ("small", "small:price"):
            assert (await api.models.retrieve(name)).id == "llama-3.1-8b"
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("gpt-9")


async def test_routing_in_extra_body_and_raw_headers(shared):
    async with client(shared) as api:
        raw = await api.chat.completions.with_raw_response.create(
            model="auto",
            messages=MESSAGES,
            max_tokens=3,
            extra_body={"routing": {"policy": "price", "slo": {"ttft_ms": 9000}}},
            extra_headers={"x-headway-tpot-ms": "500"},
        )
        assert raw.headers["x-headway-policy"] == "price"
        assert raw.headers["x-headway-model"] == "qwen2.5-7b"
        answer = raw.parse()
        assert answer._request_id == raw.headers["x-request-id"] == answer.headway["request_id"]
        assert answer.headway["slo_met"] is True
        async with api.chat.completions.with_streaming_response.create(
            model="auto:round_robin", messages=MESSAGES, max_tokens=3, stream=True
        ) as raw:
            assert raw.headers["x-headway-policy"] == "round_robin"
            async for _ in await raw.parse():
                pass


async def test_its_errors(shared):
    async with client(shared) as api:

        async def ask(**body):
            request = {"model": "auto", "messages": MESSAGES, "max_tokens": 3} | body
            await api.chat.completions.create(**request)

        with pytest.raises(openai.BadRequestError) as bad:
            await ask(extra_body={"routing": {"policy": "fastest"}})
        assert (bad.value.code, bad.value.param) == ("invalid_request", "routing.policy")
        assert bad.value.type == "invalid_request_error"
        with pytest.raises(openai.NotFoundError) as unknown:
            await ask(model="gpt-9")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.RateLimitError) as slo:
            await ask(extra_body={"routing": {"slo": {"ttft_ms": 0.01}, "on_miss": "reject"}})
        assert slo.value.code == "slo_unattainable"
    rows = len(await shared.rows())
    async with client(shared, max_retries=2) as api:
        with pytest.raises(openai.RateLimitError):  # x-should-retry: false is heeded
            await ask(extra_body={"routing": {"slo": {"ttft_ms": 0.01}, "on_miss": "reject"}})
    assert len(await shared.rows()) == rows + 1


async def test_its_keys(tmp_path):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("sesame")]}) as gw:
        async with client(gw, api_key="wrong") as api:
            with pytest.raises(openai.AuthenticationError) as wrong:
                await api.models.list()
            assert wrong.value.code == "invalid_api_key"
        async with client(gw, api_key="sesame") as api:
            assert (await api.chat.completions.create(model="small", messages=MESSAGES, max_tokens=2)).choices
        assert (await gw.get("/v1/models", headers=bearer("sesame")))[0] == 200


async def test_a_stream_that_breaks_raises_in_the_client(tmp_path):
    async with live(tmp_path, vllm("a")) as gw, client(gw) as api:
        gw.engines["a"].arm(fault("error_mid_stream", after_tokens=3))
        stream = await api.chat.completions.create(
            model="small", messages=MESSAGES, max_tokens=50, stream=True
        )
        with pytest.raises(openai.APIError) as broken:
            async for _ in stream:
                pass
        assert broken.value.code == "upstream_error"
