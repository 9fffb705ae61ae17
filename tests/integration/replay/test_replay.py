"""Replay over HTTP: open loop, honest times, every kind of failure a row."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from backends.emulator.text import count_tokens
from benchmarks.replay import pace
from benchmarks.replay.client import Target
from benchmarks.replay.row import Row
from benchmarks.workloads.fetch import download
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, write
from router.cli import main
from tests.commands import Headway
from tests.contract.backends.fakes import FakeEngine

from .conftest import SseServer


def request(identity: str, arrival_s: float = 0.0, **more: object) -> WorkloadRequest:
    fields = {"prompt_tokens": 20, "max_tokens": 64, "output_tokens": 4, **more}
    return WorkloadRequest(id=identity, arrival_s=arrival_s, **fields)  # type: ignore[arg-type]


async def replayed(
    requests: list[WorkloadRequest], target: Target, max_in_flight: int | None = None
) -> dict[str, Row]:
    rows: list[Row] = []
    await pace.replay(requests, target, max_in_flight=max_in_flight, on_row=rows.append)
    return {row.id: row for row in rows}


async def test_what_is_sent(server: SseServer) -> None:
    wish = request(
        "a", prompt="Hi", routing={"slo": {"ttft_ms": 1000.0}, "on_miss": "reject"}, output_tokens={"m": 3}
    )
    target = Target(server.url + "/v1/", policy="slo", api_key="secret", speed=4.0, emulate_lengths=True)
    await replayed([wish], target)
    (seen,) = server.seen
    body = seen.body
    assert seen.headers["authorization"] == "Bearer secret"
    assert seen.id == "a"
    assert count_tokens(body["messages"][0]["content"]) == 20
    assert body["messages"][0]["content"].endswith("Hi")
    assert (body["model"], body["max_tokens"], body["stream"]) == ("auto", 64, True)
    assert body["stream_options"] == {"include_usage": True}
    assert body["routing"] == {"policy": "slo", "slo": {"ttft_ms": 250.0}, "on_miss": "reject"}
    assert body["vllm_xargs"] == {"emulate_output_tokens": {"m": 3}}


async def test_a_plain_server_gets_nothing_of_ours(server: SseServer) -> None:
    await replayed([request("a")], Target(server.url))
    assert not {"routing", "vllm_xargs"}.intersection(server.seen[0].body)


async def test_a_complete_row(server: SseServer) -> None:
    server.first_token_s["slow"] = 0.2
    slo = {"ttft_ms": 100.0}
    rows = await replayed([request("a")], Target(server.url, policy="slow", slo=slo))
    row = rows["a"]
    assert (row.status, row.complete, row.error) == (200, True, None)
    assert (row.prompt_tokens, row.output_tokens, row.finish_reason) == (7, 4, "stop")
    assert row.e2e_s is not None
    assert 0.2 <= row.ttft_s < row.e2e_s
    assert row.tpot_s == pytest.approx((row.e2e_s - row.ttft_s) / 3)
    assert (row.outcome, row.gateway_outcome, row.met) == ("late", "ok", False)
    assert (row.instance, row.cost_usd, row.request_id) == ("box-slow", 0.001, "own-a")


async def test_requests_go_at_their_own_times_whatever_became_of_the_others(server: SseServer) -> None:
    server.behaviours["r0"] = "silent"
    requests = [request(f"r{index}", index * 0.05) for index in range(6)]
    rows: list[Row] = []

    def on_row(row: Row) -> None:
        rows.append(row)
        if len(rows) == 5:
            replaying.cancel()  # the silent one is dropped

    began = time.perf_counter()
    replaying = asyncio.create_task(pace.replay(requests, Target(server.url), on_row=on_row))
    async with asyncio.timeout(60):
        with suppress(asyncio.CancelledError):
            await replaying
    assert replaying.cancelled()
    assert {row.id for row in rows} == {"r1", "r2", "r3", "r4", "r5"}
    arrived = {seen.id: seen.at for seen in server.seen}
    for index in range(6):
        # Not before its time; how late is a matter of the machine.
        assert arrived[f"r{index}"] - began >= index * 0.05


async def test_speed_compresses_time_and_measures_in_the_workloads_clock(server: SseServer) -> None:
    server.first_token_s["p"] = 0.05
    requests = [request("a", 0.0), request("b", 200.0)]
    began = time.perf_counter()
    rows = await replayed(requests, Target(server.url, policy="p", speed=1000.0))
    arrived = {seen.id: seen.at for seen in server.seen}
    assert 0.2 <= arrived["b"] - began < 200.0
    assert rows["b"].ttft_s >= 50.0
    assert rows["b"].scheduled_s == 200.0
    assert rows["b"].sent_s >= 200.0


async def test_max_in_flight_holds_and_is_told_as_lag(server: SseServer) -> None:
    server.first_token_s["p"] = 0.1
    rows = await replayed([request(str(index)) for index in range(4)], Target(server.url, policy="p"), 1)
    assert server.most_in_flight == 1
    assert max(row.lag_s for row in rows.values()) >= 0.3
    # Times are from the scheduled instant, so a late send counts.
    assert max(row.ttft_s or 0.0 for row in rows.values()) >= 0.4


async def test_every_failure_is_a_row_of_its_own_kind(server: SseServer) -> None:
    kinds = {"a": "429", "b": "500", "c": "error", "d": "cut", "e": "no-done", "f": "plain", "g": "503"}
    server.behaviours.update(kinds)
    slo = {"e2e_ms": 60_000.0}
    rows = await replayed([request(name) for name in [*kinds, "ok"]], Target(server.url, slo=slo))
    outcomes = {name: row.outcome for name, row in rows.items()}
    assert outcomes == {
        "a": "rejected_slo",
        "b": "backend_error",
        "c": "backend_error",
        "d": "backend_error",
        "e": "backend_error",
        "f": "ok",
        "g": "rejected_overload",
        "ok": "ok",
    }
    assert rows["c"].error == "error event: engine lost"
    assert rows["d"].error == "connection closed before the answer ended"
    assert rows["e"].error == "the stream ended without [DONE]"
    assert rows["c"].ttft_s is not None  # it began
    assert rows["f"].ttft_s is None  # not streamed: no first token to be seen
    assert [name for name, row in rows.items() if row.met] == ["f", "ok"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (
            "text/event-stream",
            b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":-7,"completion_tokens":"3"}}\n\ndata: [DONE]\n\n',
        ),
        ("application/json", b'{"choices":[null,1],"usage":{"completion_tokens":1e9}}'),
    ],
)
async def test_counts_and_choices_that_are_none_are_unknown(kind: str, body: bytes) -> None:
    """They ended the whole replay."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with FakeEngine(lambda exchange: exchange.raw(head + body)) as engine:
        row = (await replayed([request("a")], Target(engine.url)))["a"]
    assert (row.complete, row.prompt_tokens, row.output_tokens) == (True, None, None)


