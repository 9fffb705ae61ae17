"""What every backend makes of engines that go wrong, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from router.core.errors import UpstreamError, UpstreamRejected, UpstreamTimeout
from tests.contract.backends.dialects import (
    Dialect,
    Reader,
    answer_of,
    chat,
    complete,
    read_all,
    stream,
    streamed,
)
from tests.contract.backends.fakes import Exchange, FakeEngine

USAGE_OF_2 = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


async def texts_then_error(reader: Reader) -> tuple[list[int], UpstreamError]:
    """Token counts of the batches before the stream failed, and the failure."""
    counts: list[int] = []
    try:
        while (batch := await reader.read()) is not None:
            counts.append(batch.tokens)
    except UpstreamError as error:
        return counts, error
    pytest.fail("the stream ended as if it were whole")


async def test_an_answer_and_the_next_on_the_same_connection(dialect: Dialect) -> None:
    async with dialect.over(
        lambda exchange: exchange.events(dialect.text("a"), dialect.text('b"\n'), dialect.end(2)),
        api_key="operator-key",
        headers={"X-Extra": "1"},
    ) as (engine, backend):
        for _ in range(3):
            reader = stream(backend, chat())
            batches = await read_all(reader)
            assert answer_of(batches) == ('ab"\n', 2, USAGE_OF_2, "stop")
            assert await reader.read() is None
            reader.abort()  # after the end: must not touch the connection, which may be in use again
    assert engine.connections == 1
    seen = engine.requests[0]
    assert seen.path == dialect.chat_path
    assert seen.headers["authorization"] == "Bearer operator-key"
    assert seen.headers["x-request-id"].startswith("req-1")
    assert seen.headers["x-extra"] == "1"
    assert (seen.json["model"], seen.json["stream"]) == ("engine-model", True)


async def test_everything_in_one_packet(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        body = dialect.text("a") + dialect.text("b") + dialect.end(2)
        await exchange.raw(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    async with dialect.over(script) as (_, backend):
        batches = await streamed(backend, chat())
    assert answer_of(batches) == ("ab", 2, USAGE_OF_2, "stop")


async def test_byte_by_byte(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        body = dialect.text("é") + dialect.text("b") + dialect.end(2)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        whole = head + b"%x\r\n%b\r\n%x;x=y\r\n%b\r\n0\r\n\r\n" % (20, body[:20], len(body) - 20, body[20:])
        for i in range(len(whole)):
            await exchange.raw(whole[i : i + 1])
            await asyncio.sleep(0)

    async with dialect.over(script) as (engine, backend):
        assert answer_of(await streamed(backend, chat())) == ("éb", 2, USAGE_OF_2, "stop")
        await asyncio.sleep(0.05)  # the end of the body follows the end mark
        assert answer_of(await streamed(backend, chat()))[0] == "éb"
    assert engine.connections == 1


async def test_a_body_that_ends_with_the_connection(dialect: Dialect) -> None:
    body = dialect.text("a") + dialect.text("b") + dialect.end(2)

    async def script(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        exchange.close()

    async with dialect.over(script) as (engine, backend):
        for _ in range(2):
            assert answer_of(await streamed(backend, chat()))[0] == "ab"
    assert engine.connections == 2


@pytest.mark.parametrize("line_end", [b"", b"\n"])
@pytest.mark.parametrize("piece", [1, 1000])
async def test_an_end_mark_without_its_line_end(dialect: Dialect, line_end: bytes, piece: int) -> None:
    body = dialect.text("a") + dialect.text("b") + dialect.end(2).rstrip(b"\n") + line_end

    async def script(exchange: Exchange) -> None:
        await exchange.events(*[body[at : at + piece] for at in range(0, len(body), piece)])

    async with dialect.over(script) as (engine, backend):
        for _ in range(2):
            assert answer_of(await streamed(backend, chat())) == ("ab", 2, USAGE_OF_2, "stop")
    assert engine.connections == 1


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_a_failed_attempt_by_status(dialect: Dialect, status: int) -> None:
    async with dialect.over(
        lambda exchange: exchange.answer(status, dialect.error_body("secret", status))
    ) as (engine, backend):
        for call in (streamed, complete):
            with pytest.raises(UpstreamError) as failed:
                await call(backend, chat())
            assert failed.value.status == status
            assert not isinstance(failed.value, UpstreamRejected)
            assert "secret" not in str(failed.value)
    assert engine.connections == 1  # an error answer leaves the connection usable


@pytest.mark.parametrize("status", [400, 422])
async def test_a_refused_request(dialect: Dialect, status: int) -> None:
    async with dialect.over(
        lambda exchange: exchange.answer(
            status, dialect.error_body("This model's maximum context length is 9", status)
        )
    ) as (_, backend):
        with pytest.raises(UpstreamRejected) as refused:
            await streamed(backend, chat())
    assert (refused.value.status, refused.value.code) == (status, "context_length_exceeded")
    assert str(refused.value) == "This model's maximum context length is 9"


@pytest.mark.parametrize(
    "body", [b"", b"<html>404</html>", b'{"detail":"Not Found"}', b"[1]", b'{"error":null}']
)
async def test_odd_error_bodies(dialect: Dialect, body: bytes) -> None:
    async with dialect.over(lambda exchange: exchange.answer(400 + exchange.number, body, "text/plain")) as (
        _,
        backend,
    ):
        with pytest.raises(UpstreamRejected):
            await streamed(backend, chat())
        with pytest.raises(UpstreamError) as failed:
            await streamed(backend, chat())
    assert failed.value.status == 401


async def test_an_error_in_a_200_stream(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        tokens = [dialect.text("a")] if exchange.number else []
        await exchange.events(*tokens, dialect.error_event())

    async with dialect.over(script) as (_, backend):
        for expected in ([], [1]):
            reader = stream(backend, chat())
            counts, error = await texts_then_error(reader)
            assert counts == expected
            assert "secret" not in str(error)
            with pytest.raises(UpstreamError):  # it stays failed
                await reader.read()


@pytest.mark.parametrize("how", ["clean", "cut", "mid_event", "bad_chunk"])
async def test_a_stream_without_its_end_mark(dialect: Dialect, how: str) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.begin(dialect.text("a"))
        if how == "mid_event":
            await exchange.chunk(dialect.text("b")[:-5])
        if how == "bad_chunk":
            await exchange.raw(b"zz\r\n" + dialect.text("b"))
        elif how == "cut":
            exchange.close()
        else:
            await exchange.end()

    async with dialect.over(script) as (_, backend):
        counts, error = await texts_then_error(stream(backend, chat()))
    assert counts == [1]
    assert not isinstance(error, UpstreamTimeout)


async def test_silence_after_the_first_token_is_a_timeout(dialect: Dialect) -> None:
    async with dialect.over(lambda exchange: exchange.hang(dialect.text("a")), idle_timeout_s=0.2) as (
        engine,
        backend,
    ):
        counts, error = await texts_then_error(stream(backend, chat()))
        assert counts == [1]
        assert isinstance(error, UpstreamTimeout)
        await asyncio.wait_for(engine.disconnects.wait(), 5)


async def test_a_long_wait_for_the_first_token_is_not_silence(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.begin(dialect.nothing)
        await asyncio.sleep(0.4)
        await exchange.chunk(dialect.text("a") + dialect.end(1))
        await exchange.end()

    async with dialect.over(script, idle_timeout_s=0.1) as (_, backend):
        assert answer_of(await streamed(backend, chat()))[0] == "a"


async def test_a_slow_reader_is_not_the_engine_s_silence(dialect: Dialect) -> None:
    async with dialect.over(
        lambda exchange: exchange.events(dialect.text("a"), dialect.text("b"), dialect.end(2)),
        idle_timeout_s=0.1,
    ) as (_, backend):
        reader = stream(backend, chat())
        batches = [await reader.read()]
        await asyncio.sleep(0.4)
        batches += await read_all(reader)
        assert answer_of([batch for batch in batches if batch])[0] == "ab"


async def test_a_connection_closed_just_when_it_is_reused(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number == 1:
            exchange.drop()  # the engine's keep-alive ran out under the second request
            return
        await exchange.events(dialect.text("a"), dialect.end(1))

    async with dialect.over(script) as (engine, backend):
        for _ in range(2):
            assert answer_of(await streamed(backend, chat()))[0] == "a"
    assert [seen.number for seen in engine.requests] == [0, 1, 2]
    assert engine.connections == 2


async def test_a_fresh_connection_that_dies_is_not_tried_again(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        exchange.drop()

    async with dialect.over(script) as (engine, backend):
        with pytest.raises(UpstreamError):
            await streamed(backend, chat())
    assert len(engine.requests) == 1


@pytest.mark.parametrize("when", ["in its answer", "after long work"])
async def test_a_reused_connection_that_dies_later_is_not_tried_again(dialect: Dialect, when: str) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number == 1:
            if when == "in its answer":
                await exchange.raw(b"HTTP/1.1 200")
            else:
                await asyncio.sleep(5.0)
            exchange.close()
            return
        await exchange.events(dialect.text("a"), dialect.end(1))

    async with dialect.over(script) as (engine, backend):
        await streamed(backend, chat())
        with pytest.raises(UpstreamError):
            await streamed(backend, chat())
    assert len(engine.requests) == 2


async def test_a_connection_closed_while_idle_is_replaced(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.events(dialect.text("a"), dialect.end(1))
        if exchange.number == 0:
            exchange.close()

    async with dialect.over(script) as (engine, backend):
        await streamed(backend, chat())
        await asyncio.sleep(0.05)
        assert answer_of(await streamed(backend, chat()))[0] == "a"
    assert len(engine.requests) == 2


async def test_abort_while_another_task_reads(dialect: Dialect) -> None:
    async with dialect.over(lambda exchange: exchange.hang(dialect.text("a"))) as (engine, backend):
        reader = stream(backend, chat())
        assert await reader.read() is not None
        reading = asyncio.create_task(reader.read())
        await asyncio.sleep(0.01)
        reader.abort()
        with pytest.raises(UpstreamError):
            await reading
        with pytest.raises(UpstreamError):
            await reader.read()
        reader.abort()
        await asyncio.wait_for(engine.disconnects.wait(), 5)


@pytest.mark.parametrize("after_head", [False, True])
async def test_cancelling_the_caller_stops_the_engine(dialect: Dialect, after_head: bool) -> None:
    async def script(exchange: Exchange) -> None:
        if after_head:
            await exchange.head()
        await asyncio.sleep(30)

    async with dialect.over(script) as (engine, backend):
        task = asyncio.create_task(streamed(backend, chat()))
        await engine.asked.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(engine.disconnects.wait(), 5)


async def test_an_unread_stream_holds_the_engine_back(dialect: Dialect) -> None:
    written = 0
    piece = dialect.text("x" * 60_000)
    pieces = 300

    async def script(exchange: Exchange) -> None:
        nonlocal written
        await exchange.begin(dialect.text("a"))
        for _ in range(pieces):
            await exchange.chunk(piece)
            written += 1
        await exchange.chunk(dialect.end(1))
        await exchange.end()

    async with dialect.over(script) as (_, backend):
        reader = stream(backend, chat())
        await asyncio.sleep(0.3)
        assert written < pieces * 0.8
        assert sum(batch.tokens for batch in await read_all(reader)) == pieces + 1


async def test_a_giant_event_and_a_giant_head_fail(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        with suppress(ConnectionError):
            if exchange.number == 0:
                await exchange.begin(dialect.text("x" * 9_000_000))
            elif exchange.number == 1:
                await exchange.raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000)
            else:
                await exchange.raw(b"HTTP/1.1 200 OK\r\n" + b"x: 1234567890\r\n" * 20_000 + b"\r\n")
            await asyncio.sleep(30)

    async with dialect.over(script) as (_, backend):
        for _ in range(3):
            with pytest.raises(UpstreamError, match="too large"):
                await streamed(backend, chat())


async def test_an_answer_that_is_not_http(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.raw(b"SSH-2.0-OpenSSH\r\n")
        await asyncio.sleep(30)

    async with dialect.over(script) as (_, backend):
        with pytest.raises(UpstreamError, match="not valid HTTP"):
            await streamed(backend, chat())


async def test_an_interim_answer_is_skipped(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 100 Continue\r\n\r\n")
        await exchange.events(dialect.text("a"), dialect.end(1))

    async with dialect.over(script) as (_, backend):
        assert answer_of(await streamed(backend, chat()))[0] == "a"


async def test_nobody_listens(dialect: Dialect) -> None:
    async with FakeEngine(lambda exchange: exchange.end()) as engine:
        url = engine.url
    backend = dialect.create(url)
    with pytest.raises(UpstreamError, match="cannot connect"):
        await streamed(backend, chat())
    with pytest.raises(UpstreamError, match="cannot connect"):
        await backend.probe()
    with pytest.raises(UpstreamError):
        await backend.load()
    await backend.aclose()


async def test_a_handshake_that_never_ends_is_a_timeout(dialect: Dialect) -> None:
    async with FakeEngine(lambda exchange: asyncio.sleep(30)) as engine:  # plain TCP, so TLS gets no answer
        backend = dialect.create(engine.url.replace("http:", "https:"), connect_timeout_s=0.1)
        with pytest.raises(UpstreamTimeout):
            await streamed(backend, chat())
        await backend.aclose()


async def test_over_tls(dialect: Dialect, tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.path == dialect.health_path:
            await exchange.answer(200, b"{}")
        else:
            await exchange.events(dialect.text("a"), dialect.text("b"), dialect.end(2))

    authority, stranger = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    for name, ca in (("ours", authority), ("other", stranger)):
        ca.cert_pem.write_to_path(str(tmp_path / name))
    async with dialect.over(script, tls=context, ca_file=str(tmp_path / "ours")) as (engine, backend):
        for _ in range(2):
            assert answer_of(await streamed(backend, chat()))[0] == "ab"
        assert await backend.probe()
        stray = dialect.create(engine.url, ca_file=str(tmp_path / "other"))
        with pytest.raises(UpstreamError, match="cannot connect"):
            await streamed(stray, chat())
        with pytest.raises(UpstreamError, match="unable to get local issuer certificate"):
            await stray.probe()
        authority.cert_pem.write_to_path(str(tmp_path / "other"))
        with contextlib.suppress(UpstreamError):
            await stray.probe()  # the file is read again after a failure
        assert await stray.probe()
        assert answer_of(await streamed(stray, chat()))[0] == "ab"
        await stray.aclose()


async def test_the_health_check(dialect: Dialect) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number == 2:
            await asyncio.sleep(30)
        good = exchange.path == dialect.health_path and exchange.number == 0
        await exchange.answer(200 if good else 503, b"{}")

    async with dialect.over(script, control_timeout_s=0.3) as (_, backend):
        assert await backend.probe()
        with pytest.raises(UpstreamError, match="the engine answers 503 to /"):
            await backend.probe()
        with pytest.raises(UpstreamError, match="in time"):
            await backend.probe()
