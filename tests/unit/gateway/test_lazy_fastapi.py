"""FastAPI is loaded when it is first needed; a fault there does not last."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.gateway import app as fastapi_app
from router.gateway.asgi import Application
from router.gateway.service import Gateway
from tests.waiting import until


async def test_a_failed_load_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    async def served(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["path"])

    def create(gateway: Gateway) -> Any:
        calls.append("created")
        if calls == ["created"]:
            raise MemoryError
        return served

    monkeypatch.setattr(fastapi_app, "create_app", create)
    application = Application(cast(Gateway, SimpleNamespace(metrics=None)))
    scope = {"type": "http", "method": "GET", "path": "/ui"}

    async def nothing(*_: Any) -> None:
        pass

    with pytest.raises(MemoryError):
        await application(scope, nothing, nothing)
    await application(scope, nothing, nothing)
    await application(scope, nothing, nothing)
    assert calls == ["created", "created", "/ui", "/ui"]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_server_that_stops_ends_a_request_without_an_error(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, sent = threading.Event(), list[dict[str, Any]]()

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    def create(gateway: Gateway) -> Any:
        loading.wait()
        return served

    async def send(message: Any) -> None:
        sent.append(message)

    monkeypatch.setattr(fastapi_app, "create_app", create)
    application = Application(cast(Gateway, SimpleNamespace(metrics=None)))
    request = asyncio.create_task(application({"type": "http", "path": "/ui"}, send, send))
    if begun:
        loading.set()
    try:
        await until(lambda: sent if begun else application._loading.locked())
        request.cancel()
        await request
    finally:
        loading.set()
    assert sent[0]["status"] == (200 if begun else 503)
