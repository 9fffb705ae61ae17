"""A gateway that starts and stops real vLLM engines on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.test_vllm import SCRIPT, START_S
from tests.integration.scaling.clients import Clients, serving
from tests.integration.scaling.test_processes import pool, scaled

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]


async def test_load_triples_and_halves_and_no_stream_is_lost(tmp_path: Path) -> None:
    instance = {**pool()["instance"], "max_concurrency": 3}
    command = [str(SCRIPT), "{port}", "up/llama-3.1-8b"]
    engines = pool(instance=instance, max_instances=2, command=command, cold_start_s=START_S, cooldown_s=10)
    async with scaled(tmp_path, engines) as gw:
        clients = Clients(gw)
        clients.are(2)
        await gw.until(lambda: len(serving(gw)) == 1, START_S)
        clients.are(6)
        await gw.until(lambda: len(serving(gw)) == 2, START_S)
        clients.are(3)
        await gw.until(lambda: len(serving(gw)) == 1, 120)
        clients.are(0)
        await gw.until(lambda: serving(gw) == [], 120)
        await clients.all_were_answered()
        assert len(clients.answers) > 10
