"""Faults that tests switch on: how a broken engine looks from outside.

`POST /emulator/fault {"kind": ..., "count": n, "after_tokens": k}` arms a fault. Faults of requests hit `count`
requests each, in the order in which they were armed; faults of the instance act at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FaultKind(StrEnum):
    """What breaks. The first group hits generation requests, the second the whole instance."""

    STATUS = "status"  # answer with `status` (default 500) before any work
    ERROR_BEFORE_FIRST_TOKEN = "error_before_first_token"  # noqa: S105 (no password)
    HANG_BEFORE_FIRST_TOKEN = "hang_before_first_token"  # noqa: S105 (no password)
    HANG_MID_STREAM = "hang_mid_stream"  # silence after `after_tokens`, the connection stays open
    ERROR_MID_STREAM = "error_mid_stream"  # the engine's own error event after `after_tokens`
    TRUNCATE = "truncate_without_done"  # the body ends cleanly, without the engine's end mark
    CUT = "cut_mid_stream"  # the connection is reset after `after_tokens`

    UNHEALTHY = "unhealthy"  # health checks answer 503 for `for_s`
    REFUSE = "refuse_connections"  # the listener is closed, connections are reset; back after `for_s`
    KILL = "kill"  # the same, without end; all work is lost


_AT_ONCE = frozenset({FaultKind.ERROR_BEFORE_FIRST_TOKEN, FaultKind.HANG_BEFORE_FIRST_TOKEN})
_ALIASES = {"status_500": FaultKind.STATUS, "truncate": FaultKind.TRUNCATE, "cut": FaultKind.CUT}


@dataclass(slots=True)
class Fault:
    """One armed fault. It hits `count` requests (None: all until it is cleared), after `after_tokens` tokens were sent.
    A fault of the instance lasts `for_s` wall seconds."""

    kind: FaultKind
    count: int | None = 1
    after_tokens: int = 1
    status: int = 500
    for_s: float = 5.0


def parse_fault(body: Any) -> Fault:
    """A fault from JSON. Raises ValueError with the reason."""
    if not isinstance(body, Mapping):
        raise ValueError("a fault is a JSON object")
    name = body.get("kind")
    try:
        kind = _ALIASES.get(str(name)) or FaultKind(str(name))
    except ValueError:
        known = ", ".join(kind.value for kind in FaultKind)
        raise ValueError(f"unknown fault kind {name!r}; known: {known}") from None
    unknown = set(body) - {"kind", "count", "after_tokens", "status", "for_s"}
    if unknown:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r} in a fault")
    count = body.get("count", 1)
    if count is not None:
        count = _integer("count", count, 1)
    after = 0 if kind in _AT_ONCE else _integer("after_tokens", body.get("after_tokens", 1), 0)
    status = _integer("status", body.get("status", 500), 400)
    for_s = body.get("for_s", 5.0)
    if isinstance(for_s, bool) or not isinstance(for_s, int | float) or for_s < 0:
        raise ValueError("for_s must be a number of seconds")
    return Fault(kind, count, after, status, float(for_s))


def _integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}")
    return value


class FaultBoard(deque[Fault]):
    """The faults armed on one instance, in the order in which they hit."""

    def take(self) -> Fault | None:
        """The fault that hits the request that arrives now; None without one."""
        if not self:
            return None
        fault = self[0]
        if fault.count is not None:
            fault.count -= 1
            if fault.count <= 0:
                self.popleft()
        return fault
