"""The actuator `kubernetes`: the pods of a pool are those of a Deployment.

A pool grows by the Deployment's scale; `discovery` finds the pods. To shrink, instances drain first: they get no new request,
and leave the fleet when no replica has a request there. Then their pods are marked as the first to be deleted (the annotation
`controller.kubernetes.io/pod-deletion-cost`, kubernetes.io, "ReplicaSet", Pod deletion cost), and the Deployment is scaled
down by their number. A ReplicaSet deletes pods that are not ready before all others, so this step waits until all are ready.
A Deployment that has changed since it was read is not scaled, and one in a rollout is not scaled down: old and new ReplicaSets
then shrink in proportion, whichever pods are marked. So no running stream is cut. Needs the extra `kubernetes`,
the official client.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from kubernetes.aio import client

from router.background import surviving
from router.config import PoolConfig
from router.discovery import PAGE_PODS, ApiServer, check, has_ended, is_ready
from router.gateway.fleet.overlay import restoring
from router.gateway.service import Gateway
from router.scaling.actuator import Actuator, PoolState, steps

logger = logging.getLogger("headway")

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
#: The label of a pod with its ReplicaSet's hash (kubernetes.io, "Deployments", Pod-template-hash label).
REVISION = "pod-template-hash"
#: Below that of pods without the annotation, which is 0.
_FIRST_TO_GO = "-1000"
_TIMEOUT_S = 10.0
_CONFLICT = 409


class _Pod(NamedTuple):
    """`marked`: it has a deletion cost of ours."""

    ready: bool
    marked: bool


@dataclass(frozen=True, slots=True)
class _Deployment:
    """A Deployment as last read from the API server with this URL, with its resource version. `pods` are those that are not being
    deleted. `rolls`: they are of several revisions."""

    server: str
    replicas: int
    version: str
    pods: Mapping[str, _Pod]
    rolls: bool


class Deployments(Actuator):
    """Scales Deployments. `server_of` gives the API server of a pool, with its namespace; it raises ConfigError."""

    def __init__(self, gateway: Gateway, server_of: Callable[[PoolConfig], ApiServer]) -> None:
        super().__init__(gateway)
        self._server_of = server_of
        # By URL and certificates of the authority.
        self._clients: dict[tuple[str, str | None], client.ApiClient] = {}
        self._found: dict[str, _Deployment] = {}  # those that could be read

    async def look(self, pools: Mapping[str, PoolConfig]) -> None:
        """Read the Deployments and their pods. One that cannot be read stays as it is."""
        self._found = {}
        await asyncio.gather(*map(self._look, pools.values()))

    async def _look(self, pool: PoolConfig) -> None:
        with surviving("scaling"):
            server = self._server_of(pool).url
            with surviving("scaling", server):
                self._found[pool.name] = await self._read(pool)

    def starting(self, pool: str) -> int:
        """The number of a pool's pods that are not in the fleet yet, and have not left it."""
        found = self._found.get(pool)
        if found is None:
            return 0
        known = {each.name for each in self._gateway.config.instances} | self._gateway.changes.overlay.removed
        return max(0, found.replicas - sum(name in known for name in found.pods))

    async def scale(self, pools: Mapping[str, PoolConfig], wanted: Mapping[str, int]) -> None:
        for name, found in self._found.items():
            with surviving("scaling", found.server):
                await self._scale(pools[name], wanted[name], found)

    async def aclose(self) -> None:
        """Close the connections. The pods stay."""
        for each in self._clients.values():
            await each.close()

    # --- one pool --------------------------------------------------------------------------------------
    async def _scale(self, pool: PoolConfig, wanted: int, found: _Deployment) -> None:
        await self._forget(pool, found)
        left = sorted(self._gateway.changes.overlay.removed & found.pods.keys())
        todo = steps(wanted, self._state(pool, found))
        await self._keep_and_drain(todo)
        if todo.start:
            # Some that have left the fleet still run. Which of them stay is known when the others are gone. Those that
            # an operator has removed do not come back.
            leaving = max(0, len(found.pods) - found.replicas)
            drained = [name for name in left if name in self._gateway.changes.overlay.scaled_down]
            back = drained[leaving : leaving + todo.start]
            if not leaving:
                for name in back:
                    await self._mark(pool, name, None)
                await self._edit(restoring(back))
            await self._set_replicas(pool, found.replicas + todo.start - len(back))
        elif len(found.pods) > found.replicas or found.rolls:
            return  # what was scaled down before is not gone yet, or it is not known which revision shrinks
        elif todo.abandon:
            going = self._without_requests(found)[: todo.abandon]
            for name in going:
                await self._mark(pool, name, _FIRST_TO_GO)
            missing = found.replicas - len(found.pods)
            await self._set_replicas(pool, found.replicas - min(todo.abandon, missing + len(going)))
        elif left and len(found.pods) == found.replicas and all(pod.ready for pod in found.pods.values()):
            for name in found.pods:
                if name in left:
                    await self._mark(pool, name, _FIRST_TO_GO)
                elif found.pods[name].marked:  # it was to go before it was ready
                    await self._mark(pool, name, None)
            await self._set_replicas(pool, found.replicas - len(left))

    def _state(self, pool: PoolConfig, found: _Deployment) -> PoolState:
        ready: dict[str, int] = {}
        drains: dict[str, int] = {}
        silent: set[str] = set()
        fixed = 0
        for config in self._gateway.config.instances:
            if not pool.has(config):
                continue
            instance = self._gateway.runner.scheduler.instances[config.name]
            if config.name not in found.pods:  # its own pods are gone then, or came after they were read
                own = _is_pod(config.name, pool)
                fixed += instance.healthy and not instance.draining and not own
            elif not instance.draining:
                ready[config.name] = instance.in_flight
                if not instance.healthy:
                    silent.add(config.name)
            elif config.name in self._gateway.changes.overlay.scaled_down:
                drains[config.name] = instance.in_flight
        return PoolState(ready, drains, fixed, self.starting(pool.name), silent)

    def _without_requests(self, found: _Deployment) -> list[str]:
        """The pods that are not ready and have no requests. One that served may still have running streams."""
        changes = self._gateway.changes
        return [
            name for name, pod in found.pods.items() if not (pod.ready or changes.may_have_requests(name))
        ]

    async def _forget(self, pool: PoolConfig, found: _Deployment) -> None:
        """Remove the pods that are gone from the list of removed instances, once `discovery` does not find them either."""
        changes = self._gateway.changes
        gone = [name for name in changes.overlay.removed if _is_pod(name, pool) and name not in found.pods]
        gone = [name for name in gone if not changes.finds(name)]
        if gone and len(found.pods) <= found.replicas:
            await self._edit(restoring(gone))

    # --- the cluster -----------------------------------------------------------------------------------
    async def _read(self, pool: PoolConfig) -> _Deployment:
        server = self._server_of(pool)
        namespace = server.namespace
        apps, core = client.AppsV1Api(self._client(pool)), client.CoreV1Api(self._client(pool))
        deployment = await apps.read_namespaced_deployment(
            pool.deployment, namespace, _request_timeout=_TIMEOUT_S
        )
        pods: dict[str, _Pod] = {}
        revisions = set()
        more: str | None = None
        while more != "":
            # The client takes a millisecond to make the objects of one pod.
            answer = await core.list_namespaced_pod_without_preload_content(
                namespace,
                label_selector=_selector(deployment.spec.selector),
                limit=PAGE_PODS,
                _continue=more,
                _request_timeout=_TIMEOUT_S,
            )
            async with answer:
                await check(answer)
                listed = orjson.loads(await answer.read())
            for pod in listed["items"]:
                about = pod["metadata"]
                if not has_ended(pod):
                    marked = (about.get("annotations") or {}).get(DELETION_COST) == _FIRST_TO_GO
                    pods[about["name"]] = _Pod(is_ready(pod), marked)
                    revisions.add((about.get("labels") or {}).get(REVISION))
            more = listed["metadata"].get("continue", "")
        replicas = deployment.spec.replicas
        version = deployment.metadata.resource_version
        return _Deployment(server.url, 1 if replicas is None else replicas, version, pods, len(revisions) > 1)

    async def _set_replicas(self, pool: PoolConfig, replicas: int) -> None:
        found = self._found[pool.name]
        if replicas == found.replicas:
            return
        # With its version: if the Deployment has changed since, other pods may be deleted than were chosen, even by a
        # number that was larger when it was read.
        about = {"resourceVersion": found.version}
        try:
            await client.AppsV1Api(self._client(pool)).patch_namespaced_deployment_scale(
                pool.deployment,
                self._server_of(pool).namespace,
                {"metadata": about, "spec": {"replicas": replicas}},
                _request_timeout=_TIMEOUT_S,
            )
        except client.ApiException as error:
            if error.status != _CONFLICT:
                raise
            logger.info("deployment %s has changed meanwhile: it is scaled later", pool.deployment)
        else:
            logger.info("deployment %s is scaled to %d", pool.deployment, replicas)

    async def _mark(self, pool: PoolConfig, pod: str, cost: str | None) -> None:
        """Set or remove a pod's deletion cost."""
        await client.CoreV1Api(self._client(pool)).patch_namespaced_pod(
            pod,
            self._server_of(pool).namespace,
            {"metadata": {"annotations": {DELETION_COST: cost}}},
            _request_timeout=_TIMEOUT_S,
        )

    def _client(self, pool: PoolConfig) -> client.ApiClient:
        server = self._server_of(pool)
        to = server.url, server.authority()
        made = self._clients.get(to)
        if made is None:
            configuration = client.Configuration(host=server.url)
            configuration.ca_cert_data = to[1]
            # No proxy of the environment, as in `discovery`: aiohttp does not read networks in NO_PROXY.
            configuration.client_session_kwargs = {"trust_env": False}
            made = self._clients[to] = client.ApiClient(configuration)
        token = server.token()
        if token is not None:
            made.configuration.api_key["BearerToken"] = f"Bearer {token}"
        return made


def _is_pod(name: str, pool: PoolConfig) -> bool:
    """Whether an instance has the name of a pod of the pool's Deployment: that of a ReplicaSet and a dash, cut at 58 characters,
    and five characters."""
    start, own = name[:-5], f"{pool.deployment}-"[:58]
    rest = "[a-z0-9]+-" if len(start) < 58 else "[a-z0-9]*-?"
    return re.fullmatch(rf"{re.escape(own)}{rest}[a-z0-9]{{5}}", name) is not None


def _selector(selector: Any) -> str:
    """A label selector as the API's query takes it."""
    parts = [f"{key}={value}" for key, value in (selector.match_labels or {}).items()]
    for each in selector.match_expressions or ():
        values: Sequence[str] = each.values or ()
        if each.operator in {"In", "NotIn"}:
            parts.append(f"{each.key} {each.operator.lower()} ({','.join(values)})")
        else:
            parts.append(each.key if each.operator == "Exists" else f"!{each.key}")
    return ",".join(parts)
