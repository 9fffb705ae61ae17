"""`headway replay-decisions`: feeds the events of a decision log to a scheduler again, and compares the instructions.

The same events give the same instructions, byte for byte. So a wrong decision can be repeated in a debugger, without
the gateway that made it. And after a change of the code, a replay shows which decisions changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random

from backends.stream import ODD_SHAPES
from predictors.learned.artifact import ArtifactError
from predictors.learned.models import load_models
from predictors.online.predictor import OnlinePredictor
from router.core.scheduler import Scheduler
from router.core.state import Instance
from router.decision_log import Header, LogError, compared, read
from router.wiring import build_scheduler

#: The characters of a differing line that are shown on each side of the difference.
_SHOWN = 60
ERRORS = (LogError, ArtifactError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a decision log (observability.decision_log of the fleet file)",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Replay a log. Returns 0 if all instructions are the same, else 1. Raises LogError, ArtifactError, OSError."""
    events, differences = replay(args.file)
    if args.json:
        found = [{"line": line, "logged": logged, "replayed": now} for line, logged, now in differences]
        sys.stdout.write(json.dumps({"events": events, "differences": found}) + "\n")
    elif not differences:
        sys.stdout.write(f"{events} events replayed: the same instructions\n")
    else:
        sys.stdout.write(f"{events} events replayed: {len(differences)} gave other instructions\n")
        line, logged, replayed = differences[0]
        at = next((i for i, (a, b) in enumerate(zip(logged, replayed, strict=False)) if a != b), 0)
        around = slice(max(0, at - _SHOWN), at + _SHOWN)
        sys.stdout.write(f"line {line}, character {at}:\n  logged:   {logged[around].strip()}\n")
        sys.stdout.write(f"  replayed: {replayed[around].strip()}\n")
    return 1 if differences else 0


def replay(path: Path) -> tuple[int, list[tuple[int, str, str]]]:
    """The number of events, and for each event with other instructions: its line in the file, the logged instructions
    and the new ones. Raises LogError, ArtifactError, OSError."""
    instances: dict[str, Instance] = {}
    events, differences = 0, []
    # A byte that is not UTF-8 becomes an escape that JSON does not have, so its line is refused as no JSON.
    with path.open(encoding="utf-8", errors="backslashreplace") as file:
        line = 1
        try:
            header, lines = read(path, file, instances)
            scheduler = scheduler_of(header)
            scheduler.on_fault = _show_fault
            for line, logged in enumerate(lines, start=2):
                events += 1
                replayed = compared(scheduler.handle(logged.event, logged.now))
                if replayed != logged.instructions:
                    differences.append((line, logged.instructions, replayed))
                instances.clear()
                instances.update(scheduler.known_instances)
        except ArtifactError:
            raise
        except ODD_SHAPES as error:
            raise LogError(
                f"{path}: at line {line} or the next a value is missing or of another kind ({type(error).__name__})"
            ) from error
    return events, differences


def scheduler_of(header: Header) -> Scheduler:
    """A scheduler in the state in which the log begins. Raises LogError if the log's predictors are not available."""
    directory = None if header.directory is None else Path(header.directory)
    predictor = OnlinePredictor(load_models(directory))
    if predictor.name != header.predictors:
        raise LogError(f"the log was made with the predictors {header.predictors}; here are {predictor.name}")
    return build_scheduler(
        predictor, Random(header.seed), header.confidence, header.ttft_weight, dict(header.targets)
    )


def _show_fault(error: Exception) -> None:
    sys.stderr.write(f"a policy or a predictor failed: {type(error).__name__}: {error}\n")
