"""Documents that replicas share. Each replica keeps a copy, which restores a Redis that lost its data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from router.store.redis_link import Link, Script

_CHANGE = Script(files("router.store").joinpath("redis_change.lua").read_text(encoding="utf-8"))


class Documents:
    """`link` is used for changes only, `prefix` begins all keys, `changed` is called with each new content."""

    def __init__(self, link: Link, prefix: str, changed: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._link = link
        self._prefix = prefix
        self._changed = changed
        self._joined: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._turn = asyncio.Lock()

    def rows(self) -> list[tuple[str, int, str]]:
        """Name, version and content of all documents, for a Redis that may have lost them."""
        return [(name, version, json.dumps(content)) for name, (version, content) in self._joined.items()]

    def received(self, name: str, version: int, text: str) -> None:
        """A version of a document; an older one is ignored."""
        if version > self._joined.get(name, (0, {}))[0]:
            content = json.loads(text)
            self._joined[name] = (version, content)
            self._changed(name, content)

    async def change(
        self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Edit a document. Raises StateError; the change may still have been made."""
        async with self._turn:
            while True:
                version, content = self._joined.get(name, (0, {}))
                edited = edit(content)
                try:
                    made, now_version, text = await self._link.run(
                        _CHANGE,
                        f"{self._prefix}documents",
                        self._prefix,
                        name,
                        str(version),
                        json.dumps(edited),
                    )
                finally:
                    await (
                        self._link.aclose()
                    )  # changes are rare, and the server may be another one by the next
                self.received(name, now_version, text)
                if made:
                    return edited
