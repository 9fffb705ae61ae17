"""A Kubernetes API server with one Deployment, in this process. Its pods are emulated engines on addresses of loopback.

Each object that it sends, and each one as a patch leaves it, is checked against the published schemas of Kubernetes' OpenAPI
document (package `kubernetes-validate`, strict form). A controller makes and deletes pods as a ReplicaSet does: pods that
are not ready go first, then by `controller.kubernetes.io/pod-deletion-cost`, then the newest (kubernetes.io, "ReplicaSet").
Deleting a pod cuts its streams.
"""

from __future__ import annotations

import asyncio
import copy
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import kubernetes_validate
from aiohttp import web

from backends.emulator.instance import EmulatedInstance
from tests.servers.ports import HeldPort
from tests.unit.discovery.cluster import Cluster

VERSION = "1.33"
COST = "controller.kubernetes.io/pod-deletion-cost"
TEMPLATE = "pod-template-hash"
NAMESPACE, NAME = "engines", "vllm-l4"


def checked(one: dict[str, Any]) -> dict[str, Any]:
    kubernetes_validate.validate(one, VERSION, strict=True)
    return one


def merged(one: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386), which strategic merge patches of maps are too."""
    if not isinstance(patch, dict):
        return patch
    result = dict(one) if isinstance(one, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class OneDeployment(Cluster):
    """A Deployment of emulated engines that listen on `port`."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.engines: dict[str, EmulatedInstance] = {}
        self.deleted: list[str] = []
        self.marked: set[str] = set()  # those with a deletion cost when they were deleted
        self.scaled: list[int] = []
        self.paused = False
        self.unready: set[str] = set()  # pods that are not to be ready
        self.before_scaling: Callable[[], None] = lambda: None
        self._made = 0
        labels = {"app": "vllm"}
        self.deployment: dict[str, Any] = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "resourceVersion": "1"},
            "spec": {
                "replicas": 0,
                "selector": {
                    "matchLabels": labels,
                    "matchExpressions": [{"key": "app", "operator": "In", "values": ["vllm"]}],
                },
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai"}]},
                },
            },
        }

    # --- the API ---------------------------------------------------------------------------------------
    async def read_deployment(self, request: web.Request) -> web.Response:
        assert request.match_info["name"] == NAME
        return web.json_response(checked(self.deployment))

    async def patch_scale(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/strategic-merge-patch+json"
        self.before_scaling()
        about = self.deployment["metadata"]
        scale = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": about,
            "spec": {"replicas": self.deployment["spec"]["replicas"]},
        }
        scale = checked(merged(scale, await request.json()))
        if scale["metadata"] != about:
            return web.json_response({"message": "the object has been modified"}, status=409)
        self.scale(scale["spec"]["replicas"])
        self.scaled.append(scale["spec"]["replicas"])
        return web.json_response(scale)

    def scale(self, replicas: int) -> None:
        """Set the number of pods, as any client may."""
        self.deployment["spec"]["replicas"] = replicas
        self._deployment_changed()

    def _deployment_changed(self) -> None:
        about = self.deployment["metadata"]
        self.deployment["metadata"] = about | {"resourceVersion": str(int(about["resourceVersion"]) + 1)}

    async def patch_pod(self, request: web.Request) -> web.Response:
        name, patch = request.match_info["name"], await request.json()
        if name not in self.pods:
            return web.json_response({"message": "not found"}, status=404)
        await self.put(checked(merged(self.pods[name], patch)))
        return web.json_response(self.pods[name])

    async def pods_of(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            assert request.query["labelSelector"] in {"app=vllm", "app=vllm,app in (vllm)"}
        return await self.answer(request)

    # --- the controller --------------------------------------------------------------------------------
    async def control(self) -> None:
        while True:
            replicas = self.deployment["spec"]["replicas"]
            if not self.paused:
                while len(self.pods) < replicas:
                    await self._make()
                marked = {
                    name for name, pod in self.pods.items() if COST in pod["metadata"].get("annotations", {})
                }
                for name in sorted(self.pods, key=self._goes)[: max(0, len(self.pods) - replicas)]:
                    await self.delete(name)
                    self.deleted.append(name)
                    self.marked |= {name} & marked
                    await self.engines.pop(name).stop()
                    self._deployment_changed()
            for name in self.pods.keys() & self.engines.keys():
                await self._set_ready(name)
            await asyncio.sleep(0.05)

    def _goes(self, name: str) -> tuple[bool, int, int]:
        about = self.pods[name]["metadata"]
        cost = int(about.get("annotations", {}).get(COST, "0"))
        return self._is_ready(name), cost, -int(name.rpartition("-")[2])

    @property
    def ready(self) -> int:
        """The number of pods that are ready."""
        return sum(map(self._is_ready, self.pods))

    def _is_ready(self, name: str) -> bool:
        return bool(self.pods[name]["status"]["conditions"][0]["status"] == "True")

    async def _make(self) -> None:
        self._made += 1
        name, address = f"{NAME}-7d9c8b6f5-{self._made:05}", f"127.0.0.{self._made + 10}"
        await self.put(
            checked(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": name,
                        "namespace": NAMESPACE,
                        "labels": {"app": "vllm", TEMPLATE: "7d9c8b6f5"},
                    },
                    "spec": copy.deepcopy(self.deployment["spec"]["template"]["spec"]),
                    "status": {
                        "phase": "Running",
                        "podIP": address,
                        "conditions": [{"type": "Ready", "status": "False"}],
                    },
                }
            )
        )
        self.engines[name] = EmulatedInstance(
            name,
            "vllm",
            {"up/llama-3.1-8b": "llama-3.1-8b@l4"},
            host=address,
            port=self.port,
            speed=10,
            on_stop="cut",
        )
        await self.engines[name].start()
        self._deployment_changed()

    async def relabel(self, name: str, template: str) -> None:
        """Let a pod be of another revision of the Deployment."""
        pod = copy.deepcopy(self.pods[name])
        pod["metadata"]["labels"][TEMPLATE] = template
        await self.put(checked(pod))

    async def _set_ready(self, name: str) -> None:
        if self._is_ready(name) == (name in self.unready):
            pod = copy.deepcopy(self.pods[name])
            pod["status"]["conditions"][0]["status"] = str(name not in self.unready)
            await self.put(checked(pod))
            self._deployment_changed()


@asynccontextmanager
async def one_deployment(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[OneDeployment, str]]:
    """A running API server and its URL."""
    held = HeldPort()
    state = OneDeployment(held.number)
    app = web.Application()
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    app.router.add_get(pods, state.pods_of)
    app.router.add_patch(pods + "/{name}", state.patch_pod)
    app.router.add_get(deployments + "/{name}", state.read_deployment)
    app.router.add_patch(deployments + "/{name}/scale", state.patch_scale)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    controller = asyncio.create_task(state.control())
    try:
        yield state, f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        controller.cancel()
        await asyncio.gather(controller, return_exceptions=True)
        state.hang_up()
        await runner.cleanup()
        for engine in state.engines.values():
            await engine.stop()
        held.close()
