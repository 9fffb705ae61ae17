"""What a point of quality is worth: the price at which the mean quality of recent requests meets its target.

Of all ways to serve N requests with a mean quality of at least alpha the cheapest one takes for each request the
model with the least cost - price x quality, for one price (the dual of that constraint; ECCOS / OmniRouter, arXiv
2502.20576). As the price rises, each request's pick moves up the lower hull of its models' costs over qualities; so
the price is found exactly, on a window of the scope's recent requests, and again every few requests, as the
traffic changes. What the window fell short of its target by, or exceeded it by, is added to the next wish, so that
errors do not pile up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar

from policies.lower_hull import lower_hull, steps_of
from policies.settings import Targets

#: Scopes (keys) that are remembered, the least recently served forgotten first; requests kept of each; requests
#: between two prices of a scope.
_MOST_SCOPES = 256
_MOST_ROWS = 128
_EVERY = 16
_ROUNDING = 1e-9
#: A point of quality is never worth more than this many of the dearest answers.
_DEAREST = 1e4


Key = TypeVar("Key")
State = TypeVar("State")


class Row(NamedTuple):
    """A request as it looked when it was placed: its models in the order of their names, with estimated quality in
    [0, 1] and price of an answer."""

    models: tuple[str, ...]
    quality: tuple[float, ...]
    cost_usd: tuple[float, ...]


class Hull(NamedTuple):
    """The lower hull of a request's costs over qualities, along which the pick moves as the price of quality rises.
    `least` is the quality of the cheapest model; `steps` are (price from which the next better model is picked,
    what it gains); `dearest_usd` is the cost of the dearest model."""

    least: float
    steps: tuple[tuple[float, float], ...]
    dearest_usd: float


@dataclass(slots=True)
class Window:
    """Recent requests of one scope, each with its hull and the estimated quality of what it was given."""

    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=_MOST_ROWS))
    hulls: deque[Hull] = field(default_factory=lambda: deque(maxlen=_MOST_ROWS))
    got: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_ROWS))
    seen: int = 0

    def add(self, row: Row, picked: str) -> bool:
        """Whether it is time to look at the window again: often at first, then every few requests."""
        self.rows.append(row)
        self.hulls.append(hull_of(row))
        self.got.append(row.quality[row.models.index(picked)])
        self.seen += 1
        return self.seen % _EVERY == 0 or self.seen in (1, 2, 4, 8)

    def wish(self, targets: Targets) -> float:
        """The mean quality that is wanted of requests like those in the window."""
        rows = list(self.rows)[-max(targets.window_requests, 1) :]
        target = wished(rows, targets)
        behind = target - fmean(list(self.got)[-len(rows) :])
        return min(max(target + behind, 0.0), 1.0)


def wished(rows: Sequence[Row], targets: Targets) -> float:
    """The target of requests like these: as told, else that of the best single model less the slack."""
    return best_single(rows)[1] - targets.quality_slack if targets.quality is None else targets.quality


def best_single(rows: Sequence[Row]) -> tuple[str, float]:
    """The model of best mean quality, of those that at least half of the rows could have, and that mean; of equal
    ones the cheaper, then the first by name."""
    quality: dict[str, float] = {}
    cost_usd: dict[str, float] = {}
    many: dict[str, int] = {}
    for row in rows:
        for model, each, usd in zip(row.models, row.quality, row.cost_usd, strict=True):
            quality[model] = quality.get(model, 0.0) + each
            cost_usd[model] = cost_usd.get(model, 0.0) + usd
            many[model] = many.get(model, 0) + 1
    often = [model for model, count in many.items() if 2 * count >= len(rows)] or list(many)

    def rank(model: str) -> tuple[float, float, str]:
        return round(-quality[model] / many[model], 12), cost_usd[model] / many[model], model

    best = min(often, key=rank)
    return best, quality[best] / many[best]


def price_usd(hulls: Sequence[Hull], wish: float) -> float:
    """The least price of one unit of quality at which the mean quality of what is picked is `wish`. Where no price is
    enough, one that is above all."""
    total = sum(hull.least for hull in hulls)
    steps = [step for hull in hulls for step in hull.steps]
    wanted = wish * len(hulls) - _ROUNDING
    usd = 0.0
    for slope_usd, gain in sorted(steps):
        if total >= wanted:
            return usd
        total += gain
        usd = slope_usd * (1.0 + _ROUNDING)
    return usd if total >= wanted else _DEAREST * max(hull.dearest_usd for hull in hulls)


def hull_of(row: Row) -> Hull:
    """See `Hull`."""
    hull = lower_hull(list(zip(row.quality, row.cost_usd, strict=True)))
    steps = tuple((step.price, step.quality) for step in steps_of(hull))
    return Hull(hull[0][0], steps, max(row.cost_usd))


@dataclass(slots=True)
class Scopes(Generic[Key, State]):
    """Something for each scope, the least recently touched forgotten first."""

    _found: dict[Key, State] = field(default_factory=dict)

    def get(self, key: Key) -> State | None:
        return self._found.get(key)

    def put(self, key: Key, state: State) -> None:
        self._found.pop(key, None)
        if len(self._found) >= _MOST_SCOPES:
            del self._found[next(iter(self._found))]
        self._found[key] = state


@dataclass(slots=True)
class _Priced:
    window: Window = field(default_factory=Window)
    usd: float = 0.0


@dataclass(slots=True)
class QualityPrices:
    """The price of quality in each scope. It starts at zero."""

    _scopes: Scopes[str | None, _Priced] = field(default_factory=Scopes)

    def usd(self, key: str | None) -> float:
        """USD for one unit of quality."""
        found = self._scopes.get(key)
        return 0.0 if found is None else found.usd

    def took(self, key: str | None, row: Row, picked: str, targets: Targets) -> None:
        """A request of this scope was given this model."""
        found = self._scopes.get(key) or _Priced()
        self._scopes.put(key, found)
        if found.window.add(row, picked):
            found.usd = price_usd(found.window.hulls, found.window.wish(targets))
