"""`headway demo` as a user runs it: it answers, it ends, and nothing that it started outlives it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from policies import POLICIES

DEMO = [sys.executable, "-m", "router.cli", "demo", "--speed", "50"]
#: Without the operator's own admin key, so that /admin answers on loopback.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running demo and its URL."""
    command = [*DEMO, "--port", "0", "--db", str(tmp_path / "demo.db")]
    # Where it is ignored, as under nohup, the demo would ignore it too.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    signal.signal(signal.SIGHUP, before)
    with process:
        try:
            first = process.stdout.readline()
            assert first.startswith("Headway listens on http://127.0.0.1:"), first
            yield process, first.split()[3]
        finally:
            process.kill()


def ask(url: str, **fields: Any) -> HTTPResponse:
    question = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}], **fields}
    request = Request(  # noqa: S310 (our own loopback URL)
        f"{url}/v1/chat/completions", json.dumps(question).encode(), {"content-type": "application/json"}
    )
    return urlopen(request, timeout=30)  # noqa: S310 (own server)


def takes_requests(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=30):  # noqa: S310 (own server)
            return True
    except OSError:  # it refuses connections, or answers 503
        return False


def test_once_asks_each_policy_through_the_real_gateway() -> None:
    """It ends itself by SIGINT. Its output ends only when all of its engines have ended."""
    done = subprocess.run(
        [*DEMO, "--once"], capture_output=True, text=True, timeout=100, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert set(POLICIES) <= set(rows)
    assert {rows[policy][3] for policy in POLICIES} <= {"ok", "late"}


@pytest.mark.parametrize(("end", "code"), [(signal.SIGHUP, 0), (signal.SIGKILL, -9)])
def test_nothing_outlives_the_demo(
    gateway: tuple[subprocess.Popen[str], str], end: signal.Signals, code: int
) -> None:
    process, url = gateway
    with ask(url, max_tokens=2) as response:
        assert json.load(response)["headway"]["outcome"] == "ok"
    process.send_signal(end)
    # The engines share the demo's standard error, so its end is read only when all of them have ended.
    process.communicate(timeout=60)
    assert process.returncode == code


def test_a_second_signal_ends_it_without_a_traceback(gateway: tuple[subprocess.Popen[str], str]) -> None:
    process, url = gateway
    with ask(url, model="llama-3.1-70b", stream=True, ignore_eos=True, max_tokens=8000) as response:
        response.readline()
        process.send_signal(signal.SIGINT)
        while takes_requests(url):
            pass
        assert process.poll() is None  # it waits for the stream
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
