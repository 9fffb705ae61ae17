"""`headway compare` in simulation: from options to a report."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import TimeElapsedColumn

import policies
from benchmarks.calibrate.profile import read_profiles
from benchmarks.compare import arguments, draws, pool
from benchmarks.compare.runs import RunFolder
from benchmarks.compare.tasks import OnProgress, Plan, Runner, ScalerChoice, Setting, run_all, settings_of
from benchmarks.measures import Interval
from benchmarks.scenarios import USUAL_POLICIES, Scenario, load_scenario
from benchmarks.simulator import Fleet
from benchmarks.terminal import progress_bar
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.mixes import parse_slo
from router.config import FleetConfig, load
from router.core.profile import EngineProfile


def compare(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Do what `args` (checked) ask for. Returns what the report is made of (`runs`, `oracles` and `about`),
    and whether all of it was done: after Ctrl-C or SIGTERM it is what was finished. Raises WorkloadError,
    ConfigError and ProcessLost."""
    scenario = None if args.scenario is None else load_scenario(args.scenario, small=args.small)
    usual = scenario.form.policies if scenario else USUAL_POLICIES
    names = arguments.policy_names(args.policies, usual)
    for name in names:
        if name not in policies.POLICIES:
            raise WorkloadError(f"unknown policy {name!r} (known: {', '.join(policies.POLICIES)})")
    rates = arguments.rates(args.rates) or (scenario.form.rates if scenario else None)
    slo = parse_slo(args.slo) if args.slo else None
    defaults = draws.RequestDefaults(args.model, slo)
    setting, fleet = _opened(args, scenario, defaults)
    scalers = _scalers(args, setting, fleet)
    oracle_draws = args.oracle_seeds
    if oracle_draws is None:
        oracle_draws = arguments.SMALL_ORACLE_SEEDS if args.small else arguments.ORACLE_SEEDS
    seeds = range(args.first_seed, args.first_seed + (args.seeds or (scenario.form.seeds if scenario else 1)))
    runs: list[dict[str, Any]] = []
    oracles: list[dict[str, Any]] = []
    finished = False
    with _interrupted_by_sigterm(), _bar() as bar:
        if scenario:
            drawn = draws.from_scenario(scenario, fleet, defaults, seeds, args.out, os.environ)
        else:
            drawn = draws.from_file(args.workload, fleet, defaults, seeds, args.limit, args.out)
        named = "--rates" if args.rates or scenario is None else f"scenario {scenario.name}: rates"
        _check_rates(rates, drawn.each, named)
        plan = Plan(
            setting,
            drawn,
            names,
            rates,
            oracle_draws,
            args.oracle_effort or (arguments.SMALL_ORACLE_EFFORT if args.small else arguments.ORACLE_EFFORT),
            args.keep_requests,
            scalers,
        )
        folder = RunFolder(args.out / "runs", settings_of(plan))
        try:
            for done in run_all(plan, folder, _runner(args), bar):
                (oracles if done["name"].startswith("oracle@") else runs).append(done)
            finished = True
        except KeyboardInterrupt:
            pass
    own_rate = Interval.of(draw.rate_per_s for draw in drawn.each).mean or 0.0
    for each in (*runs, *oracles):
        if each["rate_per_s"] is None:
            each["rate_per_s"] = own_rate
    order = {task.label: place for place, task in enumerate(plan.tasks(args.out))}
    runs.sort(key=lambda one: (one["rate_per_s"], order[one["policy"]], one["seed"]))
    about = {
        "model": args.model,
        "slo": slo,
        "workload": {"header": drawn.header.as_dict(), "described": dict(drawn.described)},
        "scenario": scenario.name + (" (small)" if args.small else "") if scenario else None,
        "fleet": _fleet_rows(fleet),
    }
    return {"runs": runs, "oracles": oracles, "about": about}, finished


def _check_rates(rates: Sequence[float] | None, each: Sequence[draws.Draw], named: str) -> None:
    """Raises WorkloadError for rates at which the draws cannot arrive, or would arrive for too long."""
    for draw in each:
        if rates is None:
            draws.check_span("--workload", draw.last_s - draw.first_s)
        elif draw.rate_per_s is None:
            raise WorkloadError(f"{named}: the workload needs at least two different arrival times")
        else:
            draws.check_span(named, (draw.requests - 1) / min(rates))


def _opened(
    args: argparse.Namespace, scenario: Scenario | None, defaults: draws.RequestDefaults
) -> tuple[Setting, Fleet]:
    """The settings that all runs share, and the fleet opened once: its errors are raised here."""
    config = scenario.fleet if scenario else load(args.fleet, any_profile=args.profiles is not None)
    profiles = {} if args.profiles is None else _profiles(args.profiles, config)
    setting = Setting(config, profiles, args.speed, defaults, scenario.form.losses if scenario else ())
    try:
        return setting, setting.open()
    except WorkloadError as error:
        raise WorkloadError(f"{scenario.name if scenario else args.fleet}: {error}") from None


def _scalers(args: argparse.Namespace, setting: Setting, fleet: Fleet) -> tuple[ScalerChoice | None, ...]:
    if args.scaler is None:
        return (None,)
    chosen = arguments.scalers(args.scaler)
    if not setting.fleet.scaling.pools:
        raise WorkloadError("--scaler needs a fleet with pools (its section `scaling`)")
    for each in chosen:
        try:
            setting.scaling(each, fleet)
        except ValueError as error:
            raise WorkloadError(f"--scaler {each.text}: {error}") from None
    return chosen


def _profiles(path: Path, config: FleetConfig) -> dict[str, EngineProfile]:
    """Fitted profiles by name; each must be one that the fleet uses."""
    found = read_profiles(path)
    used = {each.profile_name(model) for each in config.instances for model in each.serves}
    for name in found:
        if name not in used:
            raise WorkloadError(f"{path}: no instance of the fleet has a profile {name!r}")
    return found


def _runner(args: argparse.Namespace) -> Runner:
    if args.ray is not None:
        from benchmarks.compare.cluster import run_on_ray

        return lambda function, items: run_on_ray(function, items, args.ray)
    return lambda function, items: pool.run_local(function, items, args.jobs or pool.cores())


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM is taken as Ctrl-C: what is finished is written."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar() -> Iterator[OnProgress]:
    """A progress bar, on a terminal only."""
    with progress_bar(TimeElapsedColumn()) as progress:
        task = progress.add_task("reading the workload", total=None)
        yield lambda what, done, total: progress.update(
            task, description=what or "simulating", completed=done, total=total
        )


def _fleet_rows(fleet: Fleet) -> list[dict[str, Any]]:
    """The candidates as the report shows them."""
    config = fleet.config
    return [
        {
            "instance": instance.name,
            "kind": instance.protocol,
            "model": model,
            "profile": instance.engine_profiles(fleet.profiles.get)[model].name,
            "hardware": instance.hardware_name,
            "max_concurrency": instance.max_concurrency,
            "context_tokens": candidate.context_tokens,
            "input_usd_per_mtok": candidate.price.input_usd_per_mtok,
            "output_usd_per_mtok": candidate.price.output_usd_per_mtok,
            "quality": candidate.quality,
            "usd_per_hour": instance.usd_per_hour,
        }
        for instance in config.instances
        for model, candidate in config.candidates(instance).items()
    ]
