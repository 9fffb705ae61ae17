"""FastAPI is loaded when it is first needed; a fault there does not last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.gateway import app as fastapi_app
from router.gateway.asgi import Application
from router.gateway.service import Gateway


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
