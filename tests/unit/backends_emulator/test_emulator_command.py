from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from backends.emulator.instance import EmulatedInstance, start_all
from backends.engine.profiles import names
from router.listening import listen
from tests.commands import Headway


def test_list_names_all_profiles(headway: Headway) -> None:
    assert headway.out("emulate", "--list").split() == list(names())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--profile is needed"),
        (("--profile", "llama-3.1-8b@a100"), "llama-3.1-8b@a100-80g"),
        (("--profile", "llama-3.1-8b@a100-80g", "--speed", "0"), "speed"),
        (("--profile", "llama-3.1-8b@a100-80g", "--speed", "inf"), "speed: must be a finite number"),
        (("--profile", "llama-3.1-8b@a100-80g", "--api-key-env", "NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE"),
        (("--profile", "llama-3.1-8b@a100-80g", "--max-model-len", "9000000"), "KV memory"),
        (("--config", "/does/not/exist.yaml"), "cannot read"),
        (
            ("--config", "fleet.yaml", "--speed", "20", "--on-stop", "cut"),
            "--on-stop, --speed: with --config",
        ),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], says: str, headway: Headway) -> None:
    assert says in headway.refusal("emulate", *arguments)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {kind: vllm, profil: x}", "unknown key 'profil'"),
        ("- {kind: vllm, profile: llama-3.1-8b@a100-80g, num_ctx: 3}", "unknown key 'num_ctx'"),
        ("- {kind: vllm, profile: llama-3.1-8b@a100-80g, max_model_len: '3'}", "max_model_len"),
        ("- {kind: tgi, profile: x}", "kind: must be 'vllm' or 'ollama'"),
        ("- {kind: vllm, profile: x}", "unknown profile 'x'"),
        ("- {kind: ollama, models: [x]}", "models: must be a valid dictionary"),
        ("- {kind: vllm, profile: llama-3.1-8b@a100-80g, port: many}", "port"),
        ("- {kind: vllm, profile: llama-3.1-8b@a100-80g, on_stop: explode}", "on_stop"),
        ("5", "list of instances"),
        ("- {kind: vllm,\n\n - x", "line"),
    ],
)
def test_bad_config_is_one_line(tmp_path: Path, text: str, says: str, headway: Headway) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    assert says in headway.refusal("emulate", "--config", path)


def test_a_taken_port_is_one_line(headway: Headway) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert "in use" in headway.refusal("emulate", "--profile", "llama-3.1-8b@a100-80g", "--port", port)


async def test_one_that_cannot_listen_stops_those_before_it() -> None:
    first = EmulatedInstance("a", "vllm", {"m": "llama-3.1-8b@a100-80g"})
    with listen("127.0.0.1", 0) as taken:
        second = EmulatedInstance("b", "vllm", {"m": "llama-3.1-8b@a100-80g"}, port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await start_all([first, second])
    with pytest.raises(RuntimeError, match="not been started"):
        _ = first.app


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_process_hosts_many_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    config = tmp_path / "fleet.json"
    fleet = [
        {"name": "big", "kind": "vllm", "profile": "llama-3.1-70b@4xh100-80g", "port": 0, "speed": 5},
        {"name": "local", "kind": "ollama", "models": {"small:8b": "llama-3.1-8b-q4@rtx-4090"}, "port": 0},
    ]
    config.write_text(json.dumps(fleet))
    with subprocess.Popen(
        [sys.executable, "-m", "router.cli", "emulate", "--config", str(config)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert "emulator" in process.stdout.readline()
        urls = [process.stdout.readline().split(" at ")[1].split(": ")[0] for _ in fleet]
        with urllib.request.urlopen(f"{urls[0]}/v1/models", timeout=60) as answer:  # noqa: S310 (own server)
            assert json.load(answer)["data"][0]["id"] == "llama-3.1-70b"
        with urllib.request.urlopen(f"{urls[1]}/api/tags", timeout=60) as answer:  # noqa: S310 (own server)
            assert json.load(answer)["models"][0]["name"] == "small:8b"
        process.send_signal(number)
        assert process.wait(60) == 0
