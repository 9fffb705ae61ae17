"""A gateway over engines that answer by script, byte by byte: the n-th generation request that reaches any of them is
answered by the n-th script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.core import hedging
from tests.contract.backends.fakes import Exchange, FakeEngine
from tests.integration.gateway.live import Live, live

MODEL = "llama-3.1-8b"
INPUT_USD, OUTPUT_USD = 0.05e-6, 0.25e-6  # a token's price, as in `live.MODELS`
DONE = b"data: [DONE]\n\n"

Script = Callable[[Exchange], Awaitable[None]]


async def watched(exchange: Exchange) -> bool:
    """Answer what is no request for an answer: probes, and questions that this engine does not know."""
    if exchange.path != "/v1/models" and exchange.path.startswith("/v1/"):
        return False
    await exchange.answer(404 if exchange.path in ("/tokenize", "/metrics") else 200, b"{}")
    return True


@dataclass
class Stage:
    """What the engines saw: bodies, headers and engine names in the order of arrival, and whose connection was closed
    before the script's end."""

    scripts: tuple[Script, ...]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    cut: dict[int, asyncio.Event] = field(default_factory=dict)

    async def play(self, engine: str, exchange: Exchange) -> None:
        if await watched(exchange):
            return
        number = len(self.bodies)
        self.bodies.append(exchange.json)
        self.headers.append(exchange.headers)
        self.engines.append(engine)
        closed = self.cut[number] = asyncio.Event()
        try:
            await self.scripts[number](exchange)
        except (asyncio.CancelledError, ConnectionError):
            closed.set()
            raise


def event(text: str | None = None, *, index: int = 0, finish: str | None = None, **members: Any) -> bytes:
    """One event of a chat; without a text it carries no token."""
    delta = (
        {"role": "assistant"}
        if text is None and finish is None
        else {}
        if text is None
        else {"content": text}
    )
    chunk = {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": index, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk | members).encode() + b"\n\n"


def usage(prompt: int, output: int) -> dict[str, Any]:
    """A member `usage`."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {"usage": counts}


def final(prompt: int, output: int) -> bytes:
    """The usage-only event."""
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    return b"data: " + json.dumps(chunk | usage(prompt, output)).encode() + b"\n\n"


def says(*texts: str, end: bytes = event(finish="stop") + DONE, gap_s: float = 0.0) -> Script:
    """Answers with an event a text, then `end`."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin(event())
        for text in texts:
            await exchange.chunk(event(text))
            await asyncio.sleep(gap_s)
        await exchange.chunk(end)
        await exchange.end()

    return script


def status(code: int) -> Script:
    """Refuses with an error."""
    body = json.dumps({"error": {"message": "no", "code": code}}).encode()
    return lambda exchange: exchange.answer(code, body)


def hangs(stage: str = "head") -> Script:
    """Never gives a token: nothing at all, or only its `head`, or its `role` event."""

    async def script(exchange: Exchange) -> None:
        if stage != "nothing":
            await exchange.head()
        if stage == "role":
            await exchange.chunk(event())
        await asyncio.Event().wait()

    return script


def after(delay_s: float, script: Script) -> Script:
    """The same, later."""

    async def later(exchange: Exchange) -> None:
        await asyncio.sleep(delay_s)
        await script(exchange)

    return later


@asynccontextmanager
async def staged(
    tmp_path: Path, *scripts: Script, kind: str = "vllm", engines: str = "ab", **sections: Any
) -> AsyncIterator[tuple[Live, Stage]]:
    """The gateway over `engines` (a letter each) of one kind. `sections` are further parts of the fleet file."""
    stage = Stage(scripts)
    async with AsyncExitStack() as stack:
        instances = []
        for name in engines:

            async def play(exchange: Exchange, name: str = name) -> None:
                await stage.play(name, exchange)

            engine = await stack.enter_async_context(FakeEngine(play))
            instances.append({"name": name, "kind": kind, "url": engine.url, "serves": {MODEL: "m"}})
        sections = {"probes": {"interval_s": 5, "eject_after": 100}} | sections
        gw = await stack.enter_async_context(live(tmp_path, extra_instances=instances, **sections))
        yield gw, stage


def hedge_after(monkeypatch: Any, delay_s: float) -> dict[str, Any]:
    """Have the scheduler hedge every request without a first token after `delay_s`, whatever is predicted; the
    sections of the fleet file for it."""

    def at(request: Any, prediction: Any) -> float | None:
        return request.arrived_at + delay_s if request.hedges and request.decodes else None

    monkeypatch.setattr(hedging, "hedge_at", at)
    monkeypatch.setattr(hedging, "pays", lambda *_: True)
    return {"scheduling": {"hedge": {"enabled": True, "max_share": 1.0}, "explore": 0.0}}


async def chat(gw: Live, **body: Any) -> tuple[str, Mapping[str, str], str]:
    """A chat to its end, streamed unless `stream` says otherwise: text, headers, and the last finish reason (or the
    error's code)."""
    async with gw.stream(model="small", **body) as response:
        raw = await response.text()
    if response.status != 200:
        return "", response.headers, json.loads(raw)["error"]["code"]
    if not body.get("stream", True):
        (choice,) = json.loads(raw)["choices"]
        return choice["message"]["content"], response.headers, choice["finish_reason"]
    payloads = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: {")]
    choices = [choice for payload in payloads for choice in payload.get("choices", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    errors = [payload["error"]["code"] for payload in payloads if "error" in payload]
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert errors or raw.endswith("data: [DONE]\n\n"), raw[-300:]
    return text, response.headers, (errors or ends)[-1]
