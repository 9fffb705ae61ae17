"""Faults that tests switch on: how a broken engine looks from outside.

`POST /emulator/fault {"kind": ..., "count": n, "after_tokens": k}` arms a fault. Faults of requests hit `count`
requests each, in the order in which they were armed; faults of the instance act at once.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, TypeAdapter
from pydantic.dataclasses import dataclass


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

    @classmethod
    def _missing_(cls, value: object) -> FaultKind | None:
        """Short names, as tools give them."""
        return {"status_500": cls.STATUS, "truncate": cls.TRUNCATE, "cut": cls.CUT}.get(str(value))


_AT_ONCE = frozenset({FaultKind.ERROR_BEFORE_FIRST_TOKEN, FaultKind.HANG_BEFORE_FIRST_TOKEN})


@dataclass(slots=True, config=ConfigDict(extra="forbid"))
class Fault:
    """One armed fault. It hits `count` requests (None: all until it is cleared), after `after_tokens` tokens were sent.
    A fault of the instance lasts `for_s` wall seconds. Raises pydantic.ValidationError for a wrong value."""

    kind: FaultKind
    count: Annotated[StrictInt, Field(ge=1)] | None = 1
    after_tokens: Annotated[StrictInt, Field(ge=0)] = 1
    status: Annotated[StrictInt, Field(ge=400)] = 500
    for_s: Annotated[StrictFloat, Field(ge=0)] = 5.0

    def __post_init__(self) -> None:
        if self.kind in _AT_ONCE:
            self.after_tokens = 0


#: Reads a fault from JSON.
FAULT = TypeAdapter(Fault)


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
