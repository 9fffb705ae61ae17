"""Discovers instances by label: the ready pods of a Kubernetes cluster, kept current.

It lists the pods once and then watches for changes from the list's version. When the watch ends, it starts again from the
last version; when it is too far behind (410), it lists again (kubernetes.io/docs/reference/using-api/api-concepts,
"Efficient detection of changes"). While the API server does not answer, the known instances stay in use: their engines
still serve.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from router.background import failed
from router.config import ConfigError, DiscoveryConfig, InstanceConfig, Problem, parse_instance

logger = logging.getLogger("headway")

#: A pod annotation with JSON that overrides fields of the template.
ANNOTATION = "headway/instance"
#: Fields that a pod must not set: its identity, and the gateway's secrets and files that are used for it. Otherwise anyone
#: who may annotate a pod could make the gateway send a secret there.
_NOT_ITS_OWN = frozenset({"name", "url", "api_key_env", "headers_env", "ca_file", "tokenizer"})
#: The directory with the token, the CA and the namespace of a pod's service account.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: A connection that is cut without a word is noticed when the watch should have ended.
WATCH_S = 60
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
#: Pods change in bursts: changes within this time are reported together.
_GATHER_S = 0.2
_MAX_LINE_BYTES = 8 * 1024 * 1024
#: Pods are listed by so many: an answer is parsed in one step of the event loop.
PAGE_PODS = 250

#: Exceptions from parsing an answer that is not a pod list or a pod event, for example a proxy's error page.
_NO_LIST = (ValueError, LookupError, TypeError, AttributeError)

Follower = Callable[[tuple[InstanceConfig, ...]], Awaitable[None]]


class _Behind(Exception):
    """The watch cannot continue from its version: a new list is needed."""


class _Refused(Exception):
    """The API server answers with an error: its status and its message."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A cluster's API server and the namespace to use there. `account` is the directory of the gateway's service account."""

    url: str
    namespace: str
    account: Path

    def authority(self) -> str | None:
        """The certificates of the cluster's authority (None: the system's hold). They and the token are read each time,
        because the cluster renews them."""
        return _text(self.account / "ca.crt")

    def token(self) -> str | None:
        """The gateway's token."""
        return _text(self.account / "token")


def server_of(
    config: DiscoveryConfig, environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT
) -> ApiServer:
    """The API server of a `discovery` entry. If the entry names no server or no namespace, they come from `environment`
    and from the service account. Raises ConfigError if they are in neither."""
    kubernetes = config.kubernetes
    server = kubernetes.server
    if server is None:
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host:
            raise _unknown("server")
        host = f"[{host}]" if ":" in host else host
        server = f"https://{host}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"
    namespace = kubernetes.namespace or _text(account / "namespace")
    if namespace is None:
        raise _unknown("namespace")
    return ApiServer(server, namespace, account)


