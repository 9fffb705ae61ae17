"""What a request may choose among: its options and their predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import NamedTuple, Protocol, overload

from router.compiled import compiled_init, why_not
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, Prediction


@compiled_init
@dataclass(slots=True)
class Option:
    """A candidate that can take the request now. `prediction` is None unless the policy uses predictions
    (`Policy.predicts`)."""

    candidate: Candidate
    instance: Instance
    prediction: Prediction | None = None


class Roster(NamedTuple):
    """The candidates of some models by column, in order of models and names: with each its instance, and the engine profile of
    its model there (None: unknown). `shortest_context` is that of all candidates in tokens (inf: all unknown). It holds as long as
    the fleet: an instance's candidates, profiles and speed change only with it."""

    candidates: Sequence[Candidate]
    instances: Sequence[Instance]
    profiles: Sequence[EngineProfile | None]
    shortest_context: float

    @classmethod
    def of(cls, members: Sequence[tuple[Candidate, Instance]]) -> Roster:
        """The roster of these candidates."""
        contexts = [each.context_tokens for each, _ in members if each.context_tokens is not None]
        return cls(
            tuple([candidate for candidate, _ in members]),
            tuple([instance for _, instance in members]),
            tuple([instance.profiles.get(candidate.model) for candidate, instance in members]),
            min(contexts, default=math.inf),
        )

    def without(self, places: Sequence[int]) -> Roster:
        """The roster but for the candidates at these places. It holds only as long as the decision, so its columns are
        lists: nobody keeps what belongs to them."""
        kept = [True] * len(self.candidates)
        for at in places:
            kept[at] = False
        return Roster(
            list(compress(self.candidates, kept)),
            list(compress(self.instances, kept)),
            list(compress(self.profiles, kept)),
            self.shortest_context,
        )


class PredictionColumns(Protocol):
    """The columns of predictions that policies read: the values of one field (`router.core.types.Prediction`) for all options,
    in their order. A column is cheaper to read than the field of each prediction."""

    @property
    def p_miss(self) -> Sequence[float] | Sequence[None]: ...
    @property
    def ttft_s_p50(self) -> Sequence[float]: ...
    @property
    def e2e_s_mean(self) -> Sequence[float]: ...
    @property
    def output_tokens_mean(self) -> Sequence[float]: ...
    @property
    def cost_usd(self) -> Sequence[float]: ...
    def each(self, first: int, end: int) -> Sequence[Prediction]:
        """The predictions of the options from `first` until before `end`."""
        ...


#: Options are made singly until so many have been read, and never singly where there are no more than so many.
_MOST_SINGLY, _FEW = 8, 32


class Options(Sequence[Option]):
    """Options, with their predictions by column (`columns`; None where no policy reads any).

    Those of a `roster` (None: options that were given) are made when they are read, because a decision over thousands reads
    few of them. An option that was read stays the same object."""

    __slots__ = ("_made", "_singly", "columns", "roster")

    def __init__(
        self,
        options: Iterable[Option] = (),
        columns: PredictionColumns | None = None,
        roster: Roster | None = None,
    ) -> None:
        self._made: list[Option | None] = list(options) if roster is None else [None] * len(roster.candidates)
        self._singly = 0 if len(self._made) > _FEW else _MOST_SINGLY
        self.columns: PredictionColumns = columns  # type: ignore[assignment]
        self.roster = roster

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, at: int) -> Option: ...

    @overload
    def __getitem__(self, at: slice) -> list[Option]: ...

    def __getitem__(self, at: int | slice) -> Option | list[Option]:
        if isinstance(at, slice):
            return list(self)[at]
        option = self._made[at]
        if option is not None:
            return option
        at, self._singly = range(len(self))[at], self._singly + 1
        found = self._all() if self._singly > _MOST_SINGLY else self._make(at, at + 1)
        return found[at]

    def __iter__(self) -> Iterator[Option]:
        return iter(self._all())

    def predicted(self, columns: PredictionColumns) -> None:
        """Give every option its prediction."""
        self.columns = columns
        for at, option in enumerate(self._made):
            if option is not None:
                (option.prediction,) = columns.each(at, at + 1)

    def _all(self) -> list[Option]:
        return self._make(0, len(self)) if None in self._made else self._made  # type: ignore[return-value]

    def _make(self, first: int, end: int) -> list[Option]:
        """Make these options, where they are not made. Returns all that are made, at their places."""
        made, roster, columns = self._made, self.roster, self.columns
        predictions = [None] * (end - first) if columns is None else columns.each(first, end)  # type: ignore[redundant-expr]
        assert roster is not None  # noqa: S101 (options that were given are all there)
        for at, prediction in zip(range(first, end), predictions, strict=True):
            if made[at] is None:
                made[at] = Option(roster.candidates[at], roster.instances[at], prediction)
        return made  # type: ignore[return-value]


_NATIVE = Path(__file__).parents[1] / "native"
SOURCES = [_NATIVE / "options.pyx", _NATIVE / "fields.pxd"]
if why_not({"router.native.options": SOURCES}) is None:
    from router.native.options import Options  # type: ignore[no-redef]

    Sequence.register(Options)
