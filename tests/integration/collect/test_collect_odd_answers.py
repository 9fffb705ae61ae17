"""What is no answer of the engine's format fails that request and nothing else."""

from __future__ import annotations

import pytest

from benchmarks.collect.clients import OllamaClient, OpenAIClient, Reply
from router.core.types import Candidate, EndedHow
from tests.contract.backends.fakes import FakeEngine

CANDIDATE = Candidate("a", "m", "m")


DEEP = b"[" * 99_999


async def asked(kind: type[OpenAIClient | OllamaClient], body: bytes) -> Reply:
    """What a client makes of this answer."""
    reply = Reply()
    async with FakeEngine(lambda exchange: exchange.events(body)) as engine:
        client = kind(engine.url, None, {}, None)
        await client.ask(CANDIDATE, "hi", 3, reply, None)
        await client.aclose()
    return reply


ODD = {
    OpenAIClient: [
        b"",
        b"<html>no</html>",
        b"\xff\xfe\n\n",
        b"data: garbage\n\n",
        b"data: null\n\n",
        b"data: []\n\n",
        b"data: " + DEEP + b"\n\n",
        b"data: {}\n\n",
        b'data: {"choices": 3}\n\n',
        b'data: {"choices": [null]}\n\n',
        b'data: {"choices": [{"delta": {"content": "cut"}}]}\n\n',
        b'data: {"error": {"message": "lost", "code": 500}}\n\n',
    ],
    OllamaClient: [
        b"",
        b"\xff\n",
        b"garbage\n",
        b"null\n",
        b"[]\n",
        DEEP + b"\n",
        b"{}\n",
        b'{"message": 3}\n',
        b'{"error": "lost"}\n',
    ],
}


@pytest.mark.parametrize(("kind", "body"), [(kind, body) for kind, bodies in ODD.items() for body in bodies])
async def test_an_odd_answer_is_a_failure(kind: type[OpenAIClient | OllamaClient], body: bytes) -> None:
    reply = await asked(kind, body)
    assert reply.ended_how is EndedHow.FAILED
    assert reply.error
    assert reply.ended_at is not None


@pytest.mark.parametrize("kind", [OpenAIClient, OllamaClient])
async def test_an_error_that_repeats_secrets_is_kept_without_them(
    kind: type[OpenAIClient | OllamaClient],
) -> None:
    said = b'{"error": {"message": "wrong: sk-0123456789, token-of-ours"}}'
    reply = Reply()
    async with FakeEngine(lambda exchange: exchange.answer(401, said)) as engine:
        client = kind(engine.url, "sk-0123456789", {"x-token": "token-of-ours"}, None)
        await client.ask(CANDIDATE, "hi", 3, reply, None)
        await client.aclose()
    assert reply.error is not None
    assert "wrong: ***, ***" in reply.error


@pytest.mark.parametrize("count", [b'"7"', b"-7", b"1.5", b"1" + b"0" * 30])
async def test_counts_that_are_none_are_not_taken(count: bytes) -> None:
    """A count that no request has would make the whole data set unreadable."""
    body = (
        b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
        b'data: {"choices": [{"delta": {"reasoning": "y"}, "finish_reason": "length"}]}\n\n'
        b'data: {"choices": [], "usage": {"prompt_tokens": %b, "completion_tokens": %b}}\n\n'
        b"data: [DONE]\n\n"
    )
    reply = await asked(OpenAIClient, body % (count, count))
    assert (reply.ended_how, reply.prompt_tokens, reply.capped) == (EndedHow.OK, None, True)
    assert reply.output_tokens == 2  # without usage the events stand in for tokens
    assert reply.text == "x"