class KubernetesPods:
    """Follows the pods of one `discovery` entry at its API server (`server_of`)."""

    def __init__(
        self,
        config: DiscoveryConfig,
        session: aiohttp.ClientSession,
        environment: Mapping[str, str] = os.environ,
        account: Path = ACCOUNT,
    ) -> None:
        self._config = config
        self._template = config.instance.model_dump(mode="json", exclude_unset=True)
        self._session = session
        self._server = server_of(config, environment, account)
        self._url = f"{self._server.url}/api/v1/namespaces/{self._server.namespace}/pods"
        self._pods: dict[str, InstanceConfig] = {}
        self._changed = asyncio.Event()

    async def follow(self, follower: Follower) -> None:
        """Call `follower` with the current instances, now and after each change, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._notify(follower))
            tasks.create_task(self._watch())

    async def _notify(self, follower: Follower) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(_GATHER_S)
            self._changed.clear()
            try:
                await follower(tuple(self._pods[name] for name in sorted(self._pods)))
            except ConfigError as error:
                logger.error("discovered instances are not applied: %s", error)
            except Exception as error:  # noqa: BLE001 (the task's root: it tries again)
                failed("discovery", error)
                self._changed.set()
                await asyncio.sleep(_LONGEST_PAUSE_S)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        version: str | None = None
        while True:
            began = loop.time()
            last, version = version, None  # a watch that fails needs a new list
            try:
                version = await self._follow_from(await self._list() if last is None else last)
            except _Behind:
                pass
            except _Refused as error:
                logger.warning("discovery: %s answers %s", self._url, error)
            except (aiohttp.ClientError, TimeoutError, OSError, *_NO_LIST) as error:
                logger.warning("discovery: %s does not answer (%s)", self._url, type(error).__name__)
            except Exception as error:  # noqa: BLE001 (the task's root)
                failed("discovery", error)
            if loop.time() - began > _LONGEST_PAUSE_S:  # a server may end every watch at once
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _list(self) -> str:
        """Load all pods; returns the version of the list."""
        pods: dict[str, InstanceConfig] = {}
        query = {"limit": str(PAGE_PODS)}
        while True:
            async with self._get(query, aiohttp.ClientTimeout(total=30)) as answer:
                await check(answer)
                listed = orjson.loads(await answer.read())
            pods |= {found.name: found for pod in listed["items"] if (found := self._instance(pod))}
            about = listed["metadata"]
            if not about.get("continue"):
                break
            query["continue"] = about["continue"]
        if pods != self._pods:
            self._pods = pods
            self._changed.set()
        return str(about["resourceVersion"])

    async def _follow_from(self, version: str) -> str:
        """Apply changes until the server ends the watch; returns the last version."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=WATCH_S + 15, sock_connect=10)
        async with self._get(query, timeout) as answer:
            if answer.status == 410:
                raise _Behind
            await check(answer)
            rest = b""
            async for part in answer.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")
                if len(rest) > _MAX_LINE_BYTES:
                    raise ValueError("a line of the watch is too long")
                for line in filter(None, lines):
                    version = self._take(orjson.loads(line)) or version
        return version

    def _take(self, event: dict[str, Any]) -> str | None:
        """Apply one event of a watch; returns its version."""
        kind, pod = event["type"], event["object"]
        if kind == "ERROR":
            raise _Behind
        if kind != "BOOKMARK":
            name = pod["metadata"]["name"]
            found = None if kind == "DELETED" else self._instance(pod)
            if found != self._pods.pop(name, None):
                self._changed.set()
            if found is not None:
                self._pods[name] = found
        version: str | None = pod["metadata"].get("resourceVersion")
        return version

    def _get(self, query: dict[str, str], timeout: aiohttp.ClientTimeout) -> Any:
        secure = self._url.startswith("https")
        token = self._server.token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return self._session.get(
            self._url,
            params={"labelSelector": self._config.kubernetes.selector, **query},
            headers=headers,
            timeout=timeout,
            ssl=_trusting(self._server.authority()) if secure else False,
        )

    def _instance(self, pod: Mapping[str, Any]) -> InstanceConfig | None:
        """The instance of a pod; None if the pod is not ready or its annotation is invalid."""
        about, address = pod["metadata"], (pod.get("status") or {}).get("podIP")
        if not is_ready(pod) or not address or has_ended(pod):
            return None
        kubernetes = self._config.kubernetes
        host = f"[{address}]" if ":" in address else address
        annotation = (about.get("annotations") or {}).get(ANNOTATION)
        try:
            own = {} if annotation is None else orjson.loads(annotation)
            if not isinstance(own, dict) or _NOT_ITS_OWN & own.keys():
                raise ValueError
            url = f"{kubernetes.scheme}://{host}:{kubernetes.port}"
            return parse_instance({**self._template, **own, "name": about["name"], "url": url})
        except ConfigError as error:
            reason = str(error)
        except ValueError:
            reason = f"{ANNOTATION} is not a JSON object, or it sets one of {', '.join(sorted(_NOT_ITS_OWN))}"
        logger.warning("discovery: pod %s is ignored: %s", about["name"], reason)
        return None


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is ready to serve."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has ended, or is being deleted."""
    phase = (pod.get("status") or {}).get("phase")
    return bool(pod["metadata"].get("deletionTimestamp")) or phase in {"Failed", "Succeeded"}


async def check(answer: aiohttp.ClientResponse) -> None:
    """Raise an exception for an error, with the message of its Status (such as who may not list pods)."""
    if answer.status < 400:
        return
    try:
        reason = orjson.loads(await answer.content.read(65536))["message"]
    except _NO_LIST:
        reason = answer.reason
    raise _Refused(f"{answer.status}: {' '.join(str(reason).split())[:500]}")


@lru_cache(maxsize=2)
def _trusting(authority: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _unknown(what: str) -> ConfigError:
    reason = "is not set, and the gateway does not run in a pod"
    return ConfigError("discovery", [Problem(("kubernetes", what), reason)])
