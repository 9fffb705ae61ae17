"""Which options are alike: as expensive to occupy, and as fast. Used by policies that keep expensive and fast instances free."""

from __future__ import annotations

from collections.abc import Sequence

from router.core.interfaces import Option, Options
from router.core.option_columns import each_kind, hourly_usd
from router.core.profile import EngineProfile

#: The reason of an option of another kind, for a request without an SLO.
KEPT_FREE = "kept free for requests with an SLO"
#: How expensive an option is to occupy, then how fast it is. Less is better.
Kind = tuple[float, float]


def kinds_of(options: Sequence[Option], among: list[int]) -> list[Kind]:
    """How expensive it is to occupy each option of `among`: its price in USD (rounded to three digits: predictions are no
    more precise), then its speed (step time in seconds, negated)."""
    costs_usd: Sequence[float | None] | None = hourly_usd(options, among)
    if costs_usd is None and isinstance(options, Options):
        costs_usd = options.columns.cost_usd
        if len(among) < len(options):
            costs_usd = [costs_usd[at] for at in among]
    elif costs_usd is None:
        costs_usd = [None if (found := options[at].prediction) is None else found.cost_usd for at in among]
    prices: dict[float | None, float] = {None: 0.0}
    steps_s: dict[tuple[int, float], float] = {}  # by profile and speed: many instances share them
    kinds: dict[Kind, Kind] = {}  # one object for equal ones

    def kind_of(option: Option, profile: EngineProfile | None, cost_usd: float | None) -> Kind:
        price = prices.get(cost_usd)
        if price is None:
            price = prices[cost_usd] = float(f"{cost_usd:.3g}")
        if profile is None:
            prediction = option.prediction
            kind = price, -((prediction.tpot_s if prediction else None) or 0.0)
        else:
            speed = option.instance.speed
            step_s = steps_s.get((id(profile), speed))
            if step_s is None:
                step_s = steps_s[id(profile), speed] = profile.step_s(0, 1, 0.0) / speed
            kind = price, -step_s
        return kinds.setdefault(kind, kind)

    return each_kind(options, among, costs_usd, kind_of)


def least_kind(options: Sequence[Option], among: list[int]) -> list[int]:
    """Those of `among` that are cheapest to occupy, then slowest."""
    kinds = kinds_of(options, among)
    least = min(kinds)
    return [at for at, kind in zip(among, kinds, strict=True) if kind is least]
