"""What the OpenAI-shaped backends do beside streaming."""

from __future__ import annotations

import uuid
from dataclasses import replace

import orjson
import pytest

import backends
from router.core.errors import UpstreamError, UpstreamRejected
from router.core.interfaces import Call
from router.core.types import LoadReport
from tests.contract.backends.dialects import (
    CANDIDATE,
    answer_of,
    chat,
    complete,
    scripted,
    stream,
    streamed,
)
from tests.contract.backends.fakes import Exchange, FakeEngine


def embeddings(**fields: object) -> Call:
    return Call("embeddings", {"input": ["a", "b"], **fields}, CANDIDATE, "req-1", 5)


async def test_embeddings_pass_through() -> None:
    async def script(exchange: Exchange) -> None:
        assert exchange.path == "/v1/embeddings"
        assert exchange.json == {"input": ["a", "b"], "dimensions": 3, "model": "engine-model"}
        data = b'[{"embedding":[0.5],"index":0},{"embedding":[1.5],"index":1}]'
        await exchange.answer(200, b'{"object":"list","model":"engine-model","data":%b,"usage":{}}' % data)

    async with FakeEngine(script) as engine:
        backend = backends.create("vllm", url=engine.url + "/v1")
        answer = await complete(backend, embeddings(dimensions=3))
        await backend.aclose()
    data = [{"embedding": [0.5], "index": 0}, {"embedding": [1.5], "index": 1}]
    assert answer == {"object": "list", "model": "fleet-model", "data": data, "usage": {}}


@pytest.mark.parametrize("body", [b"", b"[]", b"oops", b'{"error":{"message":"secret"}}'])
@pytest.mark.parametrize("kind", sorted(backends.KINDS))
async def test_a_200_that_is_no_answer(kind: str, body: bytes) -> None:
    async with scripted(kind, lambda exchange: exchange.answer(200, body)) as (_, backend):
        with pytest.raises(UpstreamError) as failed:
            await complete(backend, embeddings())
        assert "secret" not in str(failed.value)
        with pytest.raises(UpstreamError):
            await stream(backend, chat()).read()


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_a_whole_answer_that_the_engine_stopped(kind: str) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "abort"}
    body = orjson.dumps({"object": "chat.completion", "choices": [choice]})
    async with scripted(kind, lambda exchange: exchange.answer(200, body)) as (_, backend):
        with pytest.raises(UpstreamError, match="stopped in the middle"):
            await complete(backend, chat())


async def test_llama_server_s_usage_of_one_of_several_choices_is_not_passed_on() -> None:
    async def script(exchange: Exchange) -> None:
        said = b'{"finish_reason":"length","index":%d,"message":{"role":"assistant","content":"a"}}'
        rest = b'"usage":{"completion_tokens":3,"prompt_tokens":25,"total_tokens":28},"timings":{"predicted_n":3}'
        choices = b",".join(said % number for number in range(exchange.json["n"]))
        await exchange.answer(200, b'{"choices":[%b],"object":"chat.completion",%b}' % (choices, rest))

    async with scripted("openai", script) as (_, backend):
        assert "usage" not in await complete(backend, chat(n=2))
        assert (await complete(backend, chat(n=1)))["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("kind", "seen"), [("vllm", "req_1a22e053%016x"), ("openai", "1a22e053%016x00000000")]
)
@pytest.mark.parametrize("trace", [None, "00-a-b-01"])
async def test_the_id_of_a_request(kind: str, seen: str, trace: str | None) -> None:
    call = chat()._replace(request_id=f"req_1a22e053{7:016x}", traceparent=trace)
    async with scripted(kind, lambda exchange: exchange.answer(200, b"{}")) as (engine, backend):
        with pytest.raises(UpstreamError):
            await complete(backend, call)
    headers = engine.requests[0].headers
    assert (headers["x-request-id"], headers.get("traceparent")) == (seen % 7, trace)
    if kind == "openai":
        uuid.UUID(headers["x-request-id"])  # as llama-cpp-python checks it


