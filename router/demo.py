"""`headway demo`: runs the gateway over an emulated fleet and prints examples. `--once` sends one request per policy."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from rich.console import Console

from backends.engine import profiles
from policies import POLICIES
from router.config import FleetConfig, loads
from router.demo_once import Answer, ask_each, table

DEFAULT_PORT = 8080


class Serve(Protocol):
    """The type of `router.serve.serve`. It runs the gateway until SIGINT or SIGTERM and returns the exit code. It calls
    `on_ready` with the base URL, in the gateway's event loop, when the gateway listens."""

    def __call__(self, config: FleetConfig, *, on_ready: Callable[[str], None]) -> int: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headway demo`."""
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
        return serve_and_ask(config, serve) if args.once else serve_and_tell(config, serve)


def fleet(
    *, port: int = DEFAULT_PORT, speed: float | None = None, database: Path | None = None
) -> FleetConfig:
    """The demo's fleet file (part of the distribution) with the changes of the command line."""
    text = files("router.config").joinpath("demo.yaml").read_text(encoding="utf-8")
    config = loads(text, "demo.yaml", policies=POLICIES, profiles=profiles.names())
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


def what_to_try(config: FleetConfig, url: str) -> str:
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


def serve_and_tell(config: FleetConfig, serve: Serve) -> int:
    """Serve until interrupted; print the next steps when the gateway listens."""
    return serve(config, on_ready=lambda url: print(what_to_try(config, url), flush=True))


def serve_and_ask(config: FleetConfig, serve: Serve) -> int:
    """Send one request per policy from a second thread, stop the gateway as Ctrl-C does, and print the rows.

    The exit code is 0 only if every policy answered and the gateway ended without an error.
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
