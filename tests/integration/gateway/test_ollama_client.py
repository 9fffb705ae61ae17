"""The `ollama` client, unchanged, against the gateway over both kinds of engine."""

from __future__ import annotations

import ollama
import pytest
import pytest_asyncio

from tests.integration.gateway.live import key, live, vllm

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "Tell me a joke"}]
OPTIONS = {"num_predict": 5}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
MODELS = pytest.mark.parametrize("model", ["qwen2.5-7b", "llama-3.1-8b:latest"])


@pytest_asyncio.fixture(loop_scope="module")
async def api(shared):
    """A client; llama is served by the Ollama alone, qwen by a vLLM."""
    shared.instances["a"].draining = True
    client = ollama.AsyncClient(host=shared.url)
    yield client
    await client._client.aclose()
    shared.instances["a"].draining = False


@MODELS
async def test_chat(api, model):
    answer = await api.chat(model=model, messages=MESSAGES, options=OPTIONS)
    assert (answer.model, answer.done, answer.done_reason) == (model, True, "length")
    assert (answer.message.role, answer.eval_count) == ("assistant", 5)
    assert answer.message.content
    assert answer.prompt_eval_count > 0
    assert answer.total_duration >= answer.eval_duration > 0
    parts = [
        part async for part in await api.chat(model=model, messages=MESSAGES, options=OPTIONS, stream=True)
    ]
    assert {part.model for part in parts} == {model}
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.message.content or "" for part in parts) == answer.message.content
    assert (parts[-1].eval_count, parts[-1].done_reason) == (5, "length")


@MODELS
async def test_generate(api, model):
    answer = await api.generate(model=model, prompt="Once upon", system="Be brief", options=OPTIONS)
    assert (answer.model, answer.done, answer.eval_count) == (model, True, 5)
    parts = [
        part
        async for part in await api.generate(
            model=model, prompt="Once upon", system="Be brief", options=OPTIONS, stream=True
        )
    ]
    assert "".join(part.response for part in parts) == answer.response
    assert parts[-1].done
    raw = await api.generate(model=model, prompt="Once upon", raw=True, options=OPTIONS)
    assert raw.response


@MODELS
async def test_embed(api, model):
    found = await api.embed(model=model, input=["one", "two"])
    assert (found.model, len(found.embeddings)) == (model, 2)
    assert found.prompt_eval_count > 0
    one = await api.embed(model=model, input="one")
    assert list(one.embeddings[0]) == pytest.approx(list(found.embeddings[0]))
    older = await api.embeddings(model=model, prompt="one")
    assert list(older.embedding) == pytest.approx(list(one.embeddings[0]))


@MODELS
async def test_tools_and_formats(api, model):
    answer = await api.chat(model=model, messages=MESSAGES, format="json", options={"num_predict": 60})
    assert answer.message.content.startswith("{")
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    answer = await api.generate(model=model, prompt="x", format=schema, options={"num_predict": 60})
    assert answer.response.startswith("{")
    answer = await api.chat(model=model, messages=MESSAGES, tools=[TOOL], options=OPTIONS)
    assert answer.message.content or answer.message.tool_calls


