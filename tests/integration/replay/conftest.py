"""A small real server that speaks OpenAI's streaming format, on a thread and a loop of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.servers.loop_thread import loop_thread


@dataclass
class Seen:
    """One request that arrived."""

    at: float
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]


@dataclass
class SseServer:
    """`behaviours` says by request id what is unusual: an HTTP status, "cut", "error", "no-done", "plain",
    "silent", "garbage". All other requests are streamed: `tokens` of them (or the emulated length), `gap_s`
    apart, after `first_token_s` of their policy. With `ratings` (by request id) it has a judge. `records` (by request id)
    are what it recorded."""

    url: str = ""
    tokens: int = 4
    gap_s: float = 0.002
    first_token_s: dict[str, float] = field(default_factory=dict)
    behaviours: dict[str, str] = field(default_factory=dict)
    known_policies: frozenset[str] | None = None
    busy: int = 0
    ratings: dict[str, float] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append(Seen(time.perf_counter(), headers, body))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request, body)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        identity = request.headers["x-request-id"]
        policy = body.get("routing", {}).get("policy", "none")
        behaviour = self.behaviours.get(identity, "")
        headers = {"x-request-id": f"own-{identity}", "x-headway-instance": f"box-{policy}"}
        if self.known_policies is not None and policy not in self.known_policies:
            return refusal(400, "invalid_request", f"unknown policy {policy}", headers)
        if behaviour.isdigit():
            return refusal(int(behaviour), "slo_unattainable" if behaviour == "429" else None, "no", headers)
        wished = body.get("vllm_xargs", {}).get("emulate_output_tokens", self.tokens)
        count = max(wished.values()) if isinstance(wished, dict) else wished
        usage = {"prompt_tokens": 7, "completion_tokens": count}
        told = {
            "request_id": f"own-{identity}",
            "outcome": "ok",
            "cost_usd": 0.001,
            "instance": f"box-{policy}",
        }
        if behaviour == "plain":
            choices = [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]
            return web.json_response({"choices": choices, "usage": usage, "headway": told}, headers=headers)
        response = web.StreamResponse(headers={**headers, "content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(event({"role": "assistant", "content": ""}))
        if behaviour == "silent":
            await asyncio.sleep(30)
        await asyncio.sleep(self.first_token_s.get(policy, 0.0))
        for index in range(count):
            if index:
                await asyncio.sleep(self.gap_s)
            await response.write(event({"content": f" {index}"}))
            if behaviour == "error":
                error = {"message": "engine lost", "code": "upstream_error"}
                await response.write(b"data: " + orjson.dumps({"error": error}) + b"\n\n")
                return response
            if behaviour == "cut":
                request.transport.abort()
                return response
        await response.write(event({}, finish_reason="stop"))
        await response.write(
            b"data: " + orjson.dumps({"choices": [], "usage": usage, "headway": told}) + b"\n\n"
        )
        if behaviour != "no-done":
            await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    async def metrics(self, _request: web.Request) -> web.Response:
        busy = self.busy
        self.busy = max(0, busy - 1)
        text = f'headway_queue_depth 0\nheadway_instance_in_flight{{instance="a"}} {busy}\nheadway_records_total 9\n'
        if self.ratings:
            text += f'headway_judged_answers_total{{result="judged"}} {len(self.ratings)}\n'
        return web.Response(text=text)

    async def routing(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        self.looked_up.append(identity)
        if identity not in self.ratings:
            return web.json_response(
                {"outcome": "rejected_slo", "feedback": []} | self.records.get(identity, {})
            )
        return web.json_response({"outcome": "ok", "feedback": [{"quality": self.ratings[identity]}]})

    async def file(self, _request: web.Request) -> web.Response:
        return web.Response(body=b"num_prefill_tokens,num_decode_tokens\n26,5\n72,693\n")


def event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + orjson.dumps({"object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"


def refusal(status: int, code: str | None, message: str, headers: dict[str, str]) -> web.Response:
    return web.json_response({"error": {"message": message, "code": code}}, status=status, headers=headers)


async def serve(fake: SseServer) -> web.AppRunner:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/chat/completions", fake.chat)
    app.router.add_get("/v1/models", fake.models)
    app.router.add_get("/metrics", fake.metrics)
    app.router.add_get("/v1/routing/{id}", fake.routing)
    app.router.add_get("/file.csv", fake.file)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return runner


@pytest.fixture
def server() -> Iterator[SseServer]:
    """The server, listening; its thread ends with the test."""
    fake = SseServer()
    with loop_thread() as run:
        runner = run(serve(fake))
        yield fake
        run(runner.cleanup())
