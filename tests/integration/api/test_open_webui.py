"""Open WebUI's way of calling: what its backend sends to an OpenAI and to an Ollama connection.

The calls are those of backend/open_webui/routers/openai.py and ollama.py of https://github.com/open-webui/open-webui:
an aiohttp session for each, bodies dumped by hand, streams relayed as they come.
"""

from __future__ import annotations

import json
from datetime import datetime

import aiohttp
import pytest

from tests.integration.gateway.live import bearer, key, live, ollama, vllm

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = {
    "X-OpenWebUI-User-Name": "Ada%20L",
    "X-OpenWebUI-User-Id": "1",
    "X-OpenWebUI-User-Email": "a@example.org",
    "X-OpenWebUI-User-Role": "user",
}
IMAGE = "data:image/png;base64,iVBORw0KGgo="


async def get(url):
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), trust_env=True) as session,
        session.get(url, headers={**bearer("sesame"), **USER}) as response,
    ):
        assert response.ok
        return await response.json()


async def post(url, payload):
    """Status, content type and body of a call whose body is dumped by hand."""
    headers = {
        "Content-Type": "application/json",
        **bearer("sesame"),
        **USER,
        "X-OpenWebUI-Chat-Id": "chat-1",
    }
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), trust_env=True) as session,
        session.post(url, data=json.dumps(payload), headers=headers) as response,
    ):
        content = b"".join([line async for line in response.content])
        return response.status, response.headers.get("Content-Type", ""), content.decode()


async def test_an_openai_connection(tmp_path):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("sesame")]}) as gw:
        base = f"{gw.url}/v1"
        models = await get(f"{base}/models")
        name = models["data"][0]["id"]
        assert name == "llama-3.1-8b"
        payload = {
            "model": name,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is it?", "cache_control": {"type": "ephemeral"}},
                        {"type": "image_url", "image_url": {"url": IMAGE}},
                    ],
                },
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 6,
            "temperature": 0.7,
            "logit_bias": {"5": -100},
            "reasoning": {"effort": "low"},
        }
        status, kind, text = await post(f"{base}/chat/completions", payload)
        assert status == 200
        assert "text/event-stream" in kind  # else it reads the body as one JSON object
        lines = [line.removeprefix("data: ") for line in text.split("\n") if line]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        assert said.startswith("Emulated text")
        assert chunks[-1]["usage"]["completion_tokens"] == 6
        title = {key: value for key, value in payload.items() if key != "stream_options"} | {"stream": False}
        status, kind, text = await post(f"{base}/chat/completions", title)
        assert (status, kind) == (200, "application/json")
        assert json.loads(text)["choices"][0]["message"]["content"] == said
        found = await post(f"{base}/embeddings", {"input": ["a", "b"], "model": name})
        assert len(json.loads(found[2])["data"]) == 2
        status, _, text = await post(f"{base}/chat/completions", payload | {"model": "none"})
        assert (status, json.loads(text)["error"]["code"]) == (404, "model_not_found")
        asked = {
            "model": name,
            "input": [{"type": "message", "role": "user", "content": "Hi"}],
            "stream": True,
        }
        status, kind, text = await post(f"{base}/responses", asked)
        assert (status, text.count("event: response.completed\n")) == (200, 1)


async def test_an_ollama_connection(tmp_path):
    async with live(tmp_path, ollama("c", "llama-3.1-8b"), auth={"keys": [key("sesame")]}) as gw:
        assert (await get(f"{gw.url}/api/version"))["version"]
        tags = (await get(f"{gw.url}/api/tags"))["models"]
        name = tags[0]["model"]
        assert name == "llama-3.1-8b:latest"
        for loaded in (await get(f"{gw.url}/api/ps"))["models"]:
            if "expires_at" in loaded:
                datetime.fromisoformat(loaded["expires_at"])
        payload = {
            "model": name,
            "messages": [{"role": "user", "content": "Hello", "images": [IMAGE.partition(",")[2]]}],
            "options": {"num_predict": 5, "temperature": 0.5, "num_ctx": 2048},
            "keep_alive": "5m",
            "stream": True,
        }
        status, kind, text = await post(f"{gw.url}/api/chat", payload)
        assert (status, kind) == (200, "application/x-ndjson")
        lines = [json.loads(line) for line in text.splitlines()]
        said = "".join(line["message"]["content"] for line in lines)
        assert said.startswith("Emulated text")
        assert (lines[-1]["done"], lines[-1]["done_reason"], lines[-1]["eval_count"]) == (True, "length", 5)
        shape = {"type": "object", "properties": {"a": {"enum": ["u"]}}, "required": ["a"]}
        asked = {key: value for key, value in payload.items() if key != "options"}
        status, _, text = await post(f"{gw.url}/api/chat", asked | {"stream": False, "format": shape})
        assert (status, json.loads(json.loads(text)["message"]["content"])) == (200, {"a": "u"})
        status, _, text = await post(
            f"{gw.url}/api/generate",
            {"model": name, "prompt": "Hi", "stream": False, "options": {"num_predict": 3}},
        )
        assert (status, json.loads(text)["eval_count"]) == (200, 3)
        assert json.loads((await post(f"{gw.url}/api/show", {"model": name}))[2])["details"]
        for path in ("chat", "show"):  # Ollama finds a model in any case
            told = payload | {"model": name.upper(), "stream": False}
            status, _, text = await post(f"{gw.url}/api/{path}", told)
            assert (status, json.loads(text).get("model", name.upper())) == (200, name.upper())
        found = json.loads((await post(f"{gw.url}/api/embed", {"model": name, "input": ["a", "b"]}))[2])
        assert len(found["embeddings"]) == 2
        # Its Ollama connections are used by OpenAI's paths too.
        openai_chat = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        status, _, text = await post(f"{gw.url}/v1/chat/completions", openai_chat)
        assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 3)
        status, _, text = await post(f"{gw.url}/api/chat", payload | {"model": "none"})
        assert (status, type(json.loads(text)["error"])) == (404, str)
