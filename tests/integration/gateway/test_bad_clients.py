"""Clients that send nonsense, too much, too slowly, or in unusual ways of HTTP."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
import pytest_asyncio

from router.gateway.http import server as http_server
from tests.integration.gateway.live import live, post, vllm

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = json.dumps(
    {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
).encode()
CLOSE = b"connection: close"


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _still_well(shared):
    """Whatever a client did, the next request is answered."""
    yield
    assert (await shared.chat(model="small"))[0] == 200
    await shared.until(lambda: shared.gateway.runner.scheduler.live == 0)
    assert all(instance.in_flight == 0 for instance in shared.instances.values())


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"small","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"small","messages":[{"role":"user","content":'
        + b'{"a":' * 50_000
        + b"1"
        + b"}" * 50_000
        + b"}]}",
        b'{"model":"small","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"small","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"model":"small","messages":[{"role":"user","content":"x"}],"max_tokens":1e999}',
        b'{"model":"sm\\u0000all","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"\\ud83d","messages":[{"role":"user","content":"x"}]}',
        b'{"model":{},"messages":{}}',
        b'{"model":"small","messages":[{"role":"user","content":[{"type":"text","text":7}]}],"tools":[7]}',
        b'{"model":"small","messages":[{"role":"user","content":"x","tool_calls":{}}],"tools":{}}',
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/routing/predict"])
async def test_nonsense_is_never_a_500(shared, body, path):
    answer = await shared.raw(post(body, CLOSE, path=path))
    head, _, told = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert status in (200, 400, 404), answer[:300]
    if status != 200:
        error = json.loads(told)["error"]
        assert isinstance(error, str if path.startswith("/api") else dict)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": None}),
        ("/v1/completions", {"prompt": [[]]}),
        ("/v1/embeddings", {"input": None}),
        ("/api/chat", {"messages": [{"role": 7, "content": "x"}]}),
        ("/api/generate", {"prompt": 7}),
        ("/api/embed", {"input": 7}),
        ("/api/embeddings", {"prompt": []}),
    ],
)
async def test_wrong_types_are_400s(shared, path, body):
    status, answer = await shared.post(path, {"model": "small"} | body)
    assert status == 400, answer
    assert isinstance(answer["error"], str if path.startswith("/api") else dict)


async def test_headers_too_large_and_too_many(shared):
    big = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-big: " + b"y" * 100_000 + b"\r\n\r\n"
    many = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x-more: 1\r\n" * 300 + b"\r\n"
    endless = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-big: " + b"y" * 200_000
    long_path = b"GET /" + b"y" * 200_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for data in (big, many, endless, long_path):
        answer = await shared.raw(data)
        # A reset may take the answer with it when the client was still sending.
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 "), answer[:100]
    assert (await shared.raw(many)).startswith(b"HTTP/1.1 431 ")


async def test_a_byte_a_second_client_gets_a_408_and_others_are_served(shared, monkeypatch):
    monkeypatch.setattr(http_server, "SLOW_AFTER_S", 0.3)

    async def drip(data, then):
        reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
        try:
            writer.write(data)
            for _ in range(100):
                writer.write(then)
                try:
                    async with asyncio.timeout(0.1):
                        return await reader.read(4096)
                except TimeoutError:
                    continue
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    slow_head = asyncio.create_task(drip(b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: ", b"y"))
    slow_body = asyncio.create_task(
        drip(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n", b" ")
    )
    slow_chunks = asyncio.create_task(
        drip(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
            b"1\r\n \r\n",
        )
    )
    for _ in range(3):
        assert (await shared.chat(model="small"))[0] == 200
    for answer in (await slow_head, await slow_body, await slow_chunks):
        assert answer.startswith(b"HTTP/1.1 408 "), answer


async def test_a_stream_that_takes_long_is_no_slow_client(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(http_server, "SLOW_AFTER_S", 0.2)
    async with (
        live(tmp_path_factory.mktemp("long"), vllm("a", speed=1.0)) as gw,
        gw.stream(model="small", max_tokens=150, ignore_eos=True) as response,
    ):
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_pipelined_requests_are_answered_in_order(shared):
    data = post(CHAT) + post(CHAT.replace(b"small", b"gpt-9")) + post(CHAT, CLOSE)
    answer = await shared.raw(data)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


async def test_http_1_0(shared):
    answer = await shared.raw(post(CHAT, version="1.0"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert json.loads(body)["usage"]["completion_tokens"] == 3
    assert (await shared.raw(b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_http_1_0_streaming(shared):
    body = json.dumps(json.loads(CHAT) | {"stream": True}).encode()
    answer = await shared.raw(post(body, version="1.0"))
    head, _, data = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert data.startswith(b"data: {")
    assert data.endswith(b"data: [DONE]\n\n")


async def test_head(shared):
    for path in (
        *("/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/ui/", "/ui/about.json"),
        *("/api/tags", "/api/ps", "/api/version", "/v1/models", "/v1/models/small", "/admin/fleet"),
    ):
        request = b"%b " + path.encode() + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        head, _, body = (await shared.raw(request % b"HEAD")).partition(b"\r\n\r\n")
        assert (head[:13], body) == (b"HTTP/1.1 200 ", b""), path
        got, _, _ = (await shared.raw(request % b"GET")).partition(b"\r\n\r\n")
        assert re.findall(rb"(?m)^[\w-]+:", head) == re.findall(rb"(?m)^[\w-]+:", got), path
    answer = await shared.raw(
        b"HEAD /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    assert answer.split()[1] in (b"404", b"405")
    assert answer.endswith(b"\r\n\r\n")


async def test_other_methods_and_paths(shared):
    for method in ("GET", "PUT", "DELETE"):
        async with shared.http.request(method, f"{shared.url}/v1/chat/completions") as response:
            assert response.status in (404, 405)
            assert (await response.json())["error"]["code"] in ("not_found", "method_not_allowed")
    for path in ("/v1/messages", "/api/nothing"):
        status, answer = await shared.post(path, {})
        told = answer["error"] if path.startswith("/api") else answer["error"]["message"]
        assert (status, told) == (404, "There is no such path: /openapi.json lists all that there are.")
    assert "/v1/chat/completions" in (await shared.get("/openapi.json"))[1]["paths"]
    assert (await shared.get("/v1/completions"))[1]["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
async def test_bad_framing_is_told_in_the_form_of_the_api(shared, path):
    many = b"POST %b HTTP/1.1\r\nhost: localhost\r\n%b\r\n" % (path.encode(), b"x-more: 1\r\n" * 300)
    head, _, body = (await shared.raw(many)).partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert head.startswith(b"HTTP/1.1 431 ")
    if path.startswith("/api/"):
        assert error == "The request has too many headers."
    else:
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/routing/predict"])
async def test_a_length_of_thousands_of_zeros_is_a_length(shared, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(CHAT):05000}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + CHAT[:-1])
    await asyncio.sleep(0.05)  # it is looked at before its body is here
    writer.write(CHAT[-1:])
    async with asyncio.timeout(10):
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_expect_100_continue(shared):
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
    try:
        head, body = post(CHAT, b"expect: 100-continue", CLOSE).split(b"\r\n\r\n", 1)
        writer.write(head + b"\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")
            writer.write(body)
            assert b"HTTP/1.1 200 OK" in await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_chunked_request_and_a_body_with_a_bom(shared):
    async def pieces():
        for at in range(0, len(CHAT), 7):
            yield CHAT[at : at + 7]

    async with shared.http.post(f"{shared.url}/v1/chat/completions", data=pieces()) as response:
        assert response.status == 200
    async with shared.http.post(f"{shared.url}/v1/chat/completions", data=b"\xef\xbb\xbf" + CHAT) as response:
        assert response.status == 400


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 5000, "1e400", "Infinity", "-Infinity", "NaN"])
async def test_numbers_that_json_does_not_have_are_refused_in_a_sentence(shared, number):
    """Whoever parses the body: ours, orjson; of the control plane, FastAPI."""
    for path, field in (
        ("/v1/chat/completions", b"max_tokens"),
        ("/v1/responses", b"temperature"),
        ("/api/chat", b"options"),
        ("/v1/routing/predict", b"routing"),
        ("/v1/feedback", b"quality"),
    ):
        body = CHAT.rstrip()[:-1] + b', "%b": %b}' % (field, number.encode())
        if field == b"quality":
            body = b'{"request_id": "req_1", "quality": %b}' % number.encode()
        async with shared.http.post(
            shared.url + path, data=body, headers={"content-type": "application/json"}
        ) as response:
            error = (await response.json())["error"]
            message = error if isinstance(error, str) else error["message"]
            assert (response.status, message.count(".") <= 2) == (400, True), (path, message)
            if path != "/v1/feedback":
                assert "too large" in message or "not valid JSON" in message, (path, message)
            elif len(number) > 4300:
                assert "too large" in message


async def test_bodies_of_the_control_plane_are_bounded_too(tmp_path_factory):
    async with live(tmp_path_factory.mktemp("small"), vllm("a"), limits={"max_body_mb": 0.5}) as gw:

        async def pieces():
            yield b'{"model": "'
            for _ in range(20):
                yield b"x" * 65536

        for path in ("/v1/routing/predict", "/v1/feedback", "/api/show", "/admin/instances"):
            async with gw.http.post(gw.url + path, data=pieces()) as response:
                assert response.status == 413, path
                error = (await response.json())["error"]
                assert isinstance(error, str) or error["code"] == "request_too_large"


async def test_many_clients_leave_at_any_moment(tmp_path_factory):
    async with live(tmp_path_factory.mktemp("leaving"), vllm("a"), vllm("b")) as gw:
        for delay_s in (0.0, 0.001, 0.005, 0.01, 0.02, 0.05):
            for stream in (False, True):
                body = json.loads(CHAT) | {"stream": stream, "max_tokens": 100, "ignore_eos": True}
                request = asyncio.create_task(gw.http.post(f"{gw.url}/v1/chat/completions", json=body))
                await asyncio.sleep(delay_s)
                request.cancel()
                for found in await asyncio.gather(request, return_exceptions=True):
                    if not isinstance(found, BaseException):
                        found.close()
        await gw.until(lambda: gw.gateway.runner.scheduler.live == 0)
        assert all(instance.in_flight == 0 for instance in gw.instances.values())
        await gw.until(lambda: not any(engine.app.live for engine in gw.engines.values()))
        assert {row["outcome"] for row in await gw.rows()} <= {"ok", "client_cancelled"}
