"""What engines say of their models is compared with the fleet file: by the gateway, and by `headway check --engines`."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
import yaml

from tests.integration.gateway.live import live, ollama, vllm
from tests.servers.ports import HeldPort


@pytest.mark.real_time
async def test_each_engine_is_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = HeldPort()
    engines = [
        vllm("short", max_model_len=2048),
        vllm("other"),
        ollama("desk", "llama-3.1-8b"),
        ollama("desk-other", "llama-3.1-8b"),
    ]
    wrong = {
        "other": {"serves": {"qwen2.5-7b": "nobody"}},
        "desk-other": {"serves": {"qwen2.5-7b": "qwen2.5"}},
    }
    away = {
        "name": "away",
        "kind": "vllm",
        "url": f"http://127.0.0.1:{port.number}",
        "serves": {"qwen2.5-7b": "x"},
    }
    expected = {
        "short: the engine takes 2048 tokens for 'up/llama-3.1-8b', the fleet file says context_tokens: 8192",
        "other: the engine lists no model 'nobody'; it lists 'up/llama-3.1-8b'",
        "desk-other: the engine lists no model 'qwen2.5'; it lists 'llama-3.1-8b:latest'",
    }

    def monitored() -> set[str]:
        messages = [each.getMessage() for each in caplog.records if each.name == "headway.monitor"]
        return {each.removeprefix("instance ") for each in messages}

    with caplog.at_level(logging.WARNING, "headway.monitor"):
        async with live(tmp_path, *engines, instance=wrong, extra_instances=[away]) as gw:
            async with asyncio.timeout(60):
                while len(monitored()) < len(expected) + 1:  # noqa: ASYNC110 (a test may poll)
                    await asyncio.sleep(0.01)
            (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(gw.fleet))
            words = ("-m", "router.cli", "check", "--config", str(tmp_path / "fleet.yaml"), "--engines")
            check = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE)
            told = (await check.communicate())[0].decode().splitlines()
    port.close()
    refused = "cannot connect to the engine (ConnectionRefusedError)"
    assert monitored() == expected | {f"away does not answer its probe: {refused}"}
    start = "warning: instance "
    warned = {line.removeprefix(start) for line in told if line.startswith(start) and ": the engine " in line}
    assert warned == expected | {f"away: the engine does not answer here: {refused}"}
