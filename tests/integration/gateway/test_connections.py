"""Connections of clients that leave, do not read, send too much, or send what could be understood in two ways."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import socket
import weakref
from collections.abc import Coroutine
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from router.gateway.http import server as http_server
from router.gateway.relay.relay import Relay
from tests.integration.gateway.live import bearer, key, live, post, vllm
from tests.integration.gateway.staged import says, staged
from tests.metrics_page import metrics_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
#: White space is no part of a prompt, but it has to be received.
PADDING = b" " * 200 * 1024
GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def chunked(*chunks, headers=b"", path="/v1/chat/completions"):
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n%b\r\n%b" % (
        path.encode(),
        headers,
        b"".join(chunks),
    )


def statuses(answer):
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@asynccontextmanager
async def quiet(caplog):
    """No traceback, and no exception that nobody took."""
    unhandled = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    caplog.clear()
    try:
        with caplog.at_level(logging.WARNING):
            yield
            await asyncio.sleep(0.05)
    finally:
        loop.set_exception_handler(before)
    assert not unhandled
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow(tmp_path_factory):
    """An engine that takes long, so that whoever leaves does so in time."""
    async with live(
        tmp_path_factory.mktemp("slow"), vllm("a", speed=0.2), limits={"connect_timeout_s": 1.0}
    ) as gw:
        yield gw


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(tmp_path_factory):
    """A gateway that wants keys."""
    async with live(
        tmp_path_factory.mktemp("closed"),
        vllm("a"),
        auth={"admin_key_env": "ADMIN", "keys": [key("sesame")]},
        environment={"ADMIN": "secret"},
    ) as gw:
        yield gw


async def opened(gw, data=b"", *, receive_bytes=None):
    """A connection on which `data` was sent; the test reads it, or does not."""
    connection = socket.socket()
    connection.setblocking(False)
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", gw.port))
    await loop.sock_sendall(connection, data)
    return connection


async def rows_until(gw, condition):
    """The rows, once `condition` holds for them."""
    async with asyncio.timeout(10):
        while not condition(found := await gw.rows()):  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.02)
    return found


async def send_until_cut_off(client, pieces):
    """Send on; the server must end the connection before all is sent."""
    try:
        for piece in pieces:
            await asyncio.get_running_loop().sock_sendall(client, piece)
    except OSError:
        return
    finally:
        client.close()
    pytest.fail("all was taken")


# --- clients that leave ----------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "behind",
    [b"", GET, post(b" " * 70_000), post(b" " * 90_000)[:-90_000]],
    ids=["alone", "a GET behind", "a body behind", "a head behind"],
)
async def test_who_leaves_after_a_long_body_is_noticed_at_once(slow, stream, behind):
    rows = len(await slow.rows())
    app = slow.engines["a"].app
    body = json.dumps(CHAT | {"stream": stream, "max_tokens": 4000, "ignore_eos": True}).encode()
    requests = [
        post(PADDING[: size * 1024] + body).partition(b"\r\n\r\n") for size in (0, 70, 100, 120, 130, 200)
    ]
    clients = [await opened(slow, head + end) for head, end, _ in requests]
    await slow.until(lambda: slow.server_connections() >= 6)
    # The gateway waits for the bodies; how much comes at once decides what it pauses.
    await asyncio.sleep(0.05)
    for client, (_, _, sent) in zip(clients, requests, strict=True):
        await asyncio.get_running_loop().sock_sendall(client, sent + behind)
    await slow.until(lambda: len(app.live) == 6)
    for client in clients:
        client.close()
    await slow.until(lambda: not app.live, within_s=1.0)
    await slow.until(lambda: slow.gateway.runner.scheduler.live == 0)
    found = await rows_until(slow, lambda found: len(found) >= rows + 6)
    assert [row["outcome"] for row in found[rows:]] == ["client_cancelled"] * 6


@pytest.mark.parametrize("padding", [b"", PADDING], ids=["short", "long"])
async def test_who_leaves_while_the_prompt_is_counted_asks_nothing_of_an_engine(slow, monkeypatch, padding):
    app = slow.engines["a"].app
    counted = []
    monkeypatch.setitem(app._routes, ("POST", "/tokenize"), counted.append)  # it never answers
    rows = len(await slow.rows())
    body = padding + json.dumps(CHAT | {"routing": {"max_cost_usd": 1.0}}).encode()
    client = await opened(slow, post(body))
    await slow.until(lambda: counted)
    client.close()
    await slow.until(lambda: slow.server_connections() <= 1)
    assert not app.live
    monkeypatch.undo()
    found = await rows_until(slow, lambda found: len(found) > rows)
    assert found[-1]["outcome"] == "client_cancelled"
    assert found[-1]["attempts"] in (0, None)


async def test_who_leaves_the_queue_frees_its_place(tmp_path):
    async with live(tmp_path, vllm("a", speed=0.2), instance={"a": {"max_concurrency": 1}}) as gw:
        scheduler = gw.gateway.runner.scheduler
        long = json.dumps(CHAT | {"max_tokens": 4000, "ignore_eos": True}).encode()
        first = await opened(gw, post(long))
        await gw.until(lambda: len(gw.engines["a"].app.live) == 1)
        waiting = [await opened(gw, post(PADDING + long)) for _ in range(3)]
        await gw.until(lambda: scheduler.queue_depth == 3)
        for client in waiting:
            client.close()
        await gw.until(lambda: scheduler.queue_depth == 0, within_s=1.0)
        first.close()
        await gw.until(lambda: scheduler.live == 0, within_s=1.0)


async def test_who_leaves_in_mid_upload_leaves_no_body_behind(tmp_path):
    """Nothing of a request outlives its connection; the collector runs too rarely to wait for it."""
    async with live(tmp_path, vllm("a")) as gw:
        client = await opened(gw, post(PADDING)[:-1])
        await gw.until(lambda: [each for each in gw.server.server_state.connections if each.cycle])
        (connection,) = gw.server.server_state.connections
        known = weakref.ref(connection)
        del connection
        gc.disable()
        try:
            client.close()
            (row,) = await rows_until(gw, lambda found: found)
            assert (row["outcome"], row["decoded"]) == ("client_cancelled", False)
            await gw.until(lambda: known() is None)
        finally:
            gc.enable()


async def test_the_body_of_a_refused_request_is_let_go(closed):
    client = await opened(closed, post(b" " * 20_000))
    assert statuses(await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 4096), 5)) == [401]
    await closed.until(lambda: closed.server_connections() == 1)
    (connection,) = closed.server.server_state.connections
    assert connection.cycle._parts == []
    client.close()


async def test_an_open_stream_keeps_neither_its_prompt_nor_its_headers(tmp_path):
    async with live(tmp_path, vllm("a", speed=0.2)) as gw, gw.stream(ignore_eos=True) as response:
        await response.content.readany()
        (connection,) = gw.server.server_state.connections
        client = connection.cycle
        assert (client.headers, client.by_name) == ([], {})
        bodies = [each.body for each in gc.get_objects() if type(each) is Relay]
        assert [body for body in bodies if body.get("stream")] == []


async def test_who_leaves_in_the_turn_of_its_arrival_frees_its_slot(tmp_path, monkeypatch):
    """The task of a request whose body is on its way has not begun yet."""
    async with live(tmp_path, vllm("a"), auth={"keys": [key("sesame", max_concurrency=1)]}) as gw:
        received = http_server.GatewayProtocol.data_received

        def received_with_the_end(connection, data):
            received(connection, data)
            connection.eof_received()
            connection.transport.close()

        monkeypatch.setattr(http_server.GatewayProtocol, "data_received", received_with_the_end)
        client = await opened(gw, post(PADDING, b"authorization: Bearer sesame")[:150])
        (row,) = await rows_until(gw, lambda found: found)
        assert row["outcome"] == "client_cancelled"
        monkeypatch.undo()
        client.close()
        assert (await gw.chat(model="small", headers=bearer("sesame")))[0] == 200


async def test_who_leaves_when_its_count_is_there_asks_nothing_of_an_engine(tmp_path, monkeypatch):
    """It leaves between the end of what its request waits for and the step of its task."""
    async with live(tmp_path, vllm("a")) as gw:

        async def count_and_leave(*arguments):
            await asyncio.sleep(0)
            (connection,) = gw.server.server_state.connections
            connection.eof_received()

        monkeypatch.setattr(gw.gateway.tokens, "may_count", lambda request: True)
        monkeypatch.setattr(gw.gateway.tokens, "count", count_and_leave)
        client = await opened(gw, post(json.dumps(CHAT).encode()))
        (row,) = await rows_until(gw, lambda found: found)
        assert (row["outcome"], row["attempts"] or 0) == ("client_cancelled", 0)
        client.close()


async def test_a_fault_while_a_request_is_counted_frees_its_slot(tmp_path, monkeypatch):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("sesame", max_concurrency=1)]}) as gw:
        count, faults = gw.gateway.metrics.record, []

        def fault(record):
            if len(faults) < 2:
                faults.append(record.outcome)
                raise RuntimeError("broken")
            count(record)

        monkeypatch.setattr(gw.gateway.metrics, "record", fault)
        headers = b"authorization: Bearer sesame", b"connection: close"
        for body in (CHAT, CHAT | {"model": "nothing"}, CHAT):
            answer = await gw.raw(post(json.dumps(body).encode(), *headers))
        assert faults == ["ok", "rejected_invalid"]
        assert statuses(answer) == [200]


async def test_a_request_that_waits_goes_on_in_a_coroutine(slow):
    """Since Python 3.12 a task takes nothing else."""
    loop, tasks = asyncio.get_running_loop(), []

    def task(loop, work, **settings):
        tasks.append(work)
        return asyncio.Task(work, loop=loop, **settings)

    loop.set_task_factory(task)
    try:
        client = await opened(slow, post(PADDING)[:150])
        await asyncio.sleep(0.05)
        client.close()
        await slow.until(lambda: slow.server_connections() <= 1)
    finally:
        loop.set_task_factory(None)
    assert tasks
    assert all(isinstance(work, Coroutine) for work in tasks)


async def test_who_leaves_in_mid_upload_to_the_control_plane_leaves_no_traceback(closed, caplog):
    async with quiet(caplog):
        for path in ("/v1/feedback", "/v1/routing/predict", "/admin/instances"):
            secret = b"authorization: Bearer " + (b"secret" if path.startswith("/admin") else b"sesame")
            client = await opened(closed, post(b"{" + b" " * 100_000, secret, path=path)[:-50])
            await asyncio.sleep(0.05)
            client.close()
        await closed.until(lambda: closed.server_connections() <= 1)


# --- what is sent ahead ----------------------------------------------------------------------------------
async def test_a_flood_of_pipelined_requests_is_cut_off(slow, caplog):
    async with quiet(caplog):
        before = slow.server.closed["ahead"]
        clients = [await opened(slow) for _ in range(10)]
        loop = asyncio.get_running_loop()
        flood = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 9000
        await asyncio.gather(
            *(loop.sock_sendall(client, flood) for client in clients), return_exceptions=True
        )
        await slow.until(lambda: slow.server.closed["ahead"] == before + 10)
        for client in clients:
            client.close()
        await slow.until(lambda: slow.server_connections() <= 1)
        assert not slow.server.server_state.tasks


async def test_bodies_sent_ahead_are_bounded_in_bytes(slow):
    before = slow.server.closed["ahead"]
    body = json.dumps(CHAT | {"max_tokens": 4000, "ignore_eos": True}).encode()
    client = await opened(slow, post(body))
    await slow.until(lambda: slow.engines["a"].app.live)
    await send_until_cut_off(client, [post(b" " * 20_000_000)])
    assert slow.server.closed["ahead"] == before + 1
    await slow.until(lambda: not slow.engines["a"].app.live, within_s=1.0)


async def test_a_few_requests_ahead_are_answered_in_order(slow):
    answer = await slow.raw(GET * 8 + GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    assert statuses(answer) == [200] * 9


@pytest.mark.parametrize("behind", [b"}", GET.replace(b"\r\n", b"\n"), chunked(b"zz\r\n")])
async def test_requests_before_what_cannot_be_read_are_answered(slow, behind):
    answer = await slow.raw(GET + post(json.dumps(CHAT).encode()) + behind + GET)
    assert statuses(answer) == [200, 200]


async def test_a_length_in_characters_is_told_as_json_that_is_cut(slow):
    body = json.dumps(CHAT | {"user": "Zoë"}, ensure_ascii=False)
    request = post(body.encode()).replace(b": %d" % len(body.encode()), b": %d" % len(body))
    answer = await slow.raw(request)
    assert statuses(answer) == [400]
    assert b"not valid JSON" in answer


async def test_a_stream_ends_well_though_what_follows_its_request_cannot_be_read(slow):
    reader, writer = await asyncio.open_connection("127.0.0.1", slow.port)
    writer.write(post(json.dumps(CHAT | {"stream": True, "max_tokens": 20}).encode()))
    await reader.readuntil(b"data: ")
    writer.write(b"}" + GET)
    async with asyncio.timeout(60):
        answer = await reader.read()
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()


@pytest.mark.real_time  # the kernel takes its time with what a client has not read
async def test_a_stream_goes_on_that_was_asked_for_while_its_client_was_behind(tmp_path):
    """What the client had not read then was of the answer before."""
    long = says(*["x" * 200_000] * 40)
    request = post(json.dumps(CHAT | {"stream": True, "max_tokens": 4000}).encode())
    async with staged(tmp_path, long, says("One ", "two.", gap_s=1.0), engines="a") as (gw, _):
        client = await opened(gw, request, receive_bytes=65536)
        connections = gw.server.server_state.connections
        await gw.until(lambda: any(each.flow.write_paused for each in connections))
        await asyncio.get_running_loop().sock_sendall(client, request)
        await gw.until(lambda: any(each.pipeline for each in connections))
        reader, writer = await asyncio.open_connection(sock=client, limit=1 << 20)
        async with asyncio.timeout(20):
            for _ in range(2):
                while not (await reader.readline()).startswith(b"data: [DONE]"):
                    pass
        writer.close()


# --- clients that do not read ----------------------------------------------------------------------------
@asynccontextmanager
async def system_keeps(gw, send_bytes):
    """So many bytes for a client that does not read."""
    with socket.socket(fileno=socket.dup(gw.server.servers[0].sockets[0].fileno())) as listener:
        before = listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        yield
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, before)


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(json.dumps(CHAT | {"stream": True, "max_tokens": 8000, "ignore_eos": True}).encode()),
        post(json.dumps(CHAT | {"max_tokens": 8000, "ignore_eos": True}).encode()),
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=["a stream", "a whole answer", "metrics", "a route"],
)
async def test_who_does_not_read_is_cut_off(tmp_path, request_bytes):
    async with (
        live(tmp_path, vllm("a", speed=2000.0), limits={"client_stall_s": 0.5}) as gw,
        system_keeps(gw, 4096),
    ):
        client = await opened(gw, request_bytes, receive_bytes=2048)
        await gw.until(lambda: gw.server.closed["stalled"] == 1)
        await gw.until(lambda: gw.server_connections() == 0)
        await gw.until(lambda: gw.gateway.runner.scheduler.live == 0)
        assert not gw.engines["a"].app.live
        client.close()


async def test_who_reads_slowly_is_waited_for(tmp_path):
    async with (
        live(tmp_path, vllm("a", speed=2000.0), limits={"client_stall_s": 0.7}) as gw,
        system_keeps(gw, 4096),
    ):
        body = CHAT | {"stream": True, "max_tokens": 1000, "ignore_eos": True}
        client = await opened(gw, post(json.dumps(body).encode()), receive_bytes=8192)
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            data = await asyncio.get_running_loop().sock_recv(client, 16 * 1024)
            assert data, got[-200:]
            got += data
            await asyncio.sleep(0.1)
        assert b"data: [DONE]" in got
        assert not gw.server.closed["stalled"]
        client.close()


@pytest.mark.real_time  # the kernel takes its time with what a client has not read
async def test_reading_what_the_system_keeps_is_reading(tmp_path):
    long = says(*["x" * 64 * 1024] * 100)
    async with (
        staged(tmp_path, long, engines="a", limits={"client_stall_s": 0.5}) as (gw, _),
        system_keeps(gw, 2 << 20),  # and it takes more when a third of it is gone
    ):
        loop = asyncio.get_running_loop()
        client = await opened(gw, post(json.dumps(CHAT | {"stream": True}).encode()), receive_bytes=4096)
        until = loop.time() + 3
        while loop.time() < until:
            assert await loop.sock_recv(client, 64 * 1024)
            await asyncio.sleep(0.02)
        assert not gw.server.closed["stalled"]
        client.close()


# --- how many --------------------------------------------------------------------------------------------
async def test_too_many_connections_are_refused_and_idle_ones_give_way(tmp_path, monkeypatch):
    monkeypatch.setattr(http_server, "_NEW_S", 0.2)
    async with live(tmp_path, vllm("a"), server={"max_connections": 5}) as gw:
        idle = [await opened(gw) for _ in range(5)]
        await gw.until(lambda: gw.server_connections() == 5)
        assert (await gw.raw(b"")).startswith(b"HTTP/1.1 503 ")
        for _ in range(100):  # within a few seconds somebody with a request is served again
            answer = await gw.raw(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            if statuses(answer) == [200]:
                break
            await asyncio.sleep(0.05)
        assert statuses(answer) == [200]
        assert gw.server.closed["full"] >= 1
        assert gw.server.closed["crowded"] >= 1
        for client in idle:
            client.close()


async def test_a_fault_in_the_sweep_does_not_end_the_server(tmp_path, monkeypatch):
    def fault(*_, **__):
        raise RuntimeError("a fault of ours")

    async with live(tmp_path, vllm("a")) as gw:
        monkeypatch.setattr(http_server.GatewayProtocol, "sweep", fault)
        client = await opened(gw, GET)
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 15), 5)
        while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 65536), 5):
            pass  # until it is swept
        monkeypatch.undo()
        assert statuses(await gw.raw(post(json.dumps(CHAT).encode(), b"connection: close"))) == [200]
        client.close()


# --- bodies of nobody ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/chat/completions", 401),
        ("POST", "/api/chat", 401),
        ("POST", "/v1/routing/predict", 401),
        ("POST", "/v1/feedback", 401),
        ("POST", "/v1/keys", 401),
        ("POST", "/v1/nothing", 401),
        ("POST", "/api/show", 401),
        ("POST", "/admin/instances", 401),
        ("POST", "/admin/keys", 401),
        ("PATCH", "/admin/targets", 401),
        ("POST", "/admin/reload", 401),
        ("POST", "/admin/nothing", 401),
        ("POST", "/nothing", 404),
        ("POST", "/healthz", 405),
        ("POST", "/metrics", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("GET", "/healthz", 200),
    ],
)
async def test_a_body_is_not_asked_for_before_a_key(closed, method, path, status):
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n\r\n"
    )
    # Read until the connection is closed: what comes next would be ambiguous.
    answer = await closed.raw(head.encode())
    assert statuses(answer) == [status], answer[:200]


@pytest.mark.parametrize(
    "path", ["/admin/instances", "/v1/feedback", "/api/show", "/admin/nothing", "/nothing", "/ui/"]
)
async def test_a_body_that_is_too_large_is_refused_before_it_comes(closed, path):
    secret = b"secret" if path.startswith("/admin") else b"sesame"
    head = post(b"", b"authorization: Bearer " + secret, path=path).replace(
        b"content-length: 0", b"content-length: 30000000"
    )
    client = await opened(closed, head)
    answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 4096), 5)
    assert statuses(answer) == [413]
    client.close()


async def test_bodies_of_nobody_fill_no_memory(closed):
    """What is sent to /admin without its key is dropped as it comes."""
    path = "/admin/instances"
    client = await opened(
        closed, post(b"", path=path).replace(b"content-length: 0", b"content-length: 50000000")
    )
    loop = asyncio.get_running_loop()
    assert statuses(await asyncio.wait_for(loop.sock_recv(client, 4096), 5)) == [401]
    for _ in range(50):
        await loop.sock_sendall(client, b" " * 1_000_000)
    await asyncio.sleep(0.05)
    assert all(len(each.cycle.body) == 0 for each in closed.server.server_state.connections if each.cycle)
    await loop.sock_sendall(client, GET)
    assert statuses(await asyncio.wait_for(loop.sock_recv(client, 4096), 5)) == [200]
    client.close()


async def test_what_goes_on_after_its_answer_ends(closed, monkeypatch):
    monkeypatch.setattr(http_server, "MAX_DROPPED_BYTES", 1_000_000)
    client = await opened(
        closed, post(b"", path="/nothing").replace(b"content-length: 0", b"content-length: 50000000000")
    )
    await send_until_cut_off(client, [b" " * 1_000_000] * 50)


async def test_a_flood_without_a_key_leaves_few_rows_and_is_counted(tmp_path):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("sesame")]}) as gw:
        request = post(json.dumps(CHAT).encode())

        async def flood():
            reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
            for _ in range(100):
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 401 ")
                size = int(head.lower().partition(b"content-length: ")[2].split()[0])
                await reader.readexactly(size)
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*(flood() for _ in range(10)))
        assert (await gw.chat(model="small", headers=bearer("sesame")))[0] == 200
        found = await rows_until(gw, lambda found: any(row["outcome"] == "ok" for row in found))
        outcomes = [row["outcome"] for row in found]
        assert 1 <= outcomes.count("rejected_auth") <= 110
        page = metrics_text(gw.gateway).decode()
        assert 'outcome="rejected_auth",policy=""} 1000.0' in page
        counts = gw.gateway.store.counts()
        assert counts.dropped == 0


# --- what could be understood in two ways ----------------------------------------------------------------
BODY = json.dumps(CHAT).encode()
CHUNKS = (b"%x\r\n%b\r\n" % (len(BODY), BODY), b"0\r\n\r\n")
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        chunked(*CHUNKS, headers=b"content-length: 5\r\n"),
        post(BODY, b"transfer-encoding: chunked"),
        post(BODY, b"content-length: 5"),
        post(BODY, b"content-length: %d" % len(BODY)),
        post(b"abcde").replace(b": 5", b": 5, 5"),
        post(b"abcde").replace(b": 5", b": +5"),
        post(b"abcde").replace(b": 5", b" : 5"),
        post(b"abcde").replace(b": 5", b": 0x5"),
        post(b"abcde").replace(b": 5", b": 99999999999999999999999"),
        chunked(*CHUNKS).replace(b": chunked", b": gzip, chunked"),
        chunked(*CHUNKS).replace(b": chunked", b": xchunked"),
        chunked(*CHUNKS).replace(b": chunked", b": identity"),
        chunked(*CHUNKS).replace(b": chunked", b":\r\n chunked"),
        chunked(*CHUNKS, headers=b"transfer-encoding: identity\r\n"),
        chunked(*CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"),
        chunked(b"0x3\r\nabc\r\n0\r\n\r\n"),
        chunked(b"3 \r\nabc\r\n0\r\n\r\n"),
        chunked(b"-1\r\n"),
        chunked(b"fffffffffffffffff\r\n"),
        chunked(b"3\nabc\n0\n\n"),
        GET.replace(b"\r\n", b"\n"),
        GET.replace(b"host: localhost\r\n", b"host: localhost\nfoo: y\r\n"),
        GET.replace(b"host: localhost\r\n", b"host: localhost\rfoo: y\r\n"),
        GET.replace(b"host: localhost\r\n", b"host: localhost\r\nfoo: a\r\n b\r\n"),
        GET.replace(b"host: localhost\r\n", b"host: localhost\r\nfoo: a\0b\r\n"),
        GET.replace(b"host: localhost\r\n", b"host: localhost\r\nhost: localhost\r\n"),
        GET.replace(b"host: localhost\r\n", b" host: localhost\r\n"),
        GET.replace(b"HTTP/1.1", b"HTTP/2.0"),
        GET.replace(b" HTTP/1.1", b""),
        GET.replace(b"GET /healthz", b"CONNECT x:80"),
        GET.replace(b"/healthz", b"http://x:99999999/healthz"),
        GET.replace(b"/healthz", b"/\xff"),
        post(b"abcdef", b"content-length: 5"),
        post(b"").replace(b": 0", b": -5"),
        chunked(b"zz\r\n"),
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_ambiguous_is_refused_and_nothing_after_it_is_read(closed, caplog, data):
    async with quiet(caplog):
        answer = await closed.raw(data + SMUGGLED)
    assert len(statuses(answer)) <= 1, answer
    assert not statuses(answer) or statuses(answer)[0] in (400, 401, 505), answer
    assert b"smuggled" not in answer


async def test_a_trailer_is_no_header(closed):
    trailer = b"0\r\nauthorization: Bearer sesame\r\n\r\n"
    answer = await closed.raw(chunked(CHUNKS[0], trailer, headers=b"connection: close\r\n"))
    assert statuses(answer) == [401]


@pytest.mark.parametrize(
    "endless",
    [
        chunked(b"1;" + b"a" * 300_000),
        chunked(*[b"1;" + b"a" * 100 + b"\r\n \r\n"] * 3000),
        chunked(BODY and CHUNKS[0], b"0\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(20_000))),
        b"\r\n" * 200_000,
    ],
    ids=["one extension", "many extensions", "trailers", "empty lines"],
)
async def test_what_is_neither_head_nor_body_is_bounded(slow, endless):
    client = await opened(slow)
    await send_until_cut_off(client, [endless, *[endless[-1000:] * 300] * 50])


async def test_a_chunk_of_one_byte_is_no_offence(slow):
    pieces = [b"1\r\n%c\r\n" % byte for byte in PADDING[:30_000] + BODY]
    answer = await slow.raw(chunked(*pieces, b"0\r\n\r\n", headers=b"connection: close\r\n"))
    assert statuses(answer) == [200]


@pytest.mark.parametrize(
    "asked",
    [
        GET,
        post(BODY),
        chunked(*CHUNKS),
        post(
            b'{"model": "small", "messages": [{"role": "user", "content": "Hi"}]}', path="/v1/routing/predict"
        ),
    ],
    ids=["get", "length", "chunks", "not hot"],
)
@pytest.mark.parametrize("cut", [0, 60, -3 - len(SMUGGLED)], ids=["at once", "in its head", "near its end"])
async def test_an_upgrade_is_ignored_and_the_connection_ends(slow, asked, cut):
    """The header lines are those of Java's HttpClient, which asks every server for HTTP/2."""
    asks = b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\nupgrade: h2c\r\n"
    data = asked.replace(b"host: localhost\r\n", b"host: localhost\r\n" + asks, 1) + SMUGGLED
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", slow.port)
        writer.write(data[:cut])
        await asyncio.sleep(0.02)
        writer.write(data[cut:])
        answer = await reader.read()
        writer.close()
    assert statuses(answer) == [200]
    assert b"connection: close" in answer


