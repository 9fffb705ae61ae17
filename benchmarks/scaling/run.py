"""One run of one scaler on one draw of a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from benchmarks.compare.summary import summary_of
from benchmarks.scaling.cases import Case, case
from benchmarks.scaling.oracle import OracleScaler
from benchmarks.simulator import Result, arrivals, open_fleet, simulate
from benchmarks.simulator.scaling import Scaling
from policies.scaling import Bounded, create
from policies.scaling.types import ScalingPool
from router.config import FleetConfig, load
from router.scaling.pools import scaling_pools

ORACLE = "oracle"


@dataclass(frozen=True)
class Trial:
    """A workload's draw, a scaler and its settings; the pool has at most `instances`, and `policy` places the requests."""

    case: str
    draw: int
    scaler: str
    instances: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Path | None = None
    policy: str = "least_load"


def run(trial: Trial) -> dict[str, Any]:
    """What came of it: attainment, GPU-hours, money and starts."""
    config = _fleet(trial.instances)
    (model,) = config.models
    found = _case(trial.case, trial.draw, model.name, trial.data)
    pools, fleet = scaling_pools(config), open_fleet(config)
    result = simulate(
        fleet,
        arrivals(found.requests, fleet, policy=trial.policy, model=model.name),
        seed=trial.draw,
        scaling=Scaling(
            _scaler(trial, found, pools), pools, fleet.places, config.scaling.interval_s, found.epoch_s
        ),
    )
    return {
        "case": trial.case,
        "draw": trial.draw,
        "scaler": trial.scaler,
        "settings": dict(trial.settings),
        **figures(result),
    }


def figures(result: Result) -> dict[str, Any]:
    """The figures of a scaled run."""
    summary, usage = summary_of(result), result.usage
    assert usage is not None  # noqa: S101 (it was scaled)
    return {
        "requests": summary["requests"],
        "attainment": summary["attainment"],
        "ttft_s_p99": summary["ttft_s"]["p99"],
        "refused": summary["requests"] - summary["complete"],
        "gpu_hours": usage.gpu_hours,
        "usd": usage.usd,
        "mean_instances": sum(usage.instance_s.values()) / result.end_s,
        "starts": usage.cold_starts + usage.warm_starts,
        "drained": usage.drained,
        "retried": summary["retried"],
    }


def _scaler(trial: Trial, found: Case, pools: tuple[ScalingPool, ...]) -> Bounded:
    if trial.scaler == ORACLE:
        (pool,) = pools
        return Bounded(OracleScaler(pool, found.requests, found.epoch_s, **trial.settings), pools)
    settings = dict(trial.settings)
    if trial.scaler == "headway":
        settings = {"day_s": found.day_s, **settings}
    scaler = create(trial.scaler, pools, settings)
    for past in found.past:
        scaler.learn(past)
    return scaler


_case = cache(case)


@cache
def _fleet(instances: int) -> FleetConfig:
    with resources.as_file(resources.files("benchmarks.scenarios") / "day-cycle.fleet.yaml") as file:
        config = load(file)
    pools = [each.model_copy(update={"max_instances": instances}) for each in config.scaling.pools]
    return config.model_copy(update={"scaling": config.scaling.model_copy(update={"pools": tuple(pools)})})
