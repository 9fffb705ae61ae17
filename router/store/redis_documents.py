"""Documents that replicas share: each keeps them in memory too, so that a Redis that forgot gets them back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from router.store.redis_link import Link, Script

_CHANGE = Script(files("router.store").joinpath("redis_change.lua").read_text(encoding="utf-8"))


class Documents:
    """`link` is for changes alone, `prefix` that of all keys, `changed` is called with each new content."""

    def __init__(self, link: Link, prefix: str, changed: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._link = link
        self._prefix = prefix
        self._changed = changed
        self._known: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._turn = asyncio.Lock()

    def rows(self) -> list[tuple[str, int, str]]:
        """All that is known, to tell a Redis that may have forgotten: name, version, content."""
        return [(name, version, json.dumps(content)) for name, (version, content) in self._known.items()]

    def heard(self, name: str, version: int, text: str) -> None:
        """A version of a document. An older one is nothing new."""
        if version > self._known.get(name, (0, {}))[0]:
            content = json.loads(text)
            self._known[name] = (version, content)
            self._changed(name, content)

    async def change(
        self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Replace a document by its edited self. Raises StateError; then the change may have been made all the same."""
        async with self._turn:
            while True:
                version, content = self._known.get(name, (0, {}))
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
                    await self._link.aclose()  # changes are rare: the server may be another one by the next
                self.heard(name, now_version, text)
                if made:
                    return edited
