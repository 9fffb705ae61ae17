"""What is no answer of the engine's format fails that request and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from aiohttp import web

from benchmarks.collect.clients import Client, OllamaClient, OpenAIClient, Reply
from router.core.types import Candidate, EndedHow

CANDIDATE = Candidate("a", "m", "m")


@dataclass
class Fixed:
    """A server that answers everything with `body`."""

    body: bytes = b""
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self.body)
        return response


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Fixed]:
    fixed = Fixed()
    app = web.Application()
    app.router.add_post("/{path:.*}", fixed.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fixed.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fixed
    await runner.cleanup()


async def asked(client: Client) -> Reply:
    reply = Reply()
    await client.ask(CANDIDATE, "hi", 3, reply, None)
    await client.aclose()
    return reply


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>no</html>",
        b"\xff\xfe\n\n",
        b"data: garbage\n\n",
        b"data: null\n\n",
        b"data: []\n\n",
        b"data: {}\n\n",
        b'data: {"choices": 3}\n\n',
        b'data: {"choices": [null]}\n\n',
        b'data: {"choices": [{"delta": {"content": "cut"}}]}\n\n',
        b'data: {"error": {"message": "lost", "code": 500}}\n\n',
    ],
)
async def test_openai(server: Fixed, body: bytes) -> None:
    server.body = body
    reply = await asked(OpenAIClient(server.url, None, {}, None))
    assert reply.ended_how is EndedHow.FAILED
    assert reply.error
    assert reply.ended_at is not None


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\n", b"garbage\n", b"null\n", b"[]\n", b"{}\n", b'{"message": 3}\n', b'{"error": "lost"}\n'],
)
async def test_ollama(server: Fixed, body: bytes) -> None:
    server.body = body
    reply = await asked(OllamaClient(server.url, None, {}, None))
    assert reply.ended_how is EndedHow.FAILED
    assert reply.error


async def test_counts_that_are_none_are_not_taken(server: Fixed) -> None:
    server.body = (
        b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
        b'data: {"choices": [{"delta": {"reasoning": "y"}, "finish_reason": "length"}]}\n\n'
        b'data: {"choices": [], "usage": {"prompt_tokens": "7", "completion_tokens": null}}\n\n'
        b"data: [DONE]\n\n"
    )
    reply = await asked(OpenAIClient(server.url, None, {}, None))
    assert (reply.ended_how, reply.prompt_tokens, reply.capped) == (EndedHow.OK, None, True)
    assert reply.output_tokens == 2  # without usage the events stand in for tokens
    assert reply.text == "x"