async def test_a_silent_server_and_no_server(server: SseServer) -> None:
    server.behaviours["a"] = "silent"
    silent, other = await asyncio.gather(
        replayed([request("a")], Target(server.url, timeout_s=0.1)),
        replayed([request("b")], Target(server.url)),
    )
    assert silent["a"].error == "no complete answer within 0.1 s"
    assert other["b"].complete
    gone = await replayed([request("a")], Target("http://127.0.0.1:1"))
    assert (gone["a"].status, gone["a"].outcome) == (None, "backend_error")
    assert (gone["a"].error or "").startswith("connection failed")


async def test_connections_are_reused_or_not(server: SseServer) -> None:
    requests = [request(str(index), index * 0.05) for index in range(3)]
    assert all(row.complete for row in (await replayed(requests, Target(server.url))).values())
    rows = await replayed(requests, Target(server.url, new_connections=True))
    assert all(row.complete for row in rows.values())
    assert [seen.headers.get("connection") for seen in server.seen] == [None] * 3 + ["close"] * 3


async def test_an_answer_that_ends_with_its_connection_or_is_no_http() -> None:
    async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        )
        writer.write(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n')
        await writer.drain()
        writer.close()

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello\r\n\r\n")
        await writer.drain()
        writer.close()

    for handler, complete in ((until_closed, True), (nonsense, False)):
        listening = await asyncio.start_server(handler, "127.0.0.1", 0)
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            rows = await replayed([request("a")], Target(f"http://127.0.0.1:{port}"))
        assert rows["a"].complete is complete
        assert (rows["a"].error is None) is complete


def replay(*words: str) -> int:
    return main(["replay", *words])


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl"
    write(path, Header("test", seed=1), [request(f"r{index}", index * 0.01) for index in range(10)])
    return path


def test_the_command_writes_a_line_a_request(
    server: SseServer, workload: Path, tmp_path: Path, headway: Headway
) -> None:
    out = tmp_path / "results.jsonl"
    words = ("--url", server.url, "--out", str(out), "--limit", "5", "--slo", "ttft_ms=30000")
    told = headway.json("replay", workload, *words)
    assert (told["requests"], told["complete"], told["attainment"], told["finished"]) == (5, 5, 1.0, True)
    head, *rows = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    assert head["headway_results"] == 1
    assert {row["id"] for row in rows} == {f"r{index}" for index in range(5)}
    assert all(row["outcome"] == "ok" and row["itl_mean_s"] is not None for row in rows)


def test_where_nothing_answers_the_command_fails(workload: Path, headway: Headway) -> None:
    printed = headway("replay", workload, "--url", "http://127.0.0.1:1", "--limit", "3", "--json")
    assert printed.code == 1
    assert orjson.loads(printed.out)["complete"] == 0
    assert "none of 3 requests succeeded; 3 of them: " in printed.err


def test_where_all_is_refused_the_command_fails_and_says_why(
    server: SseServer, workload: Path, headway: Headway
) -> None:
    server.known_policies = frozenset({"latency"})
    words = (str(workload), "--url", server.url, "--policy")
    assert headway.err("replay", *words, "wrong", code=1) == (
        "headway replay: none of 10 requests succeeded; 10 of them: unknown policy wrong\n"
    )
    assert headway.err("replay", *words, "latency", code=0) == ""


def test_a_workload_without_requests_is_refused(tmp_path: Path, headway: Headway) -> None:
    path = tmp_path / "empty.jsonl"
    write(path, Header("test"), [])
    assert (
        headway.err("replay", path, "--url", "http://127.0.0.1:1", code=2)
        == f"headway replay: {path}: no requests in it\n"
    )


def test_interrupt_keeps_what_is_there(
    server: SseServer, workload: Path, tmp_path: Path, headway: Headway
) -> None:
    server.behaviours["r9"] = "silent"
    out = tmp_path / "results.jsonl"

    def interrupt() -> None:
        # Once nine have ended; bounded, so that a fault cannot hang the test.
        for _ in range(6000):
            if out.exists() and out.read_bytes().count(b"\n") >= 10:
                break
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    assert "interrupted" in headway.out("replay", workload, "--url", server.url, "--out", out, code=130)
    waiting.join()
    assert len(out.read_bytes().splitlines()) == 10


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("{file}", "--url", "localhost:80"), "--url localhost:80: expected http://"),
        (("{file}", "--url", "http://h:99999"), "expected http://"),
        (("{file}", "--url", "http://h", "--speed", "0"), "--speed"),
        (("{file}", "--url", "http://h", "--limit", "0"), "--limit"),
        (("{file}", "--url", "http://h", "--max-in-flight", "0"), "--max-in-flight"),
        (("{file}", "--url", "http://h", "--api-key-env", "HEADWAY_TEST_UNSET"), "that variable is not set"),
        (("{file}", "--url", "http://h", "--slo", "x=1"), "unknown target"),
        (("{file}.gone", "--url", "http://h"), "cannot read"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    workload: Path, headway: Headway, words: tuple[str, ...], reason: str
) -> None:
    told = headway.err("replay", *(word.replace("{file}", str(workload)) for word in words), code=2)
    assert reason in told
    assert told.count("\n") == 1


def test_a_download_is_kept(server: SseServer, tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    url = f"{server.url}/file.csv"
    path = download(url, environment)
    assert path.read_text().startswith("num_prefill_tokens")
    path.write_text("kept")
    assert download(url, environment).read_text() == "kept"
    with pytest.raises(WorkloadError, match="cannot download"):
        download(f"{server.url}/gone.csv", environment)
