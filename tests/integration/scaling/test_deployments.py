"""A gateway that scales a Deployment of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.listening import free_port
from tests.integration.gateway.live import Live, live
from tests.integration.scaling.clients import Clients, serving
from tests.integration.scaling.cluster import NAME, NAMESPACE, OneDeployment, one_deployment

pytest.importorskip("kubernetes.aio")

INSTANCE = {
    "kind": "vllm",
    "hardware": "l4",
    "max_concurrency": 2,
    "serves": {"llama-3.1-8b": "up/llama-3.1-8b"},
}


@asynccontextmanager
async def scaled(
    tmp_path: Path, *, replicas: int = 0, **pool: Any
) -> AsyncIterator[tuple[OneDeployment, Live]]:
    port = free_port()
    async with one_deployment(port) as (cluster, server):
        cluster.deployment["spec"]["replicas"] = replicas
        while cluster.ready < replicas:  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.01)
        scaling = {
            "scaler": "concurrency",
            "settings": {"window_s": 0.6, "utilization": 1.0},
            "actuator": "kubernetes",
            "interval_s": 0.2,
            "pools": [
                {
                    "name": "small",
                    "instance": INSTANCE,
                    "deployment": NAME,
                    "cooldown_s": 0.5,
                    "max_instances": 3,
                }
                | pool
            ],
        }
        found = {"server": server, "namespace": NAMESPACE, "selector": "app=vllm", "port": port}
        discovery = [{"kubernetes": found, "instance": INSTANCE}]
        async with live(tmp_path, scaling=scaling, discovery=discovery) as gw:
            yield cluster, gw


async def test_load_triples_and_falls_and_no_stream_is_lost(tmp_path: Path) -> None:
    async with scaled(tmp_path) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 1, 60)
        clients = Clients(gw)
        clients.are(6)
        await gw.until(lambda: len(serving(gw)) == 3, 60)
        clients.are(1)
        await gw.until(lambda: len(cluster.pods) == 1, 60)
        assert set(serving(gw)) == cluster.pods.keys()
        clients.are(0)
        await clients.all_were_answered()
        assert len(cluster.deleted) == 2
        # The fleet does not keep the names of pods that are gone.
        await gw.until(lambda: not gw.gateway.changes.overlay.removed, 60)


async def test_a_request_wakes_a_deployment_without_pods(tmp_path: Path) -> None:
    async with scaled(tmp_path, min_instances=0, cooldown_s=30) as (cluster, gw):
        await gw.until(lambda: gw.gateway.decision is not None, 60)
        assert cluster.scaled == []
        clients = Clients(gw)
        clients.are(1)
        await gw.until(lambda: len(serving(gw)) == 1, 60)
        clients.are(0)
        await clients.all_were_answered()
        assert cluster.scaled == [1]


async def test_pods_that_serve_are_not_taken_away_at_the_start(tmp_path: Path) -> None:
    """They are ready before the gateway knows them: a Deployment that is larger than wanted shrinks only by draining."""
    async with scaled(tmp_path, replicas=3, max_instances=1) as (cluster, gw):
        await gw.until(lambda: len(cluster.pods) == 1, 60)
        assert len(cluster.deleted) == 2
        assert cluster.marked == set(cluster.deleted)
        assert gw.gateway.changes.overlay.revision >= 4  # both drained, and both left the fleet
        await gw.until(lambda: set(serving(gw)) == cluster.pods.keys(), 60)


async def test_load_that_rises_while_a_pod_is_to_be_deleted(tmp_path: Path) -> None:
    """The pod stays, and comes back only when it is sure to stay: without its mark another one would be deleted."""
    async with scaled(tmp_path, replicas=2, max_instances=2) as (cluster, gw):
        cluster.paused = True
        await gw.until(lambda: cluster.scaled == [1], 60)
        clients = Clients(gw)
        clients.are(4)
        await gw.until(lambda: len(cluster.scaled) == 2 or len(serving(gw)) == 2, 60)
        cluster.paused = False
        await gw.until(lambda: len(serving(gw)) == 2, 60)
        clients.are(0)
        await clients.all_were_answered()
        assert cluster.scaled[:2] == [1, 2]


async def test_an_api_server_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    async with scaled(tmp_path) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 1, 60)
        cluster.deployment["spec"], good = {"replicas": 1}, cluster.deployment["spec"]
        clients = Clients(gw)
        clients.are(4)
        await asyncio.sleep(0.5)  # decisions fail meanwhile
        cluster.deployment["spec"] = good
        await gw.until(lambda: len(serving(gw)) >= 2, 60)
        clients.are(0)
        await clients.all_were_answered()
