"""A schema fuzzer against the live gateway: what /openapi.json says is what comes back, and never a 500."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.integration.gateway.live import live, ollama, vllm

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.real_time  # the fuzzer is a process of its own
async def test_a_fuzzer_finds_nothing(tmp_path):
    async with live(tmp_path, vllm("a"), ollama("b", "qwen2.5-7b")) as gw:
        fuzzer = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("schemathesis"),
            *("run", f"{gw.url}/openapi.json", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing"),
            *("--max-examples", "5", "--seed", "1", "--request-timeout", "10", "--no-color"),
            # These change the fleet that is being tested; a key that is made closes the gateway.
            *("--exclude-path", "/admin/instances", "--exclude-path", "/admin/instances/{name}"),
            *("--exclude-path", "/admin/keys"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        output, _ = await fuzzer.communicate()
        assert fuzzer.returncode == 0, output.decode()[-4000:]
