"""`headway demo`: runs the gateway over an emulated fleet and prints examples. `--once` sends one request per policy."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from policies import POLICIES
from router.config import FleetConfig, loads
from router.core.refusals import draining

DEFAULT_PORT = 8080
QUESTION = "Name three things that make a good tool, in one sentence each."
MAX_TOKENS = 24
ANSWER_TIMEOUT_S = 120.0
#: Time limit for a finished row to appear: rows are written in batches, a fraction of a second apart.
ROW_TIMEOUT_S = 5.0
ROW_POLL_S = 0.05

#: `router.serve.serve`: runs a fleet's gateway until SIGINT or SIGTERM, and returns the exit code. It calls `on_ready` with
#: the base URL, in the gateway's event loop, when the gateway listens.
Serve = Callable[..., int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, help=f"port to listen on (default {DEFAULT_PORT}; with --once a free one)"
    )
    parser.add_argument(
        "--once", action="store_true", help="send one request per policy, print the rows, and exit"
    )
    parser.add_argument(
        "--speed", type=_positive, metavar="F", help="run the emulated engines at F times real speed"
    )
    parser.add_argument("--db", type=Path, metavar="FILE", help="SQLite file for the records")


def run(args: argparse.Namespace) -> int:
    """Serve the demo fleet until interrupted, or with `--once` until each policy has answered. Returns the exit code."""
    from router.serve import serve  # here, so that `headway demo --help` need not import the gateway

    with ExitStack() as cleanup:
        database = args.db
        if args.once and database is None:
            folder = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="headway-demo-"))
            database = Path(folder) / "headway.db"
        port = args.port if args.port is not None else 0 if args.once else DEFAULT_PORT
        config = fleet(port=port, speed=args.speed, database=database)
        return serve_and_ask(config, serve) if args.once else serve_and_guide(config, serve)


def fleet(
    *, port: int = DEFAULT_PORT, speed: float | None = None, database: Path | None = None
) -> FleetConfig:
    """The demo's fleet file (part of the distribution) with the changes of the command line."""
    text = files("router.config").joinpath("demo.yaml").read_text(encoding="utf-8")
    config = loads(text, "demo.yaml")
    update: dict[str, object] = {"server": config.server.model_copy(update={"port": port})}
    if speed is not None:
        update["instances"] = tuple(
            each.model_copy(update={"speed": speed}) if each.is_emulated else each
            for each in config.instances
        )
    if database is not None:
        url = f"sqlite+aiosqlite:///{database.absolute()}"
        update["store"] = config.store.model_copy(update={"url": url})
    return config.model_copy(update=update)


def next_steps(config: FleetConfig, url: str) -> str:
    """The next steps for a new user, as text for a terminal."""
    kinds = sorted({each.hardware_name or "?" for each in config.instances})
    return f"""\
Headway listens on {url} over {len(config.instances)} emulated instances on {", ".join(kinds)}.
The engines have the timing of real ones, but no model runs: their text is filler.

Models:   auto (any), {", ".join(each.name for each in config.models)}
Policies: {", ".join(sorted(POLICIES))}

Send a request and choose its policy:

  curl -iN {url}/v1/chat/completions -H 'content-type: application/json' -d '{{"model": "auto", "stream": true, \
"max_tokens": 20, "messages": [{{"role": "user", "content": "Hello"}}], "routing": {{"policy": "price"}}}}'

The same with the OpenAI SDK:

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  routing = {{"policy": "latency", "slo": {{"ttft_ms": 800}}}}
  answer = client.chat.completions.create(model="auto", messages=[{{"role": "user", "content": "Hello"}}], max_tokens=40, \
extra_body={{"routing": routing}})
  print(answer.choices[0].message.content, answer.model_extra["headway"])

Show the decision and the result (the id is the answer's x-request-id header):

  curl {url}/v1/routing/REQUEST_ID

A browser shows the fleet, the requests and their decisions: {url}/ui

Ctrl-C stops the gateway and the engines.
"""


def serve_and_guide(config: FleetConfig, serve: Serve) -> int:
    """Serve until interrupted; print the next steps when the gateway listens."""
    return serve(config, on_ready=lambda url: print(next_steps(config, url), flush=True))


def serve_and_ask(config: FleetConfig, serve: Serve) -> int:
    """Send one request per policy from a second thread, stop the gateway as Ctrl-C does, and print the rows.

    The exit code is 0 only if every policy answered and the gateway ended without an error. Raises KeyboardInterrupt if the
    gateway was stopped before.
    """
    answers: list[Answer] = []
    ended = threading.Event()

    def ask(url: str) -> None:
        try:
            answers.extend(asyncio.run(ask_each(url, sorted(POLICIES))))
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    code = serve(config, on_ready=lambda url: threading.Thread(target=ask, args=(url,), daemon=True).start())
    ended.set()
    if len(answers) < len(POLICIES):
        raise KeyboardInterrupt  # the gateway was stopped meanwhile
    Console(highlight=False).print(table(answers))
    for answer in answers:
        if answer.error is not None:
            print(f"{answer.policy}: {answer.error}")
    answered = {answer.policy for answer in answers if answer.error is None}
    return code or int(answered != set(POLICIES))


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


# --- one request for each policy --------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one policy's request: its recorded row, and an error or None."""

    policy: str
    row: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


async def ask_each(url: str, policies: Sequence[str]) -> list[Answer]:
    """Request an answer from any model, one policy after the other. A failure is in its Answer. There are no more
    answers when the gateway stops."""
    answers = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)) as session:
        for policy in policies:
            try:
                answer = await _ask(session, url, policy)
            except aiohttp.ClientConnectorError:
                break
            if draining().message in (answer.error or ""):
                break
            answers.append(answer)
    return answers


async def _ask(session: aiohttp.ClientSession, url: str, policy: str) -> Answer:
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": MAX_TOKENS,
        "routing": {"policy": policy},
    }
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            request_id, answer = response.headers.get("x-request-id", ""), await response.text()
        if response.status != 200:
            return Answer(policy, error=f"HTTP {response.status}: {answer[:200]}")
        row = await _recorded(session, url, request_id)
    except TimeoutError:
        return Answer(policy, error="no answer in time")
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientError, ValueError) as problem:
        return Answer(policy, error=f"{type(problem).__name__}: {problem}")
    if row is None:
        return Answer(policy, error=f"no row was recorded for request {request_id!r}")
    outcome = row.get("outcome")
    return Answer(policy, row, None if outcome in {"ok", "late"} else f"outcome {outcome}")


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
