"""`headway calibrate`: fit an engine profile to measured requests."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson
import yaml

from backends.engine import UnknownProfile, profile
from benchmarks.calibrate.errors import TARGETS
from benchmarks.calibrate.fit import combinations, fit, guess
from benchmarks.calibrate.measured import (
    Level,
    Measured,
    Splitter,
    Study,
    by_load,
    read_file,
    request_of,
    splitter,
)
from benchmarks.calibrate.profile import CHUNKED, LIMITS, STEP_CONSTANTS, Constants, as_dict
from benchmarks.calibrate.report import REPORT_KEY, Result, groups, result_of, text
from benchmarks.calibrate.sources import SOURCES
from benchmarks.checks import check_options, check_out, names
from benchmarks.replay.command import RESULTS_KEY
from benchmarks.terminal import progress_bar
from benchmarks.workloads.format import WorkloadError, writing
from benchmarks.workloads.published import grouped, json_lines
from router.config.fields import Count

#: Requests to fit about ten constants to.
_LEAST_ANSWERED = 20
#: What is read of a row of a replay, beside its arrival.
_REPLAYED = ("prompt_tokens", "output_tokens", "ttft_s", "e2e_s")
_CHUNKED = {"on": (True,), "off": (False,)}
ERRORS = (WorkloadError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="measurements, or row files of `headway replay`, one a level",
    )
    parser.add_argument("--source", choices=sorted(SOURCES), help="published measurements instead of files")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HEADWAY_DATA"), help="their folder (HEADWAY_DATA)"
    )
    parser.add_argument("--engine", metavar="NAME", help="only this engine of the source")
    parser.add_argument(
        "--name", metavar="MODEL@HARDWARE", help="what to call the profile (default: the engine's name)"
    )
    parser.add_argument("--fit", type=names, metavar="LEVELS", help="levels to fit, with commas between")
    parser.add_argument(
        "--test", type=names, metavar="LEVELS", help="levels to hold out (default: every third by load)"
    )
    parser.add_argument("--start", metavar="PROFILE", help="start from this profile of the registry")
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=N[,N..]",
        help=f"a limit of the engine; of several values the best one is used: {', '.join(LIMITS)}",
    )
    parser.add_argument(
        "--chunked-prefill",
        choices=sorted(_CHUNKED),
        help="off: complete prompts go first, as in older vLLM (default: as the source says, else what fits)",
    )
    parser.add_argument(
        "--evaluations", type=int, default=400, metavar="N", help="maximum number of simulations (400)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write report.json, report.txt, profile.yaml")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0. A missed target is no failure."""
    check_out(args.out, WorkloadError)
    check_options(args, WorkloadError, evaluations=Count)
    limits: dict[str, tuple[int, ...]] = parse_limits(args.limit)
    if args.chunked_prefill is not None:
        limits[CHUNKED] = _CHUNKED[args.chunked_prefill]
    results = [_calibrate(study, limits, args) for study in _studies(args)]
    shown = text(results)
    report = orjson.dumps(
        {REPORT_KEY: 1, "results": [result.as_dict() for result in results], "groups": groups(results)},
        option=orjson.OPT_INDENT_2,
    )
    if args.out is not None:
        _write(args.out, report, shown, results)
    print(report.decode() if args.json else shown)
    return 0