#: A stream of `transformers serve` (shortened), up to its last event.
SERVED = [
    b'data: {"id":"b","choices":[{"delta":{"role":"assistant"},"index":0}],"created":1,"model":"/tiny"}\n\n',
    b'data: {"id":"b","choices":[{"delta":{"content":"X"},"index":0}],"created":1,"model":"/tiny"}\n\n',
]
SERVED_END = (
    b'data: {"id":"b","choices":[{"delta":{},"index":0,"finish_reason":"length"}],"created":1,"model":"/tiny",'
    b'"usage":{"completion_tokens":1,"prompt_tokens":33,"total_tokens":34}}\n\n'
)


@pytest.mark.parametrize("n", [1, 2])  # it ignores `n`
async def test_a_stream_without_an_end_mark_is_complete_with_its_finish_reason(n: int) -> None:
    async with scripted("openai", lambda exchange: exchange.events(*SERVED, SERVED_END)) as (_, backend):
        text, tokens, usage, finish = answer_of(await streamed(backend, chat(n=n)))
    assert (text, tokens, finish) == ("X", 1, "length")
    assert usage == {"completion_tokens": 1, "prompt_tokens": 33, "total_tokens": 34}


@pytest.mark.parametrize(
    ("n", "events"),
    [(1, SERVED), (2, [*SERVED, SERVED_END, SERVED[1].replace(b'"index":0', b'"index":1')])],
)
async def test_a_stream_that_ends_in_the_middle_of_a_choice_has_failed(n: int, events: list[bytes]) -> None:
    async with scripted("openai", lambda exchange: exchange.events(*events)) as (_, backend):
        with pytest.raises(UpstreamError, match="without its end mark"):
            await streamed(backend, chat(n=n))


async def test_token_counts_by_the_engine() -> None:
    async def script(exchange: Exchange) -> None:
        body = exchange.json
        assert exchange.path == "/tokenize"
        assert body["model"] == "engine-model"
        count = len(body["prompt"]) if "prompt" in body else 100 * len(body["messages"]) + len(body["tools"])
        await exchange.answer(200, orjson.dumps({"count": count, "max_model_len": 5}))

    async with scripted("vllm", script) as (engine, backend):
        assert await backend.count_tokens(chat(tools=[1, 2], temperature=1)) == 102
        for prompt, expected in (("abc", 3), (["a", "bc"], 3), ([7, 8], 2), ([[1, 2], [3]], 3), (None, None)):
            call = Call("completions", {"prompt": prompt}, CANDIDATE, "r")
            assert await backend.count_tokens(call) == expected
        assert await backend.count_tokens(embeddings()) == 2
        other = backends.create("openai", url=engine.url)
        assert await other.count_tokens(chat()) is None
        await other.aclose()


async def test_an_engine_without_a_tokenizer_endpoint_is_asked_once() -> None:
    async with scripted(
        "vllm", lambda exchange: exchange.answer(404 if exchange.number else 503, b'{"detail":"Not Found"}')
    ) as (engine, backend):
        with pytest.raises(UpstreamError):
            await backend.count_tokens(chat())
        assert [await backend.count_tokens(chat()) for _ in range(3)] == [None, None, None]
    assert len(engine.requests) == 2


async def test_an_engine_without_metrics_is_left_alone_for_a_while() -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number:
            await exchange.answer(200, b"llamacpp:requests_processing 2\n")
        else:
            await exchange.answer(501, b"no metrics here")

    async with scripted("openai", script) as (engine, backend):
        reports = [await backend.load() for _ in range(32)]
    assert reports == [LoadReport()] * 31 + [LoadReport(running=2)]
    assert len(engine.requests) == 2


async def test_ollama_s_loaded_models_by_the_names_of_the_fleet() -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number == 0:
            models = [{"name": "Llama3:latest", "model": "Llama3:latest"}, {"name": "stranger:7b"}]
            await exchange.answer(200, orjson.dumps({"models": models}))
        else:
            await exchange.answer(200 if exchange.number == 1 else 500, b"oops")

    here = [replace(CANDIDATE, upstream_model=name) for name in ("llama3", "qwen:7b", "registry:5000/x")]
    async with scripted("ollama", script, candidates=here) as (_, backend):
        assert await backend.load() == LoadReport(loaded_models=frozenset({"llama3"}))
        for _ in range(2):
            with pytest.raises(UpstreamError):
                await backend.load()


