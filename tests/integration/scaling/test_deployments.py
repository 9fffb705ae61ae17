"""A gateway that scales a Deployment of a cluster."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from router import background
from router.config import PoolConfig
from router.discovery import ApiServer
from router.gateway.service import Gateway
from router.listening import free_port
from tests.integration.gateway.live import Live, live
from tests.integration.scaling.clients import Clients, serving
from tests.integration.scaling.cluster import COST, NAME, NAMESPACE, OneDeployment, merged, one_deployment

pytest.importorskip("kubernetes.aio")

INSTANCE = {
    "kind": "vllm",
    "hardware": "l4",
    "max_concurrency": 2,
    "serves": {"llama-3.1-8b": "up/llama-3.1-8b"},
}


@asynccontextmanager
async def scaled(
    tmp_path: Path, *others: dict[str, Any], replicas: int = 0, **pool: Any
) -> AsyncIterator[tuple[OneDeployment, Live]]:
    async with one_deployment() as (cluster, server):
        cluster.deployment["spec"]["replicas"] = replicas
        while cluster.ready < replicas:  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.01)
        scaling = {
            "scaler": "concurrency",
            "settings": {"window_s": 0.6, "utilization": 1.0},
            "actuator": "kubernetes",
            "interval_s": 0.2,
            "pools": [
                *others,
                {
                    "name": "small",
                    "instance": INSTANCE,
                    "deployment": NAME,
                    "cooldown_s": 0.5,
                    "max_instances": 3,
                }
                | pool,
            ],
        }
        found = {"server": server, "namespace": NAMESPACE, "selector": "app=vllm", "port": cluster.port}
        discovery = [
            {"kubernetes": found | {"namespace": other["name"]}, "instance": other["instance"]}
            for other in others
        ]
        discovery.append({"kubernetes": found, "instance": INSTANCE})
        async with live(tmp_path, scaling=scaling, discovery=discovery) as gw:
            yield cluster, gw


async def test_load_triples_and_falls_and_no_stream_is_lost(tmp_path: Path) -> None:
    async with scaled(tmp_path) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 1)
        clients = Clients(gw)
        clients.are(6)
        await gw.until(lambda: len(serving(gw)) == 3)
        clients.are(1)
        await gw.until(lambda: len(cluster.pods) == 1)
        assert set(serving(gw)) == cluster.pods.keys()
        clients.are(0)
        await clients.all_were_answered()
        assert len(cluster.deleted) == 2
        # The fleet does not keep the names of pods that are gone.
        await gw.until(lambda: not gw.gateway.changes.overlay.removed)


async def test_a_request_wakes_a_deployment_without_pods(tmp_path: Path) -> None:
    async with scaled(tmp_path, min_instances=0, cooldown_s=30) as (cluster, gw):
        await gw.until(lambda: gw.gateway.decision is not None)
        assert cluster.scaled == []
        clients = Clients(gw)
        clients.are(1)
        await gw.until(lambda: len(serving(gw)) == 1)
        clients.are(0)
        await clients.all_were_answered()
        assert cluster.scaled == [1]


async def test_pods_that_serve_are_not_taken_away_at_the_start(tmp_path: Path) -> None:
    """They are ready before the gateway knows them: a Deployment that is larger than wanted shrinks only by draining."""
    async with scaled(tmp_path, replicas=3, max_instances=1) as (cluster, gw):
        await gw.until(lambda: len(cluster.pods) == 1)
        assert len(cluster.deleted) == 2
        assert cluster.marked == set(cluster.deleted)
        assert gw.gateway.changes.overlay.revision >= 2  # both drained in one edit, and left the fleet
        await gw.until(lambda: set(serving(gw)) == cluster.pods.keys())


async def test_load_that_rises_while_a_pod_is_to_be_deleted(tmp_path: Path) -> None:
    """The pod stays, and comes back only when it is sure to stay: without its mark another one would be deleted."""
    async with scaled(tmp_path, replicas=2, max_instances=2) as (cluster, gw):
        cluster.paused = True
        await gw.until(lambda: cluster.scaled == [1])
        clients = Clients(gw)
        clients.are(4)
        await gw.until(lambda: len(cluster.scaled) == 2 or len(serving(gw)) == 2)
        cluster.paused = False
        await gw.until(lambda: len(serving(gw)) == 2)
        clients.are(0)
        await clients.all_were_answered()
        assert cluster.scaled[:2] == [1, 2]


async def test_a_pod_that_an_operator_has_removed_is_replaced(tmp_path: Path) -> None:
    async with scaled(tmp_path, replicas=1, max_instances=1) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 1)
        (removed,) = serving(gw)
        status, _ = await gw.delete(f"/admin/instances/{removed}")
        assert status == 200
        while cluster.deleted != [removed]:
            assert removed not in serving(gw)
            await asyncio.sleep(0.01)
        await gw.until(lambda: set(serving(gw)) == cluster.pods.keys())
        assert cluster.scaled == [2, 1]


async def test_a_pod_that_is_gone_does_not_serve_until_discovery_hears_of_it(tmp_path: Path) -> None:
    async with scaled(tmp_path, replicas=2, max_instances=2) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 2)
        cluster.late_s = 1.5
        await gw.until(lambda: len(cluster.pods) == 1)
        await gw.until(lambda: set(serving(gw)) == cluster.pods.keys())
        while gw.gateway.changes.overlay.removed:
            assert set(serving(gw)) == cluster.pods.keys()
            await asyncio.sleep(0.01)
        assert set(serving(gw)) == cluster.pods.keys()
        assert cluster.scaled == [1]


async def test_a_pod_that_is_not_ready_for_a_while_keeps_its_streams(tmp_path: Path) -> None:
    """Neither is it deleted as one that never served, nor is another pod scaled down, which would delete it."""
    async with scaled(tmp_path, max_instances=2) as (cluster, gw):
        clients = Clients(gw)
        clients.are(4)
        await gw.until(lambda: sum(gw.instances[name].in_flight for name in serving(gw)) == 4)
        cluster.unready = {min(cluster.pods)}
        await gw.until(lambda: len(serving(gw)) == 1)
        clients.are(1)
        await gw.until(lambda: gw.gateway.decision and gw.gateway.decision.wanted["small"] == 1)
        for _ in range(2):  # so the first is carried out
            await gw.until(lambda before=gw.gateway.decision: gw.gateway.decision is not before)
        assert cluster.deleted == []
        cluster.unready = set()
        await gw.until(lambda: len(cluster.pods) == 1)
        clients.are(0)
        await clients.all_were_answered()


async def test_a_deployment_that_somebody_else_has_scaled_is_not_scaled_down(tmp_path: Path) -> None:
    """A pod that is new would go, or a ready one without a mark."""
    async with scaled(tmp_path, replicas=2, max_instances=2) as (cluster, gw):
        cluster.before_scaling = lambda: cluster.scale(3)
        await gw.until(lambda: cluster.ready == 3)
        assert cluster.deleted == []
        cluster.before_scaling = lambda: None
        await gw.until(lambda: len(cluster.pods) == 1)
        assert cluster.marked == set(cluster.deleted)


async def test_a_pool_that_grows_takes_no_pods_away_that_somebody_else_has_added(tmp_path: Path) -> None:
    async with scaled(tmp_path, replicas=1, max_instances=2) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 1)
        cluster.before_scaling = lambda: cluster.scale(4)
        clients = Clients(gw)
        clients.are(4)
        await gw.until(lambda: cluster.ready == 4)
        cluster.before_scaling = lambda: None
        await gw.until(lambda: len(cluster.pods) == 2)
        assert cluster.marked == set(cluster.deleted)
        clients.are(0)
        await clients.all_were_answered()


async def test_a_deployment_is_not_scaled_down_during_a_rollout(tmp_path: Path) -> None:
    """Kubernetes shrinks old and new ReplicaSets in proportion then, whichever pods are marked."""
    async with scaled(tmp_path, replicas=2, max_instances=1) as (cluster, gw):
        await cluster.relabel(min(cluster.pods), "5f6b7c8d9")
        await gw.until(lambda: len(serving(gw)) == 1)
        for _ in range(3):
            await gw.until(lambda before=gw.gateway.decision: gw.gateway.decision is not before)
        assert cluster.scaled == []
        await cluster.relabel(max(cluster.pods), "5f6b7c8d9")
        await gw.until(lambda: len(cluster.pods) == 1)
        assert cluster.marked == set(cluster.deleted)


async def test_a_pod_that_stays_although_it_was_to_go_loses_its_mark(tmp_path: Path) -> None:
    async with scaled(tmp_path, max_instances=2, cooldown_s=0) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 1)
        second = min(cluster.pods).replace("00001", "00002")
        cluster.unready = {second}
        clients = Clients(gw)
        clients.are(4)
        await gw.until(lambda: second in cluster.pods)
        cluster.before_scaling = lambda: cluster.scale(2)  # the Deployment changes: it is not scaled down
        clients.are(1)
        await gw.until(lambda: COST in cluster.pods[second]["metadata"].get("annotations", {}))
        clients.are(4)
        cluster.unready = set()
        await gw.until(lambda: len(serving(gw)) == 2)
        cluster.before_scaling = lambda: None
        clients.are(0)
        await gw.until(lambda: len(cluster.pods) == 1)
        assert set(serving(gw)) == cluster.pods.keys()
        await clients.all_were_answered()


async def test_a_deployment_that_cannot_be_read_stops_no_other_pool(tmp_path: Path) -> None:
    unknown = {"name": "unknown", "instance": INSTANCE | {"hardware": "a40"}, "deployment": "unknown"}
    async with scaled(tmp_path, unknown) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 1)
        assert cluster.scaled == [1]


async def test_an_api_server_that_cannot_be_reached_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from router.scaling.deployments import Deployments

    monkeypatch.setattr(background, "_logged_at", {})
    pools = {
        name: PoolConfig.model_validate({"name": name, "instance": INSTANCE, "deployment": NAME})
        for name in ("a", "b")
    }
    ports = {name: free_port() for name in pools}
    deployments = Deployments(
        cast(Gateway, None),
        lambda pool: ApiServer(f"http://127.0.0.1:{ports[pool.name]}", NAMESPACE, tmp_path),
    )
    await deployments.look(pools)
    await deployments.aclose()
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        f"scaling failed at http://127.0.0.1:{port} (ClientConnectorError); it continues"
        for port in ports.values()
    )


async def test_an_api_server_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    async with scaled(tmp_path) as (cluster, gw):
        await gw.until(lambda: len(serving(gw)) == 1)
        cluster.deployment["spec"], good = {"replicas": 1}, cluster.deployment["spec"]
        clients = Clients(gw)
        clients.are(4)
        await asyncio.sleep(0.5)  # decisions fail meanwhile
        cluster.deployment["spec"] = good
        await gw.until(lambda: len(serving(gw)) >= 2)
        clients.are(0)
        await clients.all_were_answered()


@pytest.mark.parametrize(
    ("deployment", "pod", "expected"),
    [
        ("vllm", "vllm-7d9c8b6f5-x2x9z", True),
        ("vllm", "vllm-l4-7d9c8b6f5-x2x9z", False),
        ("vllm", "vllm-0", False),
        # Kubernetes cuts what stands before the five characters at 58.
        ("d" * 48, "d" * 48 + "-7d9c8b6f5x2x9z", True),
        ("d" * 52, "d" * 52 + "-7d9c8x2x9z", True),
        ("d" * 60, "d" * 58 + "x2x9z", True),
        ("d" * 48, "d" * 49 + "-7d9c8b6fx2x9z", False),
    ],
)
def test_the_names_of_a_deployments_pods(deployment: str, pod: str, expected: bool) -> None:
    from router.scaling.deployments import _is_pod

    pool = PoolConfig.model_validate({"name": "small", "instance": INSTANCE, "deployment": deployment})
    assert _is_pod(pod, pool) == expected


async def test_thousands_of_pods_are_read_in_parts_and_only_what_is_needed_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.aio import client

    from router.scaling import deployments

    monkeypatch.setattr(deployments, "PAGE_PODS", 2)
    monkeypatch.setattr(client, "V1Pod", None)  # the client's objects
    pool = PoolConfig.model_validate({"name": "small", "instance": INSTANCE, "deployment": NAME})
    async with one_deployment() as (cluster, server):
        cluster.deployment["spec"]["replicas"] = 5
        cluster.unready = {f"{NAME}-7d9c8b6f5-00004"}
        while cluster.ready < 4:  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.01)
        marked, ended, *_ = cluster.pods
        await cluster.put(merged(cluster.pods[marked], {"metadata": {"annotations": {COST: "-1000"}}}))
        await cluster.put(merged(cluster.pods[ended], {"status": {"phase": "Failed"}}))
        reader = deployments.Deployments(
            cast(Gateway, None), lambda _: ApiServer(server, NAMESPACE, tmp_path)
        )
        cluster.asked.clear()
        found = await reader._read(pool)
        await reader.aclose()
    assert [each.get("continue") for each in cluster.asked] == [None, "2", "4"]
    assert found.pods.keys() == cluster.pods.keys() - {ended}
    assert [name for name, each in found.pods.items() if each.marked] == [marked]
    assert {name for name, each in found.pods.items() if not each.ready} == cluster.unready
    assert (found.replicas, found.rolls) == (5, False)


async def test_the_cluster_renews_its_token_and_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from router.scaling.deployments import Deployments

    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the API server is reached directly
    pool = PoolConfig.model_validate({"name": "small", "instance": INSTANCE, "deployment": NAME})
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    async with one_deployment(tls) as (cluster, server):
        deployments = Deployments(cast(Gateway, None), lambda _: ApiServer(server, NAMESPACE, tmp_path))
        for token in ("", "first", "second"):
            authority = trustme.CA()
            authority.issue_cert("127.0.0.1").configure_cert(tls)
            authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
            (tmp_path / "token").write_text(token)
            await deployments.look({"small": pool})
        await deployments.aclose()
    assert cluster.tokens == [None, "Bearer first", "Bearer second"]
