"""Which replica decides, and what the others know of it.

One document of the shared state holds the last decision: its replica, its observation, and the totals of each replica at
that time. Each decision replaces the one before by compare-and-set, so two replicas never decide at the same time. If no
decision comes for `lease_s`, another replica makes the next one. Each replica measures that time by its own clock, from when
it saw the last decision, so clocks need not agree (as in client-go's leader election). Every replica gives each observation
to its own scaler, so the next one to decide continues from the same state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from policies.scaling.types import Observation
from router.scaling.load import Totals
from router.store.state import ChangedElsewhere, State, replace_document

#: The shared document's name.
DOCUMENT = "scaling"


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision. `number` counts them. `run` is the replica that made it, "" if that one has left. `wanted` is by pool,
    `totals` by run of a replica and model."""

    number: int = 0
    run: str = ""
    observation: Observation | None = None
    wanted: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, Totals]] = field(default_factory=dict)


_TURN = TypeAdapter(Turn)


class Turns:
    """The turns of one replica, whose run is `run`. For `lease_s` only the replica that decided last may decide. `on_turn` is
    called with each decision of another replica."""

    def __init__(
        self,
        state: State,
        run: str,
        lease_s: float,
        on_turn: Callable[[Turn], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last = Turn()
        self.lease_s = lease_s
        self._state = state
        self._run = run
        self._on_turn = on_turn
        self._clock = clock
        self._seen_at = clock()

    @property
    def mine(self) -> bool:
        """Whether this replica made the last decision, and nobody has taken over since."""
        return self.last.run == self._run

    @property
    def due(self) -> bool:
        """Whether this replica is to decide now, if it is time."""
        if self.mine or not self._state.health.shared:
            return True
        return not self.last.run or self._clock() - self._seen_at > self.lease_s

    async def take(self, turn: Turn) -> bool:
        """Publish a decision; False if another replica was faster. Raises StateError if the shared state does not answer."""
        before = self.last
        self.last = turn  # so that our own is not taken for another's
        try:
            await replace_document(
                self._state,
                DOCUMENT,
                lambda seen: _number_of(seen) <= before.number,
                _TURN.dump_python(turn, mode="json"),
            )
        except ChangedElsewhere as changed:
            self.last = before
            self.document_changed(changed.content)
            return False
        except BaseException:
            self.last = before
            raise
        self._seen_at = self._clock()
        return True

    async def leave(self) -> None:
        """Let another replica decide at once."""
        if self.mine and self._state.health.shared:
            await self.take(
                Turn(self.last.number + 1, "", self.last.observation, self.last.wanted, self.last.totals)
            )

    def document_changed(self, document: Mapping[str, Any]) -> None:
        """The shared document has changed (`PeerLink.followers`). Of one that cannot be read, as of another version, counts
        only who decided, so that it is replaced when nobody decides any more."""
        try:
            turn = _TURN.validate_python(document)
        except ValidationError:
            turn = Turn(_number_of(document), str(document.get("run", "")))
        if turn.number > self.last.number:
            self.last, self._seen_at = turn, self._clock()
            self._on_turn(turn)


def _number_of(document: Mapping[str, Any]) -> int:
    """The number of the turn in a document, or 0 if it has none."""
    number = document.get("number", 0)
    return number if isinstance(number, int) else 0
