"""The demo's fleet, and `--once` against a small server that answers as the gateway does."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from policies import POLICIES
from router import demo
from router.config import FleetConfig
from router.demo import ask_each, table


class Gateway:
    """Answers each request and records a row for it, which shows up at the second look. `cut`: answers end too early."""

    def __init__(
        self, *, status: int = 200, message: str = "no", outcome: str = "ok", cut: bool = False
    ) -> None:
        self.message = message
        self.status = status
        self.outcome = outcome
        self.cut = cut
        self.asked: list[str] = []
        self.looks: dict[str, int] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/routing/{id}", self.look)
        return app

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        policy = body["routing"]["policy"]
        self.asked.append(policy)
        if self.status != 200:
            return web.json_response({"error": {"message": self.message}}, status=self.status)
        headers = {"x-request-id": f"id-{policy}"}
        if self.cut:
            response = web.StreamResponse(headers=headers | {"content-length": "100"})
            response.force_close()
            await response.prepare(request)
            await response.write(b"{")
            return response
        return web.json_response({"choices": [{"message": {"content": "word"}}]}, headers=headers)

    async def look(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        self.looks[name] = self.looks.get(name, 0) + 1
        if self.looks[name] < 2:
            return web.json_response({"error": {"message": "not yet"}}, status=404)
        row = {
            "id": name,
            "model": "llama",
            "instance": "h100-0",
            "outcome": self.outcome,
            "prompt_tokens": 12,
            "output_tokens": 24,
            "ttft_s": 0.0125,
            "e2e_s": 0.5,
            "cost_usd": 0.000123,
        }
        return web.json_response(row)


@pytest.fixture
async def start() -> AsyncIterator[Callable[[Gateway], object]]:
    servers: list[TestServer] = []

    async def begin(gateway: Gateway) -> str:
        server = TestServer(gateway.app())
        await server.start_server()
        servers.append(server)
        return str(server.make_url("")).rstrip("/")

    yield begin
    for server in servers:
        await server.close()


async def test_each_policy_is_asked_and_its_row_is_waited_for(start: Callable[[Gateway], object]) -> None:
    gateway = Gateway()
    answers = await ask_each(await start(gateway), ["price", "latency"])
    assert gateway.asked == ["price", "latency"]
    assert gateway.looks == {"id-price": 2, "id-latency": 2}
    assert [answer.error for answer in answers] == [None, None]
    assert answers[0].row["outcome"] == "ok"


@pytest.mark.parametrize(
    ("gateway", "error"),
    [
        (Gateway(status=503), "HTTP 503"),
        (Gateway(cut=True), "ClientPayloadError"),
        (Gateway(outcome="backend_error"), "outcome backend_error"),
    ],
)
async def test_a_failure_is_told(start: Callable[[Gateway], object], gateway: Gateway, error: str) -> None:
    answers = await ask_each(await start(gateway), ["price"])
    assert error in (answers[0].error or "")


async def test_a_gateway_that_has_stopped_gives_no_answers(start: Callable[[Gateway], object]) -> None:
    assert await ask_each("http://127.0.0.1:1", ["price"]) == []
    gateway = Gateway(status=503, message="The gateway is shutting down.")
    assert await ask_each(await start(gateway), ["price", "latency"]) == []
    assert gateway.asked == ["price"]


def serve_like(gateway: Gateway, exit_code: int = 0) -> demo.Serve:
    """Serve the small server in the main thread until SIGINT, as the gateway does."""

    async def until_interrupted(on_ready: Callable[[str], None]) -> None:
        interrupted = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
        async with TestServer(gateway.app()) as server:
            on_ready(str(server.make_url("")).rstrip("/"))
            await asyncio.wait_for(interrupted.wait(), 60)

    def serve(config: FleetConfig, *, on_ready: Callable[[str], None]) -> int:
        asyncio.run(until_interrupted(on_ready))
        return exit_code

    return serve


def test_once_asks_every_policy_prints_the_rows_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    gateway = Gateway()
    assert demo.serve_and_ask(demo.fleet(port=0), serve_like(gateway)) == 0
    assert gateway.asked == sorted(POLICIES)
    printed = capsys.readouterr().out
    for policy in POLICIES:
        assert policy in printed
    assert "12" in printed
    assert "123.00" in printed


@pytest.mark.parametrize(("gateway", "code"), [(Gateway(status=500), 0), (Gateway(), 3)])
def test_once_does_not_end_with_0_if_anything_failed(gateway: Gateway, code: int) -> None:
    assert demo.serve_and_ask(demo.fleet(port=0), serve_like(gateway, code)) == (code or 1)


def test_once_that_is_interrupted_ends_as_every_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    gateway = Gateway(status=503, message="The gateway is shutting down.")
    with pytest.raises(KeyboardInterrupt):
        demo.serve_and_ask(demo.fleet(port=0), serve_like(gateway))
    assert capsys.readouterr().out == ""


def test_next_steps_is_printed_once_the_gateway_listens(capsys: pytest.CaptureFixture[str]) -> None:
    def serve(config: FleetConfig, *, on_ready: Callable[[str], None]) -> int:
        on_ready("http://127.0.0.1:8123")
        return 7

    assert demo.serve_and_guide(demo.fleet(), serve) == 7
    printed = capsys.readouterr().out
    assert "curl -iN http://127.0.0.1:8123/v1/chat/completions" in printed
    assert "curl http://127.0.0.1:8123/v1/routing/" in printed
    python = printed.split("OpenAI SDK:\n\n")[1].split("\n\n")[0]
    lines = [line.strip() for line in python.splitlines()]
    assert len(lines) == 5
    compile("\n".join(lines), "printed", "exec")


def test_an_empty_table_has_no_rows() -> None:
    assert table([]).row_count == 0


def test_the_fleet_is_as_wide_as_the_demo_promises() -> None:
    fleet = demo.fleet()
    assert len(fleet.instances) >= 7
    assert {model.family for model in fleet.models} == {"llama", "qwen"}
    found = {model.name for model in fleet.models}
    assert found == {"llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "qwen2.5-72b"}
    assert len({each.hardware_name for each in fleet.instances}) >= 3
    assert {each.protocol for each in fleet.instances} == {"vllm", "ollama"}
    assert all(each.kind == "emulated" for each in fleet.instances)
    assert all(model.price and model.quality and model.slo for model in fleet.models)


def test_the_command_line_changes_the_fleet(tmp_path: Path) -> None:
    fleet = demo.fleet(port=9, speed=4.0, database=tmp_path / "x.db")
    assert fleet.server.port == 9
    assert {each.speed for each in fleet.instances} == {4.0}
    assert fleet.store.url == f"sqlite+aiosqlite:///{tmp_path}/x.db"
