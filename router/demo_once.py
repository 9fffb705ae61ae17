"""Sends one request per policy over the gateway's HTTP API and reads the recorded rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from rich.table import Table

from backends.sse_events import DONE, carries_token, data_of

QUESTION = "Name three things that make a good tool, in one sentence each."
MAX_TOKENS = 24
ANSWER_TIMEOUT_S = 120.0
#: Time limit for a finished row to appear: rows are written in batches, a fraction of a second apart.
ROW_TIMEOUT_S = 5.0
ROW_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one policy's request: its recorded row, and an error or None."""

    policy: str
    row: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


async def ask_each(url: str, policies: Sequence[str]) -> list[Answer]:
    """Request a streamed answer from any model, one policy after the other. A failure is in its Answer."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)) as session:
        return [await _ask(session, url, policy) for policy in policies]


async def _ask(session: aiohttp.ClientSession, url: str, policy: str) -> Answer:
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "routing": {"policy": policy},
    }
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            request_id = response.headers.get("x-request-id", "")
            if response.status != 200:
                return Answer(policy, error=f"HTTP {response.status}: {(await response.text())[:200]}")
            error = await _read(response)
        if error is not None:
            return Answer(policy, error=error)
        row = await _recorded(session, url, request_id)
    except TimeoutError:
        return Answer(policy, error="no answer in time")
    except (aiohttp.ClientError, ValueError) as problem:
        return Answer(policy, error=f"{type(problem).__name__}: {problem}")
    if row is None:
        return Answer(policy, error=f"no row was recorded for request {request_id!r}")
    outcome = row.get("outcome")
    return Answer(policy, row, None if outcome in {"ok", "late"} else f"outcome {outcome}")


async def _read(response: aiohttp.ClientResponse) -> str | None:
    """Read a stream of events to its end; the error, or None."""
    tokens = 0
    async for line in response.content:
        data = data_of(line)
        if not data:
            continue
        if data == DONE:
            return None if tokens else "the stream had no content"
        event = json.loads(data)
        if "error" in event:
            return str(event["error"].get("message"))
        tokens += sum(map(carries_token, event.get("choices", ())))
    return "the stream ended without [DONE]"


async def _recorded(session: aiohttp.ClientSession, url: str, request_id: str) -> Mapping[str, Any] | None:
    """Wait for the finished row of a request; None if it does not appear in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ROW_TIMEOUT_S
    while loop.time() < deadline:
        async with session.get(f"{url}/v1/routing/{request_id}") as response:
            if response.status == 200:
                row: Mapping[str, Any] = await response.json()
                if row.get("outcome") is not None:
                    return row
        await asyncio.sleep(ROW_POLL_S)
    return None


def table(answers: Sequence[Answer]) -> Table:
    """The recorded rows, one per policy, for a terminal of 80 columns."""
    found = Table(
        box=None, title="Recorded rows (tokens in and out, times in ms, cost in 1e-6 USD)", pad_edge=False
    )
    for column in ("policy", "model", "instance", "outcome"):
        found.add_column(column, no_wrap=True)
    for column in ("in", "out", "ttft", "e2e", "µUSD"):
        found.add_column(column, justify="right", no_wrap=True)
    for answer in answers:
        row = answer.row
        found.add_row(
            answer.policy,
            str(row.get("model") or ""),
            str(row.get("instance") or ""),
            str(row.get("outcome") or "failed"),
            _number(row.get("prompt_tokens")),
            _number(row.get("output_tokens")),
            _number(row.get("ttft_s"), 1000, "{:.0f}"),
            _number(row.get("e2e_s"), 1000, "{:.0f}"),
            _number(row.get("cost_usd"), 1e6, "{:.2f}"),
        )
    return found


def _number(value: float | None, scale: float = 1, form: str = "{:.0f}") -> str:
    return "" if value is None else form.format(value * scale)