async def test_catalogue(api, shared):
    listed = await api.list()
    assert [model.model for model in listed.models] == ["llama-3.1-8b:latest", "qwen2.5-7b:latest"]
    assert listed.models[0].digest
    running = await api.ps()
    assert {model.model for model in running.models} == {"llama-3.1-8b:latest", "qwen2.5-7b:latest"}
    for name in ("small", "llama-3.1-8b", "llama-3.1-8b:latest", "small:price"):
        card = await api.show(name)
        assert card.details.family == "llama"
        assert "completion" in card.capabilities
    for name, status in (("gpt-9", 404), ("auto", 404), ("small:nothing", 400)):
        with pytest.raises(ollama.ResponseError) as unknown:
            await api.show(name)
        assert unknown.value.status_code == status
        assert status == 400 or unknown.value.error == f"model '{name}' not found"
    status, answer = await shared.post("/api/show", {})
    assert (status, answer["error"]) == (400, "model is required")
    version = (await shared.get("/api/version"))[1]["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)  # what Codex needs


@pytest.mark.parametrize("field", ["model", "name"])
@pytest.mark.parametrize("name", ["llama-3.1-8b:latest", "small:random", "auto:latest"])
async def test_names_may_have_a_tag(shared, name, field):
    for path, body in (
        ("/api/chat", {"messages": MESSAGES, "stream": False}),
        ("/api/chat", {"messages": []}),
        ("/api/generate", {"prompt": "x", "stream": False}),
        ("/api/embed", {"input": "x"}),
    ):
        status, answer = await shared.post(path, {field: name, **body})
        assert (status, answer["model"]) == (200, name), path  # it is repeated as it was given
    row = (await shared.rows())[-1]
    assert (row["model_requested"], row["model"] in ("llama-3.1-8b", "qwen2.5-7b")) == (name, True)
    if not name.startswith("auto"):
        status, answer = await shared.post("/api/show", {field: name})
        assert (status, answer["details"]["family"]) == (200, "llama")
    status, answer = await shared.post("/api/chat", {field: "No:1b", "messages": MESSAGES})
    assert (status, answer["error"]) == (404, "model 'No:1b' not found")


async def test_show_reads_json_of_any_content_type(shared):
    async def status_of(body: bytes, content_type: str) -> int:
        headers = {"content-type": content_type}
        async with shared.http.post(f"{shared.url}/api/show", data=body, headers=headers) as response:
            answer = await response.json()
            assert ("error" in answer) == (response.status != 200)
            return response.status

    for content_type in ("application/x-www-form-urlencoded", "text/plain", "application/json"):
        assert await status_of(b'{"model": "small"}', content_type) == 200
        assert await status_of(b'{"model": "gpt-9"}', content_type) == 404
        for wrong in (b"model=small", b"[]", b"", b'{"model": 1}'):
            assert await status_of(wrong, content_type) == 400


async def test_load_and_unload_are_answered_at_once(api, shared):
    loaded = await api.generate(model="small", prompt="")
    assert (loaded.done, loaded.done_reason) == (True, "load")
    gone = await api.chat(model="small", messages=[], keep_alive=0)
    assert gone.done_reason == "unload"
    with pytest.raises(ollama.ResponseError) as unknown:
        await api.generate(model="gpt-9", prompt="")
    assert unknown.value.status_code == 404
    await shared.until(lambda: shared.gateway.runner.scheduler.live == 0)


async def test_errors(api):
    with pytest.raises(ollama.ResponseError) as unknown:
        await api.chat(model="gpt-9", messages=MESSAGES)
    assert (unknown.value.status_code, unknown.value.error) == (404, "model 'gpt-9' not found")
    with pytest.raises(ollama.ResponseError) as bad:
        await api.chat(model="small", messages=MESSAGES, options={"num_predict": "many"})
    assert bad.value.status_code == 400


async def test_routing_by_name_and_by_header(shared):
    client = ollama.AsyncClient(host=shared.url, headers={"x-headway-policy": "price"})
    answer = await client.chat(model="auto", messages=MESSAGES, options=OPTIONS)
    assert (answer.model, answer.message.role) == ("auto", "assistant")
    await client._client.aclose()
    (row,) = [row for row in await shared.rows() if row["policy"] == "price"]
    assert (row["api"], row["model"]) == ("ollama.chat", "qwen2.5-7b")


async def test_a_key(tmp_path):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("sesame")]}) as gw:
        client = ollama.AsyncClient(host=gw.url, headers={"Authorization": "Bearer sesame"})
        assert (await client.chat(model="small", messages=MESSAGES, options=OPTIONS)).message.content
        assert (await client.list()).models
        await client._client.aclose()
        client = ollama.AsyncClient(host=gw.url)
        with pytest.raises(ollama.ResponseError) as missing:
            await client.list()
        assert missing.value.status_code == 401
        await client._client.aclose()
