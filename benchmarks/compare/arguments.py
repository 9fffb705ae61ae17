"""The options of `headway compare`, and what they say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

import policies
from benchmarks.checks import check_options, names, option, positive_numbers, seed
from benchmarks.compare.pool import MOST_PROCESSES
from benchmarks.compare.tasks import ScalerChoice
from benchmarks.oracles import EFFORTS
from benchmarks.replay.command import add_target_arguments
from benchmarks.workloads.format import WorkloadError
from router.config.fields import LARGEST_FLOAT, Count, NotNegative, Positive

#: Draws of the workload for which the oracles run, and how long they search, by default: for a
#: scenario's small form, and for all else.
SMALL_ORACLE_SEEDS, ORACLE_SEEDS = 1, 2
SMALL_ORACLE_EFFORT, ORACLE_EFFORT = "brief", "normal"
#: The plan of more draws would fill the memory.
_MOST_SEEDS = 10_000

_SIMULATED_ONLY = (
    *("fleet", "scenario", "small", "scaler", "seeds", "first_seed", "jobs", "ray", "profiles"),
    *("oracle_seeds", "oracle_effort", "keep_requests"),
)
_LIVE_ONLY = ("warmup", "settle", "emulate_lengths", "api_key_env", "max_in_flight", "timeout", "connections")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies",
        metavar="A,B,...|all",
        help="in this order (default in simulation: the scenario's, else each objective and the usual baselines)",
    )
    parser.add_argument("--workload", type=Path, metavar="FILE", help="a workload file")
    parser.add_argument(
        "--rates", metavar="R,R,...", help="requests/s to scale to (default: the workload's own)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="report.html, report.json, CSVs, runs/")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    _add_simulation(parser.add_argument_group("simulation"))
    live = parser.add_argument_group("live")
    live.add_argument("--url", help="a live gateway")
    live.add_argument(
        "--warmup", type=int, default=20, metavar="N", help="requests sent first and not counted (default 20)"
    )
    live.add_argument(
        "--settle",
        type=float,
        default=1.0,
        metavar="S",
        help="pause between runs, before the wait for idleness",
    )
    live.add_argument(
        "--emulate-lengths",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="tell emulated engines the true output lengths (default)",
    )
    add_target_arguments(parser)
    # In simulation 1 is a choice, and not the default: that is what all emulated instances have in common.
    parser.set_defaults(speed=None)


def _add_simulation(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--fleet", type=Path, metavar="FILE", help="the fleet file to simulate")
    group.add_argument(
        "--scenario", metavar="NAME", help="a reference scenario (or its file): fleet, workload and rates"
    )
    group.add_argument("--small", action="store_true", help="the scenario's small form, from generators")
    group.add_argument(
        "--scaler",
        metavar="A,B,...",
        help="let the fleet's pools grow and shrink by these scalers, each with each policy; settings follow the name, as"
        " in kpa:utilization=0.5:stable_window_s=30",
    )
    group.add_argument(
        "--seeds", type=int, metavar="N", help="draws of the workload (default 1, or the scenario's)"
    )
    group.add_argument(
        "--first-seed",
        type=seed,
        default=0,
        metavar="S",
        help="the first draw's seed (default 0: a recorded workload as it is; others resample it)",
    )
    group.add_argument("--jobs", type=int, metavar="N", help="processes (default: one for each core)")
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run on a Ray cluster (`auto`: that of this machine, `local`: started here)",
    )
    group.add_argument(
        "--profiles", type=Path, metavar="FILE", help="engine profiles fitted by `headway calibrate`"
    )
    group.add_argument(
        "--oracle-seeds",
        type=int,
        metavar="N",
        help=f"number of draws with oracles (default {ORACLE_SEEDS}, with --small {SMALL_ORACLE_SEEDS})",
    )
    group.add_argument(
        "--oracle-effort",
        metavar="EFFORT",
        help=f"of the oracles: {', '.join(EFFORTS)} (default {ORACLE_EFFORT}, with --small {SMALL_ORACLE_EFFORT})",
    )
    group.add_argument("--keep-requests", action="store_true", help="keep every request (runs/*.npz)")


def check(args: argparse.Namespace) -> None:
    """Raises WorkloadError for numbers out of range and for options that do not go together."""
    if args.out is None:
        raise WorkloadError("--out is needed")
    _check_form(args)
    check_options(
        args,
        WorkloadError,
        limit=Count,
        seeds=Annotated[Count, Field(le=_MOST_SEEDS)],
        jobs=Annotated[Count, Field(le=MOST_PROCESSES)],
        speed=Positive,
        **dict.fromkeys(("oracle_seeds", "warmup", "settle"), NotNegative),
    )
    if args.oracle_effort not in (None, *EFFORTS):
        raise WorkloadError(f"--oracle-effort: one of {', '.join(EFFORTS)}, not {args.oracle_effort}")


def _check_form(args: argparse.Namespace) -> None:
    parser = argparse.ArgumentParser()
    add(parser)
    stray = [
        name
        for name in (_LIVE_ONLY if args.url is None else _SIMULATED_ONLY)
        if getattr(args, name) != parser.get_default(name)
    ]
    if args.url is not None:
        if stray:
            raise WorkloadError(f"{option(stray[0])} is for the simulator: it cannot be used with --url")
        for name in ("policies", "workload"):
            if getattr(args, name) is None:
                raise WorkloadError(f"--{name} is needed")
        return
    if args.scenario is not None:
        for name in ("workload", "fleet", "limit"):
            if getattr(args, name) is not None:
                raise WorkloadError(f"--scenario has its own workload and fleet: leave out --{name}")
    elif args.small:
        raise WorkloadError("--small needs --scenario")
    elif args.workload is None or args.fleet is None:
        raise WorkloadError("give --workload and --fleet, or --scenario, or --url for a live gateway")
    if stray:
        raise WorkloadError(f"{option(stray[0])} is for a live gateway; it needs --url")
    if args.ray is not None and args.jobs is not None:
        raise WorkloadError("--jobs cannot be used with --ray")


def policy_names(text: str | None, usual: Sequence[str] = ()) -> tuple[str, ...]:
    """`a,b` as names; all that are known for `all`, the usual ones for nothing."""
    if text is None:
        return tuple(usual)
    if text == "all":
        return tuple(policies.POLICIES)
    chosen = names(text)
    if not chosen or len(set(chosen)) != len(chosen):
        raise WorkloadError(f"--policies {text}: expected different names, separated by commas, or all")
    return chosen


def rates(text: str | None) -> tuple[float, ...] | None:
    """`1,2.5` as requests/s."""
    if text is None:
        return None
    try:
        found = positive_numbers(text)
    except argparse.ArgumentTypeError:
        raise WorkloadError(
            f"--rates {text}: expected different numbers above 0, separated by commas"
        ) from None
    if max(found) > LARGEST_FLOAT:
        raise WorkloadError(f"--rates {text}: must be at most {LARGEST_FLOAT:.0f}")
    return found


def scalers(text: str) -> tuple[ScalerChoice, ...]:
    """`queue,kpa:utilization=0.5` as scalers with their settings."""
    found = tuple(_scaler(each.strip()) for each in text.split(","))
    if len({each.text for each in found}) != len(found):
        raise WorkloadError(f"--scaler {text}: expected different scalers, separated by commas")
    return found


def _scaler(text: str) -> ScalerChoice:
    name, *pairs = text.split(":")
    settings = []
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            settings.append((key, float(value)))
        except ValueError:
            raise WorkloadError(f"--scaler {text}: expected {name}:SETTING=NUMBER, not {pair}") from None
    if len(dict(settings)) != len(settings):
        raise WorkloadError(f"--scaler {text}: a setting is given twice")
    return ScalerChoice(text, name, tuple(settings))
