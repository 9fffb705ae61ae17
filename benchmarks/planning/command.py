"""`headway plan`: which model runs on which GPUs, for a cluster, models, requests and an objective.

headway plan --cluster FILE --models FILE --workload FILE --out DIR
headway plan --cluster FILE --models FILE --rates llama-3.1-8b=4,qwen2.5-7b=2 --slo ttft_ms=2000,tpot_ms=80
headway plan --config FLEET --from-store --what-if +1xl4
headway plan --cluster FILE --models FILE --batch FILE
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import orjson
from pydantic import Field

import policies
from benchmarks.checks import check_options, check_out, option, seed
from benchmarks.compare.pool import MOST_PROCESSES, Processes, ProcessLost, cores
from benchmarks.planning import batch
from benchmarks.planning.demand import LEAST_S, REQUESTS
from benchmarks.planning.drawing import batch_svg, plan_svg
from benchmarks.planning.fleet import fleet_yaml
from benchmarks.planning.inputs import inputs
from benchmarks.planning.report import table
from benchmarks.planning.scoring import DrawnDemand
from benchmarks.planning.search import Objective, PlanningAims
from benchmarks.planning.session import Infeasible, Session
from benchmarks.terminal import print_json, shown_progress
from benchmarks.workloads.format import WorkloadError, writing
from benchmarks.workloads.sources.generators import PROCESSES
from router.config.fields import Count, Positive, Share
from router.store.database import StoreError

ERRORS = (WorkloadError, StoreError)
#: Options that say nothing of a batch.
_OF_REQUESTS = ("limit", "config", "slo", "objective", "what_if", "budget_usd_per_hour", "jobs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is planned")
    what.add_argument(
        "--cluster", type=Path, metavar="FILE", help="the GPUs: pools of {gpu, gpus, node_gpus, usd_per_hour}"
    )
    what.add_argument(
        "--models", type=Path, metavar="FILE", help="the models, as in a fleet file, with their `weights`"
    )
    what.add_argument("--workload", type=Path, metavar="FILE", help="the requests: a workload file")
    what.add_argument(
        "--rates",
        metavar="MODEL=R,...",
        help="the requests: a generated stream of R requests/s for each model",
    )
    what.add_argument(
        "--batch",
        type=Path,
        metavar="FILE",
        help="in place of requests: one batch of prompts to prefill as soon as possible: {tokens: [N, ...]}",
    )
    what.add_argument(
        "--arrivals", choices=tuple(PROCESSES), default="poisson", help="with --rates: the arrival process"
    )
    what.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"only N requests (default: {REQUESTS}; of a file or --rates all of the first {LEAST_S:g} s, if these are more)",
    )
    what.add_argument(
        "--config",
        type=Path,
        metavar="FLEET",
        help="a fleet file, for what is not given: cluster, models, policy and store",
    )
    what.add_argument(
        "--from-store",
        nargs="?",
        const="",
        metavar="URL",
        help="the requests: the last ones in a gateway's records (default: the store of --config)",
    )
    what.add_argument(
        "--slo", metavar="ttft_ms=..,tpot_ms=..,e2e_ms=..", help="targets of requests that have none"
    )
    what.add_argument(
        "--policy",
        metavar="NAME",
        help="the policy that will serve (default: that of --config, else latency)",
    )
    search = parser.add_argument_group("the search")
    search.add_argument(
        "--objective",
        choices=get_args(Objective),
        help="the most attainment (default), the largest load or the least cost that keep --target",
    )
    search.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="plan for a changed cluster too: +1xl4, 1xa100-80g=1xh100-80g@USD or (with =) --what-if=-1xl4; may be repeated",
    )
    search.add_argument(
        "--target",
        type=float,
        default=0.95,
        metavar="SHARE",
        help="the attainment that `throughput` and `cost` keep (default 0.95)",
    )
    search.add_argument("--budget-usd-per-hour", type=float, metavar="X", help="no plan costs more than X")
    search.add_argument(
        "--time-s",
        type=float,
        default=60.0,
        metavar="S",
        help="about how long to search each cluster (default 60); the best plans are scored in any case",
    )
    search.add_argument(
        "--seed", type=seed, default=0, metavar="S", help="the first draw of the requests (default 0)"
    )
    search.add_argument("--jobs", type=int, metavar="N", help="processes (default: one for each core)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write plan.json, and plan.svg and fleet.yaml of the best plan",
    )
    parser.add_argument("--json", action="store_true", help="print the plans as JSON")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, 1 if no placement is possible."""
    _check(args)
    _check_out(args.out)
    try:
        if args.batch is None:
            data, fleet = _planned(args)
        else:
            base = {"defaults": {"policy": args.policy or "length_groups"}}
            data, fleet = batch.plan_batch(args.batch, args.cluster, args.models, base)
    except (Infeasible, ProcessLost) as error:
        print(f"headway plan: {error}", file=sys.stderr)
        return 1
    if args.out is not None:
        _write(args.out, data, fleet, plan_svg(data) if args.batch is None else batch_svg(data))
    if args.json:
        print_json(data)
    else:
        print("\n".join(table(data) if args.batch is None else batch.table(data)))
        if args.out is not None:
            print(f"written to {args.out}")
    return 0


def _check(args: argparse.Namespace) -> None:
    given = [each for each in ("workload", "rates", "from_store", "batch") if getattr(args, each) is not None]
    if len(given) != 1:
        raise WorkloadError("give one of --workload, --rates, --from-store and --batch")
    if args.batch is not None:
        if args.cluster is None or args.models is None:
            raise WorkloadError("--batch needs --cluster and --models")
        if given := [option(name) for name in _OF_REQUESTS if getattr(args, name)]:
            raise WorkloadError(f"--batch cannot be used with {', '.join(given)}")
    if args.from_store == "" and args.config is None:
        raise WorkloadError(
            "--from-store needs the URL of a store, or --config with a fleet file that names it"
        )
    if args.policy is not None and args.policy not in policies.POLICIES:
        raise WorkloadError(f"unknown policy {args.policy!r} (known: {', '.join(policies.POLICIES)})")
    check_options(
        args,
        WorkloadError,
        limit=Count,
        jobs=Annotated[Count, Field(le=MOST_PROCESSES)],
        **dict.fromkeys(("time_s", "budget_usd_per_hour"), Positive),
        target=Share,
    )


def _check_out(out: Path | None) -> None:
    """Raises WorkloadError for a folder that cannot be written, before the search and not after it."""
    check_out(out, WorkloadError)
    if out is not None:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=out).close()


def _planned(args: argparse.Namespace) -> tuple[dict[str, Any], Mapping[str, Any]]:
    given = inputs(args)
    if not given.cluster.has_prices and (args.budget_usd_per_hour is not None or args.objective == "cost"):
        raise WorkloadError("prices are needed: give usd_per_hour of every pool, or of every instance")
    aims = PlanningAims(
        args.objective or "attainment",
        len(given.models),
        len(given.requests),
        args.target,
        args.budget_usd_per_hour,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        Processes(args.jobs or cores()) as processes,
        shown_progress("planning") as progress,
    ):
        draws = DrawnDemand(given.demand, Path(folder))
        session = Session(given, aims, draws, processes, args.time_s, args.seed, progress)
        return session.run(args.what_if)


def _write(out: Path, data: Mapping[str, Any], fleet: Mapping[str, Any], svg: str) -> None:
    with writing(out):
        (out / "plan.json").write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
        (out / "plan.svg").write_text(svg, encoding="utf-8")
        (out / "fleet.yaml").write_text(fleet_yaml(fleet), encoding="utf-8")
