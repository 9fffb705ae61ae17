"""The process of emulated engines, beside its gateway."""

from __future__ import annotations

import os
import subprocess
import sys

import orjson


def test_a_gateway_that_ends_while_its_engines_start_leaves_no_traceback() -> None:
    engine = {
        "name": "a",
        "kind": "vllm",
        "speed": 1.0,
        "models": {"m": "llama-3.1-8b@a100-80g"},
        "context": 4096,
    }
    read, write = os.pipe()
    os.close(read)
    child = subprocess.Popen(
        [sys.executable, "-m", "router.emulated"],
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    _, errors = child.communicate(orjson.dumps([engine]) + b"\n", timeout=60)
    assert (child.returncode, errors) == (0, b"")
