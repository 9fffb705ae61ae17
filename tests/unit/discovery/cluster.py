"""The part of a Kubernetes API server that discovery asks: a list of pods and a watch from its version."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


def pod(name: str, ip: str = "10.0.0.1", *, ready: bool = True, **more: Any) -> dict[str, Any]:
    """A pod as the API gives it; `annotations` and `deletionTimestamp` may be set."""
    about = {"name": name, "labels": {"app": "vllm"}, **more}
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {"metadata": about, "status": {"phase": "Running", "podIP": ip, "conditions": conditions}}


class Cluster:
    """Keeps every change, so a watch from any version that it still has can be answered."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.changes: list[dict[str, Any]] = []
        self.oldest = 0  # versions before this one are forgotten: a watch from there is a 410
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        self.broken = False
        self.forbidden = False
        self.lists = 0
        self.late_s = 0.0  # from a change until a watch tells it
        self._news = asyncio.Condition()
        self._watches: set[asyncio.Task[Any]] = set()

    @property
    def version(self) -> int:
        return len(self.changes)

    async def put(self, one: dict[str, Any]) -> None:
        kind = "MODIFIED" if one["metadata"]["name"] in self.pods else "ADDED"
        self.pods[one["metadata"]["name"]] = one
        await self._change(kind, one)

    async def delete(self, name: str) -> None:
        await self._change("DELETED", self.pods.pop(name))

    async def _change(self, kind: str, one: dict[str, Any]) -> None:
        about = {**one["metadata"], "resourceVersion": str(self.version + 1)}
        self.changes.append({"type": kind, "object": {**one, "metadata": about}})
        async with self._news:
            self._news.notify_all()

    def hang_up(self) -> None:
        """Break every watch off."""
        for task in self._watches:
            task.cancel()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append({"path": request.path, **request.query})
        self.tokens.append(request.headers.get("authorization"))
        if self.broken:
            return web.Response(status=500)
        if self.forbidden:
            status = {
                "kind": "Status",
                "code": 403,
                "message": 'pods is forbidden: User "headway" cannot list',
            }
            return web.json_response(status, status=403)
        if "watch" not in request.query:
            start, pods = int(request.query.get("continue", "0")), list(self.pods.values())
            self.lists += not start
            end = start + int(request.query.get("limit", len(pods)))
            about = {"resourceVersion": str(self.version), "continue": str(end) if end < len(pods) else ""}
            return web.json_response({"metadata": about, "items": pods[start:end]})
        at = int(request.query["resourceVersion"])
        if at < self.oldest:
            return web.Response(status=410)
        stream = web.StreamResponse()
        await stream.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        ends_at = asyncio.get_running_loop().time() + int(request.query["timeoutSeconds"])
        try:
            while True:
                async with asyncio.timeout_at(ends_at), self._news:
                    await self._news.wait_for(lambda: self.version > at)  # noqa: B023
                await asyncio.sleep(self.late_s)
                for change in self.changes[at:]:
                    line = json.dumps(change).encode() + b"\n"
                    await stream.write(line[:20])  # a line in two pieces
                    await stream.write(line[20:])
                at = self.version
        except TimeoutError:
            return stream
        finally:
            self._watches.discard(task)


@asynccontextmanager
async def cluster(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Cluster, str]]:
    """A running API server and its URL."""
    state = Cluster()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/pods", state.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield state, f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        state.hang_up()
        await runner.cleanup()
