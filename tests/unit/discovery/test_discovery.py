"""Following pods, against an API server that answers as Kubernetes does."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from router import discovery
from router.config import ConfigError, DiscoveryConfig, InstanceConfig
from router.discovery import ANNOTATION, PAGE_PODS, WATCH_S, KubernetesPods
from tests.unit.discovery.cluster import Cluster, cluster, pod

SERVES = {"llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct"}


def entry(server: str | None, **more: Any) -> DiscoveryConfig:
    return DiscoveryConfig.model_validate(
        {
            "kubernetes": {"selector": "app=vllm", "namespace": "llm", "server": server, **more},
            "instance": {"kind": "vllm", "serves": SERVES, "hardware": "l4", "max_concurrency": 16},
        }
    )


class Heard:
    """What discovery told, newest last."""

    def __init__(self) -> None:
        self.told: list[dict[str, InstanceConfig]] = []
        self._news = asyncio.Condition()

    async def hear(self, instances: tuple[InstanceConfig, ...]) -> None:
        self.told.append({each.name: each for each in instances})
        async with self._news:
            self._news.notify_all()

    async def until(self, names: set[str]) -> dict[str, InstanceConfig]:
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: bool(self.told) and set(self.told[-1]) == names)
        return self.told[-1]


@asynccontextmanager
async def following(
    tmp_path: Path, *names: str, tls: ssl.SSLContext | None = None, **more: Any
) -> AsyncIterator[tuple[Cluster, Heard]]:
    """Discovery that knows the pods of these names."""
    async with cluster(tls) as (state, url), aiohttp.ClientSession() as session:
        (tmp_path / "token").write_text("the-token")
        heard = Heard()
        task = asyncio.create_task(
            KubernetesPods(entry(url, **more), session, {}, tmp_path).follow(heard.hear)
        )
        try:
            for name in names:
                await state.put(pod(name))
            if names:
                await heard.until(set(names))
            yield state, heard
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_pods_come_change_and_go(tmp_path: Path) -> None:
    async with following(tmp_path) as (state, heard):
        await state.put(pod("vllm-0", "10.0.0.3"))
        found = await heard.until({"vllm-0"})
        assert found["vllm-0"].url == "http://10.0.0.3:8000"
        assert found["vllm-0"].hardware == "l4"
        assert found["vllm-0"].serves["llama-3.1-8b"].name == SERVES["llama-3.1-8b"]
        await state.put(pod("vllm-1", "fd00::7", ready=False))
        await state.put(pod("vllm-2", "fd00::8"))
        found = await heard.until({"vllm-0", "vllm-2"})
        assert found["vllm-2"].url == "http://[fd00::8]:8000"
        await state.put(pod("vllm-1", "fd00::7"))
        await heard.until({"vllm-0", "vllm-1", "vllm-2"})
        await state.put(pod("vllm-0", "10.0.0.3", deletionTimestamp="2026-01-01T00:00:00Z"))
        await heard.until({"vllm-1", "vllm-2"})
        await state.delete("vllm-2")
        await heard.until({"vllm-1"})
        path, limit = "/api/v1/namespaces/llm/pods", str(PAGE_PODS)
        assert state.asked[0] == {"path": path, "labelSelector": "app=vllm", "limit": limit}
        assert set(state.tokens) == {"Bearer the-token"}


async def test_thousands_of_pods_are_listed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "PAGE_PODS", 3)
    async with cluster() as (state, url), aiohttp.ClientSession() as session:
        for number in range(7):
            await state.put(pod(f"vllm-{number}"))
        pods = KubernetesPods(entry(url), session, {}, tmp_path)
        assert await pods._list() == "7"
        assert [each.get("continue") for each in state.asked] == [None, "3", "6"]
        assert set(pods._pods) == {f"vllm-{number}" for number in range(7)}


async def test_a_change_of_a_pod_looks_at_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aiohttp.ClientSession() as session:
        pods = KubernetesPods(entry("http://h"), session, {}, tmp_path)
        for number in range(20):
            pods._take({"type": "ADDED", "object": pod(f"vllm-{number}")})
        compared: list[Any] = []

        def equal(one: InstanceConfig, other: object) -> bool:
            compared.append((one, other))
            return vars(one) == getattr(other, "__dict__", None)

        monkeypatch.setattr(InstanceConfig, "__eq__", equal)
        for kind, ip, changes in (("MODIFIED", "10.0.0.1", False), ("MODIFIED", "10.0.0.9", True)):
            pods._changed.clear()
            pods._take({"type": kind, "object": pod("vllm-7", ip)})
            assert pods._changed.is_set() == changes
        pods._take({"type": "DELETED", "object": pod("vllm-7")})
        assert len(compared) <= 3
        assert len(pods._pods) == 19


async def test_after_a_watch_that_ends_in_time_the_next_one_goes_on_from_its_version(tmp_path: Path) -> None:
    async with following(tmp_path, "vllm-0") as (state, heard):
        await asyncio.sleep(WATCH_S + 10)
        await state.put(pod("vllm-1"))
        await heard.until({"vllm-0", "vllm-1"})
        assert state.lists == 1


async def test_after_each_watch_that_breaks_off_late_the_next_one_begins_soon(tmp_path: Path) -> None:
    """As behind a load balancer that ends idle connections."""
    async with following(tmp_path) as (state, heard):
        for number in range(8):
            await asyncio.sleep(40)
            state.hang_up()
            await state.put(pod(f"vllm-{number}"))
            async with asyncio.timeout(2):
                await heard.until({f"vllm-{each}" for each in range(number + 1)})


async def test_the_cluster_renews_its_authority(tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def renew() -> None:
        authority = trustme.CA()
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))

    renew()
    async with following(tmp_path, "vllm-0", tls=tls) as (state, heard):
        renew()
        state.hang_up()
        await state.put(pod("vllm-1"))
        await heard.until({"vllm-0", "vllm-1"})


async def test_a_connection_that_is_dead_is_noticed(tmp_path: Path) -> None:
    async with following(tmp_path, "vllm-0") as (state, heard):
        state.late_s, asked = 1e6, len(state.asked)
        await state.put(pod("vllm-1"))
        await asyncio.sleep(80)
        assert len(state.asked) > asked
        await heard.until({"vllm-0", "vllm-1"})


async def test_a_pod_that_has_ended_is_no_instance(tmp_path: Path) -> None:
    """An evicted pod may keep the condition that it was ready."""
    async with following(tmp_path, "vllm-0", "vllm-1") as (state, heard):
        evicted = pod("vllm-0")
        evicted["status"]["phase"] = "Failed"
        await state.put(evicted)
        await heard.until({"vllm-1"})


async def test_the_log_says_what_the_api_server_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(tmp_path, "vllm-0") as (state, heard):
        state.forbidden = True
        state.hang_up()
        await asyncio.sleep(300)
        assert 'answers 403: pods is forbidden: User "headway" cannot list' in caplog.text
        assert len(caplog.records) < 20
        assert set(heard.told[-1]) == {"vllm-0"}
        state.forbidden = False
        await state.put(pod("vllm-1"))
        await asyncio.sleep(31)
        await heard.until({"vllm-0", "vllm-1"})


async def test_a_watch_that_is_too_far_behind_lists_again(tmp_path: Path) -> None:
    async with following(tmp_path, "vllm-0") as (state, heard):
        lists = state.lists
        state.changes.append({"type": "ERROR", "object": {"code": 410, "metadata": {}}})
        state.oldest = state.version + 1
        await state.put(pod("vllm-1"))
        await heard.until({"vllm-0", "vllm-1"})
        assert state.lists > lists


async def test_an_api_server_that_is_away_takes_no_instance_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(tmp_path, "vllm-0") as (state, heard):
        state.broken = True
        state.hang_up()
        await state.put(pod("vllm-1"))
        async with asyncio.timeout(20):
            while "answers 500" not in caplog.text:  # noqa: ASYNC110 (a log has no event)
                await asyncio.sleep(0.02)
        assert set(heard.told[-1]) == {"vllm-0"}
        state.broken = False
        await heard.until({"vllm-0", "vllm-1"})
    assert "the-token" not in caplog.text


async def test_a_pod_says_what_is_different_about_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with following(tmp_path) as (state, heard):
        own = json.dumps({"hardware": "h100-80g", "max_concurrency": 64})
        await state.put(pod("vllm-0", annotations={ANNOTATION: own}))
        for wrong in (
            '{"url": "http://10.9.9.9"}',
            '{"api_key_env": "HEADWAY_ADMIN_KEY"}',
            "[1]",
            "{",
            '{"hardwear": "l4"}',
        ):
            await state.put(pod(f"wrong-{len(state.pods)}", annotations={ANNOTATION: wrong}))
        await state.put(pod("vllm-9"))
        found = await heard.until({"vllm-0", "vllm-9"})
        assert (found["vllm-0"].hardware, found["vllm-0"].max_concurrency) == ("h100-80g", 64)
        assert found["vllm-9"].hardware == "l4"
    assert caplog.text.count("is ignored") == 5
    assert "did you mean 'hardware'?" in caplog.text


async def test_outside_a_cluster_the_server_must_be_named(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ConfigError, match=r"kubernetes\.server: is not set"):
            KubernetesPods(entry(None), session, {}, tmp_path)
        with pytest.raises(ConfigError, match=r"kubernetes\.namespace: is not set"):
            KubernetesPods(entry("http://127.0.0.1:1", namespace=None), session, {}, tmp_path)
        (tmp_path / "namespace").write_text("llm\n")
        inside = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        KubernetesPods(entry(None, namespace=None), session, inside, tmp_path)