def parse_limits(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """{limit: values}. A WorkloadError for what is no NAME=N[,N..]."""
    limits: dict[str, tuple[int, ...]] = {}
    for each in given:
        name, equals, values = each.partition("=")
        if name not in LIMITS or not equals:
            raise WorkloadError(f"--limit {each}: expected NAME=N[,N..] with a name of {', '.join(LIMITS)}")
        try:
            limits[name] = tuple(int(value) for value in values.split(","))
        except ValueError:
            raise WorkloadError(f"--limit {each}: {values!r} is not a whole number") from None
        if min(limits[name]) < 1:
            raise WorkloadError(f"--limit {each}: must be at least 1")
    return limits


def _studies(args: argparse.Namespace) -> list[Study]:
    split = splitter(args.fit, args.test)
    if args.source is None:
        if args.engine is not None:
            raise WorkloadError("--engine: needs --source")
        return [study_of_files(args.files, split, args.name or "engine")]
    if args.files:
        raise WorkloadError("give files or --source, not both")
    if args.data is None:
        raise WorkloadError("--source needs --data DIR or HEADWAY_DATA")
    every = SOURCES[args.source](args.data, split)
    studies = [study for study in every if args.engine in (None, study.name)]
    if not studies:
        raise WorkloadError(f"--engine {args.engine}: there are {', '.join(study.name for study in every)}")
    if args.name is not None:
        if len(studies) > 1:
            raise WorkloadError("--name: the source has several engines; choose one with --engine")
        studies = [replace(studies[0], name=args.name)]
    return studies


def study_of_files(files: Sequence[Path], split: Splitter, name: str = "engine") -> Study:
    """One engine's study of all levels in `files`."""
    if not files:
        raise WorkloadError("nothing to fit: give files or --source")
    found = grouped((level for path in files for level in read_levels(path)), attrgetter("name"))
    levels = by_load([level for same in found.values() for level in same])
    study = Study(name, {level.name: level for level in levels}, split([level.name for level in levels]))
    if len(levels) < 2:
        raise WorkloadError(
            "too little to fit: there is one load level; measure at two at least, of which one is held out"
        )
    answered = sum(each.e2e_s is not None for level in study.part(study.split.fit) for each in level.requests)
    if answered < _LEAST_ANSWERED:
        raise WorkloadError(
            f"too little to fit: {answered} requests with an E2E in the fitted levels; give {_LEAST_ANSWERED} at least"
        )
    return study


def read_levels(path: Path) -> list[Level]:
    """The levels of a file in the measurement form, or the one level of a replay's row file, named by its file."""
    for _, head in json_lines(path):
        return [_replayed(path)] if RESULTS_KEY in head else read_file(path)
    raise WorkloadError(f"{path}: is empty")


def _replayed(path: Path) -> Level:
    """Arrivals are the scheduled instants, from which a row's TTFT and E2E count too. A request that failed is
    left out: what it cost the engine is not known. Rows of several instances are no measurement of one."""
    requests: list[Measured] = []
    instances = set()
    for number, row in json_lines(path):
        if number == 1 or not row.get("complete"):
            continue
        data = {"arrival_s": row.get("scheduled_s"), **{name: row.get(name) for name in _REPLAYED}}
        requests.append(request_of(data, f"{path}, line {number}"))
        instances.add((row.get("headers") or {}).get("x-headway-instance"))
    if not requests:
        raise WorkloadError(f"{path}: no request was answered in full")
    if len(instances) > 1:
        raise WorkloadError(f"{path}: answered by {len(instances)} instances; replay to one of them alone")
    return Level(path.stem, tuple(requests)).complete()


def _calibrate(study: Study, given: Mapping[str, Sequence[int]], args: argparse.Namespace) -> Result:
    start = study.first or guess(study)
    if near := args.start or study.start:
        start = _from_registry(near, start)
    limits = {CHUNKED: (True, False), **study.limits, **given}
    with progress_bar("loss {task.fields[loss]}") as bar:
        total = args.evaluations * len(combinations(study, start, limits))
        task = bar.add_task(f"fitting {study.name}", total=total, loss="-")
        fitted = fit(
            study,
            start,
            limits,
            evaluations=args.evaluations,
            on_evaluation=lambda loss: bar.update(task, advance=1, loss=f"{loss:.4f}"),
        )
    return result_of(study, fitted)


def _from_registry(name: str, first: Constants) -> Constants:
    """A registered profile's constants and limits; what it does not have stays as guessed from the data."""
    try:
        known = profile(name)
    except UnknownProfile as error:
        raise WorkloadError(f"--start: {error}") from None
    step: dict[str, Any] = {
        each: value for each in STEP_CONSTANTS if (value := getattr(known, each, 0.0)) > 0
    }
    limits = {each: getattr(known, each) for each in LIMITS}
    return replace(first, profile=replace(first.profile, **step, **limits))


def _write(folder: Path, report: bytes, shown: str, results: Sequence[Result]) -> None:
    profiles = {result.study.name: as_dict(result.fitted.constants) for result in results}
    found = yaml.safe_dump(profiles, sort_keys=False)
    aims = ", ".join(f"{metric} {target:.0%}" for metric, target in TARGETS.items())
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_bytes(report + b"\n")
        (folder / "report.txt").write_text(shown + "\n", encoding="utf-8")
        (folder / "profile.yaml").write_text(
            f"# Fitted by headway calibrate. Aims on levels held out: {aims}; see report.txt.\n{found}",
            encoding="utf-8",
        )
