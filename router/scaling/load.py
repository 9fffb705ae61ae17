"""The load that a scaler sees, from the scheduler and the metrics of all replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from policies.scaling.types import ModelLoad, PoolLoad
from router.config import InstanceConfig, PoolConfig
from router.core.scheduler import Scheduler
from router.core.types import Outcome
from router.gateway.telemetry.metrics import SUCCESS, Metrics
from router.request.model_names import ModelNames

#: Requests with these outcomes were no load: they never reached the scheduler.
_NOT_SUBMITTED = frozenset(
    {Outcome.REJECTED_INVALID, Outcome.REJECTED_AUTH, Outcome.REJECTED_RATE, Outcome.REJECTED_BUDGET}
)


class Totals(NamedTuple):
    """What one process of the gateway has counted for one model since its start."""

    arrivals: int = 0
    prompt_tokens: int = 0
    answers: int = 0
    output_tokens: int = 0
    slo_misses: int = 0


def totals(metrics: Metrics, scheduler: Scheduler, names: ModelNames) -> dict[str, Totals]:
    """The totals of this process by model: of finished requests, and of those under way. A request counts for the model
    that it named; one that named none, or several, for the model that answered."""
    sums: dict[str, Counter[str]] = {}
    for labels, series in metrics.all_series():
        model = names.name_of(labels.requested) or labels.model
        if not model or labels.outcome in _NOT_SUBMITTED:
            continue
        counts = sums.setdefault(model, Counter())
        counts["arrivals"] += series.requests
        counts["prompt_tokens"] += int(series.input_tokens.total)
        counts["slo_misses"] += series.offered - series.met
        if labels.outcome in SUCCESS:
            counts["answers"] += series.requests
            counts["output_tokens"] += int(series.output_tokens.total)
    for request in scheduler.requests():
        counts = sums.setdefault(request.models[0], Counter())
        counts["arrivals"] += 1
        counts["prompt_tokens"] += request.prompt_tokens
    return {model: Totals(**counts) for model, counts in sums.items()}


def model_loads(
    before: Mapping[str, Mapping[str, Totals]],
    now: Mapping[str, Mapping[str, Totals]],
    queued: Mapping[str, int],
) -> dict[str, ModelLoad]:
    """The load by model since `before`. Both totals are by run of a replica, then by model; a run that is new has counted
    from zero. A request under way may be counted for another model when it ends, and metrics of instances that are gone are
    dropped, so a difference is at least 0."""
    since: dict[str, list[int]] = {}
    for run, models in now.items():
        for model, counted in models.items():
            earlier = before.get(run, {}).get(model, Totals())
            sums = since.setdefault(model, [0] * len(counted))
            for at, (value, old) in enumerate(zip(counted, earlier, strict=True)):
                sums[at] += max(0, value - old)
    for model in queued:
        since.setdefault(model, [0] * len(Totals()))
    return {
        model: ModelLoad(**Totals(*sums)._asdict(), queued=queued.get(model, 0))
        for model, sums in since.items()
    }


def pool_load(
    pool: PoolConfig, instances: tuple[InstanceConfig, ...], scheduler: Scheduler, starting: int
) -> PoolLoad:
    """The load of one pool. `instances` are the fleet's, `starting` the number of those that are not in it yet."""
    mine = [scheduler.instances[each.name] for each in instances if pool.has(each)]
    serving = [each for each in mine if not each.draining]
    return PoolLoad(
        ready=sum(each.healthy for each in serving),
        starting=starting,
        draining=len(mine) - len(serving),
        in_flight=sum(each.in_flight for each in mine),
    )
