"""A gateway that starts and stops real vLLM engines on the CPU as child processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engines.test_vllm import SCRIPT
from tests.integration.gateway.live import live
from tests.integration.scaling.clients import Clients, serving

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
#: A start takes half a minute, and longer beside an engine at work on the same two cores.
START_S = 600.0
NAME = "up/llama-3.1-8b"


async def test_load_triples_and_falls_to_a_third_and_no_stream_is_lost(tmp_path: Path) -> None:
    pool = {
        "name": "small",
        "instance": {
            "kind": "vllm",
            "hardware": "l4",
            "max_concurrency": 2,
            "serves": {"llama-3.1-8b": NAME},
        },
        "min_instances": 1,
        "max_instances": 2,
        "cooldown_s": 5,
        "cold_start_s": 40,
        "command": [str(SCRIPT), "{port}", NAME, "--num-gpu-blocks-override", "256", "--max-num-seqs", "2"],
    }
    scaling = {
        "scaler": "concurrency",
        "settings": {"window_s": 10, "utilization": 1.0},
        "actuator": "processes",
        "interval_s": 1.0,
        "pools": [pool],
    }
    probes = {"interval_s": 1.0, "timeout_s": 20.0, "eject_after": 5, "return_after": 1}
    async with live(tmp_path, environment=dict(os.environ), scaling=scaling, probes=probes) as gw:
        await gw.until(lambda: len(serving(gw)) == 1, START_S)
        clients = Clients(gw, tokens=100)
        clients.are(2)
        await gw.until(lambda: len(clients.answers) >= 2, 120)
        clients.are(6)
        await gw.until(lambda: len(serving(gw)) == 2, START_S)
        answered = len(clients.answers)
        await gw.until(lambda: len(clients.answers) >= answered + 12, 300)
        clients.are(2)
        await gw.until(lambda: len(serving(gw)) == 1, START_S)
        clients.are(0)
        await clients.all_were_answered()
        # The other one has left. The pool itself is an instance too, for requests that wait for its first engine.
        await gw.until(lambda: len(gw.instances.keys() - {"small"}) == 1, 120)
