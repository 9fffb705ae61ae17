"""Looking a finished request up, which another replica may still be writing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.gateway import records


class Late:
    """A store that has the row when it is asked for the second time."""

    looks = 0

    async def request(self, request_id: str, key: str | None, *, any_key: bool) -> dict[str, Any] | None:
        self.looks += 1
        return {"id": request_id} if self.looks == 2 else None


@pytest.mark.parametrize(("replicas", "found"), [(2, {"id": "r"}), (1, None)])
async def test_a_row_is_looked_up_twice_where_other_replicas_write(
    monkeypatch: pytest.MonkeyPatch, replicas: int, found: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(records, "_RECORDED_S", 0.0)
    state = SimpleNamespace(health=SimpleNamespace(replicas=replicas))
    assert await records.find_request(cast(Any, Late()), cast(Any, state), "r") == found
