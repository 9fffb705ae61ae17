"""`upstream_stream: when_needed`: an engine is asked for an answer in one piece where nothing needs the stream."""

from __future__ import annotations

from functools import partial

import orjson
import pytest
import pytest_asyncio

from tests.integration.gateway.live import live, ollama, vllm

pytestmark = pytest.mark.asyncio(loop_scope="module")

HI = [{"role": "user", "content": "Hello"}]
LLAMA, QWEN = "llama-3.1-8b", "qwen2.5-7b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gw(tmp_path_factory):
    """`llama-3.1-8b` at the vLLM `v`, `qwen2.5-7b` at the Ollama `o`."""
    async with live(
        tmp_path_factory.mktemp("needed"),
        vllm("v"),
        ollama("o", QWEN),
        upstream_stream="when_needed",
        scheduling={"streamed_share": 0.0},
        instance={"o": {"serves": {QWEN: f"{QWEN}:latest"}}},
    ) as made:
        yield made


@pytest.fixture
def asked(monkeypatch):
    """Whether each engine was asked for a stream, in order."""
    found = []
    from backends import ollama, openai

    def made(kind, streams, *given, **settings):
        found.append(streams)
        return kind(*given, **settings)

    for module in (openai, ollama):
        for name, streams in (("StreamedCall", True), ("JsonCall", False)):
            monkeypatch.setattr(module, name, partial(made, getattr(module, name), streams))
    return found


async def answered(gw, path, body):
    """The answer to a request and its row."""
    async with gw.http.post(f"{gw.url}{path}", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.read(), await gw.row(response.headers["x-request-id"])


@pytest.mark.parametrize("model", [LLAMA, QWEN])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 4}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 4}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}),
        ("/api/chat", {"messages": HI, "stream": False, "options": {"num_predict": 4}}),
        ("/api/generate", {"prompt": "Hello", "stream": False, "options": {"num_predict": 4}}),
    ],
)
async def test_an_answer_in_one_piece(gw, asked, model, path, body):
    answer, row = await answered(gw, path, {"model": model, **body})
    assert asked == [False]
    payload = orjson.loads(answer)
    assert payload["model"] == model
    assert (row["outcome"], row["ttft_s"], row["tpot_s"], row["itl_max_s"]) == ("ok", None, None, None)
    assert row["decoded"]
    assert row["output_tokens"] > 0
    assert row["e2e_s"] > 0
    if path == "/v1/chat/completions":
        assert payload["choices"][0]["message"]["content"]
        assert payload["usage"]["completion_tokens"] == row["output_tokens"]
        assert payload["headway"]["ttft_ms"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"stream": True},
        {"routing": {"slo": {"ttft_ms": 60_000}}},
        {"routing": {"slo": {"tpot_ms": 60_000}}},
        {"routing": {"max_cost_usd": 1.0}},
    ],
)
async def test_what_needs_the_stream_has_it(gw, asked, body):
    _, row = await answered(
        gw, "/v1/chat/completions", {"model": LLAMA, "messages": HI, "max_tokens": 4, **body}
    )
    assert asked[-1]
    assert (row["outcome"], row["ttft_s"] is None) == ("ok", False)


async def test_it_can_be_changed_while_the_gateway_serves(gw, asked):
    body = {"model": LLAMA, "messages": HI, "max_tokens": 4}
    gw.fleet["upstream_stream"] = "always"
    await gw.gateway.changes.reload()
    await answered(gw, "/v1/chat/completions", body)
    gw.fleet["upstream_stream"] = "when_needed"
    await gw.gateway.changes.reload()
    await answered(gw, "/v1/chat/completions", body)
    assert asked == [True, False]
