"""`headway`: the cheapest instances that carry the forecast, with a margin for what the forecast does not know.

1. The arrivals of each model are forecast (`forecast`): day cycle, level and trend.
2. What an instance carries while the SLO holds comes from its engine profile and the observed lengths (`capacity`).
3. The load to provide for is the forecast, or the load that is there (requests in flight and waiting) if that is higher,
   with a margin of square-root staffing.
4. A pool must carry the highest such load up to the time at which an instance that is started now is ready. If the
   present instances do not, the cheapest further ones are added (`mix`).
5. An instance is given up if the others carry the highest load that is expected during `keep_s`, and the highest of the last
   `hold_s`.
6. Misses of the SLO under load raise the load to provide for, answers in time lower it, until the allowed share misses (an
   integral controller). It stands still while more arrives than the ready instances carry, and until the requests that
   queued meanwhile are answered: such misses say that instances are missing, not that one carries less than its profile says
   (conditional integration against windup; Astrom and Hagglund, "PID controllers", 1995, 3.5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.scaling.capacity import Capacity, needed_rate, slo_capacity
from policies.scaling.forecast import ArrivalForecast, ForecastSettings
from policies.scaling.mix import Kind, cheapest
from policies.scaling.types import ModelLoad, Observation, Scaler, ScalingPool
from policies.scaling.windows import Window

#: Lengths that are assumed until some are known, with the weight of this many requests.
_PROMPT_TOKENS, _OUTPUT_TOKENS, _LENGTHS = 512.0, 128.0, 20.0
#: Requests after which lengths have half of their weight.
_LENGTH_MEMORY = 500.0
#: Misses count as a lack of instances only if the load is above this share of what the ready ones carry.
_LOADED = 0.5
#: The arrivals of this time are compared with what the ready instances carry.
_ARRIVALS_S = 30.0
#: The exponential of a larger step would overflow.
_MOST_STEP = 700.0
#: The times between now and a horizon for which the load is forecast.
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class HeadwaySettings(ForecastSettings):
    """`margin` is in standard deviations of the load. `miss_share` of the answers may miss their SLO; each miss raises
    the load to provide for by `miss_step`, from `correction_least` to `correction_most` times. An instance is kept if it is needed
    again within `keep_s` (None: the pool's cool-down, or twice its cold start if that is longer), or was within `hold_s`."""

    margin: float = 2.0
    miss_share: float = 0.005
    miss_step: float = 0.01
    correction_least: float = 1.0
    correction_most: float = 2.5
    window_s: float = 60.0
    keep_s: float | None = None
    hold_s: float = 300.0

    def __post_init__(self) -> None:
        if self.margin < 0 or not 0 < self.miss_share < 1:
            raise ValueError("margin must not be negative, and miss_share between 0 and 1")
        if not 0 < self.correction_least <= 1 <= self.correction_most:
            raise ValueError("1 must lie between correction_least and correction_most")
        if not 0 < self.fast_s < self.slow_s:
            raise ValueError("fast_s must be above 0 and below slow_s")
        if not (self.day_s > 0 and self.persistence_s > 0):
            raise ValueError("day_s and persistence_s must be above 0")


class HeadwayScaler(Scaler):
    """Each model's pools are decided together."""

    def __init__(self, pools: Sequence[ScalingPool], settings: HeadwaySettings) -> None:
        models = dict.fromkeys(pool.model for pool in pools)
        self._models = [
            _Model(model, [pool for pool in pools if pool.model == model], settings) for model in models
        ]

    def learn(self, past: Observation) -> None:
        for each in self._models:
            each.learn(past)

    def desired(self, observation: Observation) -> Mapping[str, int]:
        return {name: number for each in self._models for name, number in each.desired(observation).items()}


@dataclass(slots=True)
class _Lengths:
    """Means of recent lengths."""

    prompt_tokens: float = _PROMPT_TOKENS * _LENGTHS
    prompts: float = _LENGTHS
    output_tokens: float = _OUTPUT_TOKENS * _LENGTHS
    answers: float = _LENGTHS

    def add(self, load: ModelLoad) -> None:
        kept = 0.5 ** (load.arrivals / _LENGTH_MEMORY)
        self.prompt_tokens = kept * self.prompt_tokens + load.prompt_tokens
        self.prompts = kept * self.prompts + load.arrivals
        kept = 0.5 ** (load.answers / _LENGTH_MEMORY)
        self.output_tokens = kept * self.output_tokens + load.output_tokens
        self.answers = kept * self.answers + load.answers

    @property
    def means(self) -> tuple[float, float]:
        return max(1.0, self.prompt_tokens / self.prompts), max(1.0, self.output_tokens / self.answers)


class _Model:
    """The pools of one model. `correction` multiplies the load to provide for."""

    def __init__(self, name: str, pools: Sequence[ScalingPool], settings: HeadwaySettings) -> None:
        self.name = name
        self.pools = pools
        self.settings = settings
        self.correction = 1.0
        self.lengths = _Lengths()
        self.forecast = ArrivalForecast(settings)
        self.in_flight = Window(settings.window_s)
        self.demands = Window(settings.hold_s)
        self.arrivals, self.intervals_s = Window(_ARRIVALS_S), Window(_ARRIVALS_S)
        self.overloaded_at_s = -math.inf

    @property
    def _start_s(self) -> float:
        return max(pool.cold_start_s for pool in self.pools)

    @property
    def _keep_s(self) -> float:
        if self.settings.keep_s is not None:
            return self.settings.keep_s
        return max(2 * self._start_s, *(pool.cooldown_s for pool in self.pools))

    def learn(self, past: Observation) -> None:
        self.forecast.observe(past.now_s, past.seconds, past.models.get(self.name, ModelLoad()).arrivals)

    def desired(self, observation: Observation) -> Mapping[str, int]:
        self.learn(observation)
        load = observation.models.get(self.name, ModelLoad())
        self.lengths.add(load)
        now_s, loads = observation.now_s, [observation.pools[pool.name] for pool in self.pools]
        capacities = [slo_capacity(pool, *self.lengths.means) for pool in self.pools]
        under_way = sum(each.in_flight for each in loads)
        self.in_flight.add(now_s, under_way)
        carried = sum(each.ready * one.concurrency for each, one in zip(loads, capacities, strict=True))
        rate_per_s = sum(each.ready * one.rate_per_s for each, one in zip(loads, capacities, strict=True))
        if not self._overloaded(observation, load, rate_per_s):
            self._correct(load, under_way + load.queued > _LOADED * carried)
        current = [each.current for each in loads]
        names = [pool.name for pool in self.pools]
        if not (under_way or load.queued) and self._idle(now_s):
            return dict.fromkeys(names, 0)
        # The requests are at the ready instances. Those of another kind may be many times as fast.
        service_s = carried / rate_per_s if rate_per_s else min(each.service_s for each in capacities)
        present = (self.in_flight.mean + load.queued) / service_s
        soon = self._highest_rate(now_s, self._start_s + observation.seconds)
        demand = self._needed(max(present, soon), service_s)
        self.demands.add(now_s, demand)
        grown = self._mix(capacities, demand, current, [pool.max_instances for pool in self.pools])
        if grown != current:
            return dict(zip(names, grown, strict=True))
        later = self._highest_rate(now_s, self._keep_s)
        kept = max(self.demands.greatest, self._needed(later, service_s))
        shrunk = self._mix(capacities, kept, [pool.min_instances for pool in self.pools], current)
        return dict(zip(names, shrunk, strict=True))

    def _overloaded(self, observation: Observation, load: ModelLoad, rate_per_s: float) -> bool:
        """Whether more arrived than `rate_per_s`, until `window_s` after the queue of that time is empty."""
        now_s, seconds = observation.now_s, observation.seconds
        self.arrivals.add(now_s, load.arrivals)
        self.intervals_s.add(now_s, seconds)
        recent = now_s - self.overloaded_at_s <= max(self.settings.window_s, seconds)
        if self.arrivals.mean > rate_per_s * self.intervals_s.mean or (recent and load.queued):
            self.overloaded_at_s = now_s
            return True
        return recent

    def _correct(self, load: ModelLoad, loaded: bool) -> None:
        settings = self.settings
        misses = load.slo_misses if loaded else 0
        step = settings.miss_step * (misses - settings.miss_share * load.answers)
        changed = self.correction * math.exp(min(step, _MOST_STEP))
        self.correction = min(max(changed, settings.correction_least), settings.correction_most)

    def _idle(self, now_s: float) -> bool:
        """Whether no request is expected during `keep_s`."""
        return self._highest_rate(now_s, self._keep_s) * self._keep_s < 0.5

    def _needed(self, rate_per_s: float, service_s: float) -> float:
        """The rate to provide for, so that this one is carried."""
        return self.correction * needed_rate(rate_per_s, service_s, self.settings.margin)

    def _highest_rate(self, now_s: float, horizon_s: float) -> float:
        """The highest rate that is forecast until the horizon."""
        looks = (horizon_s * step / (_LOOKS - 1) for step in range(_LOOKS))
        return max(self.forecast.rate_per_s(now_s, at_s) for at_s in looks)

    def _mix(
        self, capacities: Sequence[Capacity], demand_per_s: float, least: Sequence[int], most: Sequence[int]
    ) -> list[int]:
        priced = any(pool.usd_per_hour for pool in self.pools)
        kinds = [
            Kind(pool.usd_per_hour if priced else pool.gpus, one.rate_per_s, low, max(low, high))
            for pool, one, low, high in zip(self.pools, capacities, least, most, strict=True)
        ]
        return list(cheapest(kinds, demand_per_s))