async def test_whatever_bytes_come_leave_no_traceback(closed, caplog):
    """Valid requests with bytes changed, left out, doubled and cut into pieces."""
    dice = random.Random(7)
    seeds = [
        GET,
        post(BODY, b"authorization: Bearer sesame"),
        chunked(*CHUNKS, headers=b"authorization: Bearer sesame\r\n"),
        post(b'{"request_id": "x", "quality": 1}', b"authorization: Bearer sesame", path="/v1/feedback"),
        post(b"{}", b"authorization: Bearer secret", path="/admin/instances"),
    ]
    tokens = [
        b"\r\n", b"\n", b"\0", b":", b" ", b"chunked", b"0", b"HTTP/1.1", b"\xff", b"%00",
        b"content-length: 1\r\n",
    ]  # fmt: skip

    async def one():
        data = b"".join(dice.choices(seeds, k=dice.randint(1, 3)))
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(data))
            gone = dice.choice((0, 0, 1, 20))
            data = data[:at] + dice.choice(tokens) + data[at + gone :]
        cut = dice.randrange(len(data))
        client = await opened(closed, data[:cut])
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(0)
            await loop.sock_sendall(client, data[cut:])
            async with asyncio.timeout(0.05):
                while await loop.sock_recv(client, 65536):
                    pass
        except (OSError, TimeoutError):
            pass
        finally:
            client.close()

    async with quiet(caplog):
        for _ in range(20):
            await asyncio.gather(*(one() for _ in range(15)))
        await closed.until(lambda: closed.server_connections() <= 1)
    assert (await closed.chat(model="small", headers=bearer("sesame")))[0] == 200


async def test_a_connection_without_a_request_is_closed_in_time(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
        writer.write(GET)
        await reader.readuntil(b"}")
        for connection in gw.server.server_state.connections:
            connection.timeout_keep_alive = 0
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert gw.server.closed["idle"] == 1
        writer.close()