async def test_ollama_s_context_and_keep_alive_are_the_same_in_every_request() -> None:
    small = replace(CANDIDATE, model="small", context_tokens=512)
    async with scripted(
        "ollama",
        lambda exchange: exchange.answer(400, b'{"error":"does not support tools"}'),
        candidates=[small, CANDIDATE],
        settings={"keep_alive": -1},
    ) as (engine, backend):
        for call in (chat(), Call("completions", {"prompt": "x"}, small, "r"), embeddings()):
            with pytest.raises(UpstreamRejected, match="does not support tools"):
                await streamed(backend, call)
    assert [seen.json["options"]["num_ctx"] for seen in engine.requests] == [4096] * 3
    assert [seen.json["keep_alive"] for seen in engine.requests] == [-1] * 3


def test_bad_settings() -> None:
    with pytest.raises(KeyError):
        backends.create("tgi", url="http://h")
    for kind in backends.KINDS:
        with pytest.raises(ValueError, match="url"):
            backends.create(kind, url="h:80")
        with pytest.raises(OSError, match="missing"):
            backends.create(kind, url="https://h", ca_file="missing.pem")


@pytest.mark.parametrize("kind", sorted(backends.KINDS))
@pytest.mark.parametrize("status", [400, 422, 500, 200])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_refusal_that_quotes_our_own_headers_shows_no_secret(
    kind: str, status: int, streams: bool
) -> None:
    """As a proxy before an engine may do; the words of a refusal go on to the client."""

    async def script(exchange: Exchange) -> None:
        quoted = " ".join(f"{name}: {value}" for name, value in exchange.headers.items())
        token = exchange.headers["authorization"].removeprefix("Bearer ")
        kind_of_error = "BadRequestError" if status != 500 else token
        error = {"message": f"not so: {quoted}", "type": kind_of_error, "param": token, "code": token}
        said = orjson.dumps({"error": error})
        if status == 200 and streams:
            said = said + b"\n" if kind == "ollama" else b"data: " + said + b"\n\n"
        await exchange.answer(status, said)

    headers = {"x-tenant": "a-token-of-ours, and-another"}
    async with scripted(kind, script, api_key="sk-0123456789", headers=headers) as (engine, backend):
        with pytest.raises(UpstreamError) as caught:
            await (streamed if streams else complete)(backend, chat())
    assert engine.requests[0].headers["authorization"] == "Bearer sk-0123456789"
    error = caught.value
    for secret in ("sk-0123456789", "a-token-of-ours", "and-another"):
        assert secret not in f"{error} {getattr(error, 'param', '')} {getattr(error, 'code', '')}"
    assert status == 500 or "application/json" in str(error)  # the rest stands


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b'{"data": [{"id": "engine-model", "max_model_len": 4096}]}', ["4096 tokens"]),
        (200, b'{"data": [{"id": "engine-model", "max_model_len": 1000000}, {"id": "b"}]}', []),
        (
            200,
            b'{"data": [{"id": "engine-model", "meta": {"n_ctx": 2048}}, {"id": "b", "meta": 0}]}',
            ["2048 tokens"],
        ),
        (200, b'{"data": [{"id": "engine-model"}, 7, {"id": 7}, {}]}', []),
        (
            200,
            b'{"data": [%s]}' % b", ".join(b'{"id": "m%d"}' % n for n in range(7)),
            ["'m0', 'm1', 'm2', 'm3', 'm4' and 2 more"],
        ),
        (200, b'{"data": []}', []),
        (200, b'{"data": 1}', []),
        (200, b"[]", []),
        (200, b"oops", []),
        (404, b"", []),
    ],
)
async def test_what_an_engine_lists_is_compared_with_the_fleet_file(
    status: int, body: bytes, told: list[str]
) -> None:
    candidate = replace(CANDIDATE, context_tokens=8192)
    async with FakeEngine(lambda exchange: exchange.answer(status, body)) as engine:
        backend = backends.create("openai", url=engine.url, candidates=[candidate])
        found = await backend.mismatches()
        await backend.aclose()
    assert len(found) == len(told)
    assert all(part in each for part, each in zip(told, found, strict=True))
