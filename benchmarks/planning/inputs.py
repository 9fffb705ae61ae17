"""What `headway plan` is asked: cluster, models, requests and the policy that will serve, from files or records."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import policies
from benchmarks.compare.draws import check_span
from benchmarks.planning.demand import LEAST_S, REQUESTS, Demand, GeneratedDemand, RecordedDemand, rates
from benchmarks.planning.estimate import Asked, Estimate, asked
from benchmarks.planning.files import ClusterConfig, ModelsConfig, PlannedModelConfig, read
from benchmarks.planning.fleet import fleet_config
from benchmarks.planning.from_fleet import cluster_of, models_of
from benchmarks.planning.problem import PlanningProblem
from benchmarks.planning.what_if import changed
from benchmarks.simulator import Fleet, arrivals
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.mixes import parse_slo
from benchmarks.workloads.options import BuildOptions
from benchmarks.workloads.records import recorded_requests
from router.config import FleetConfig, load
from router.config.secrets import store_url
from router.fleet_file import dump
from router.gateway.fleet.rules import Rules

#: Sections of a fleet file that say which engines there are: a plan has its own.
_ENGINES = ("instances", "discovery", "scaling", "models")


@dataclass(frozen=True)
class PlanningInputs:
    """`requests` are those of the first draw. `fleet` is the present one, if it was given."""

    cluster: ClusterConfig
    models: tuple[PlannedModelConfig, ...]
    demand: Demand
    requests: Sequence[Asked]
    policy: str
    slo: dict[str, float] | None
    base: dict[str, Any]
    fleet: FleetConfig | None

    @property
    def longest_tokens(self) -> dict[str, int]:
        """Prompt and answer of the longest request that each model may get."""
        return {
            model.name: max(
                (
                    each.prompt_tokens + each.output_tokens[place]
                    for each in self.requests
                    if place in each.output_tokens
                ),
                default=0,
            )
            for place, model in enumerate(self.models)
        }


def inputs(args: argparse.Namespace) -> PlanningInputs:
    """From checked options. Raises ConfigError, StoreError and WorkloadError."""
    given = _inputs(args, LEAST_S)
    if args.objective != "throughput" or args.limit is not None or args.from_store is not None:
        return given
    # The same requests will come faster, in a changed cluster too, and are to last long enough then.
    multiple = 1.0
    for cluster in (given.cluster, *(changed(given.cluster, each) for each in args.what_if)):
        problem = PlanningProblem(cluster, given.models, given.longest_tokens).with_unlike_groups()
        multiple = max(
            multiple, Estimate(problem, given.requests).bound().lasting_multiple(args.target) or 1.0
        )
    return given if multiple == 1.0 else _inputs(args, LEAST_S * multiple)


def _inputs(args: argparse.Namespace, least_s: float) -> PlanningInputs:
    fleet = None if args.config is None else load(args.config)
    cluster = read(args.cluster, ClusterConfig) if args.cluster else _of(fleet, "--cluster", cluster_of)
    models = (read(args.models, ModelsConfig) if args.models else _of(fleet, "--models", models_of)).models
    names = [each.name for each in models]
    slo = parse_slo(args.slo) if args.slo else None
    base = _base(fleet, args.policy, slo)
    entries = [each.fleet_entry().model_dump(mode="json", exclude_unset=True) for each in models]
    files = " with ".join(str(each) for each in (args.models, args.config) if each)
    config = fleet_config({**base, "models": entries}, files)
    demand = _demand(args, names, config, least_s)
    rules = Rules.of(config, tuple(policies.POLICIES))
    policy = config.defaults.policy
    drawn = arrivals(demand.requests(args.seed), Fleet(config, rules, {}, 1.0), policy=policy, slo=slo)
    requests = asked(list(drawn), {each.name: each.context_tokens for each in models})
    if not requests:
        raise WorkloadError("every prompt is longer than the context of its models")
    option = (
        "--rates" if args.rates is not None else "--from-store" if args.workload is None else "--workload"
    )
    check_span(option, requests[-1].arrival_s - requests[0].arrival_s)
    if not any(each.has_target for each in requests):
        raise WorkloadError("no request has an SLO: give --slo, for example ttft_ms=2000,tpot_ms=80")
    return PlanningInputs(cluster, models, demand, requests, policy, slo, base, fleet)


def _of(fleet: FleetConfig | None, option: str, get: Any) -> Any:
    if fleet is None:
        raise WorkloadError(f"{option} is needed, or --config")
    return get(fleet)


def _base(fleet: FleetConfig | None, policy: str | None, slo: dict[str, float] | None) -> dict[str, Any]:
    """The sections of the plan's fleet file beside models and instances."""
    base = {} if fleet is None else dump(fleet)
    base = {name: section for name, section in base.items() if name not in _ENGINES}
    defaults = dict(base.get("defaults", {}))
    if policy is not None or "policy" not in defaults:
        defaults["policy"] = policy or "latency"
    if slo is not None:
        defaults["slo"] = slo
    return {**base, "defaults": defaults}


def _demand(args: argparse.Namespace, names: Sequence[str], config: FleetConfig, least_s: float) -> Demand:
    if args.workload is not None:
        return RecordedDemand.read(Path(args.workload), args.limit, least_s)
    if args.rates is not None:
        return GeneratedDemand(rates(args.rates, names), args.arrivals, BuildOptions(), args.limit, least_s)
    url = args.from_store or store_url(config, os.environ)
    return RecordedDemand(*recorded_requests(url, config, args.limit or REQUESTS))
