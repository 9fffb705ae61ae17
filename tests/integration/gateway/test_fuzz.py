"""A schema fuzzer against the live gateway: what /openapi.json says is what comes back, and never a 500."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.integration.gateway.live import live, ollama, vllm

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.real_time  # the fuzzer is a process of its own
@pytest.mark.parametrize(
    ("phases", "examples"),
    [("fuzzing", 1), pytest.param("examples,coverage,fuzzing", 20, marks=pytest.mark.nightly)],
)
@pytest.mark.timeout(900)
async def test_a_fuzzer_finds_nothing(tmp_path, phases, examples):
    async with live(tmp_path, vllm("a"), ollama("b", "qwen2.5-7b")) as gw:
        fuzzer = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("schemathesis"),
            *("run", f"{gw.url}/openapi.json", "--checks", CHECKS, "--phases", phases),
            *("--max-examples", str(examples), "--seed", "1", "--request-timeout", "10", "--no-color"),
            # These change the fleet that is being tested; a key that is made closes the gateway.
            *("--exclude-path", "/admin/instances", "--exclude-path", "/admin/instances/{name}"),
            *("--exclude-path", "/admin/keys"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        output, _ = await fuzzer.communicate()
        assert fuzzer.returncode == 0, output.decode()[-4000:]
