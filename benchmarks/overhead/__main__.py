"""`python -m benchmarks.overhead`: see the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.progress import TimeRemainingColumn

from benchmarks.checks import add_number
from benchmarks.overhead import report
from benchmarks.overhead.processes import StartError
from benchmarks.overhead.scenarios import SCENARIOS, TARGETS, Measured, measure, run_count
from benchmarks.terminal import INTERRUPTED, progress_bar


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead",
        description="Measure what the gateway itself costs, beside no gateway, nginx and a Rust router.",
    )
    add_number(made, "--passes", 3, "N", "repeat N times")
    add_number(made, "--duration", 3.0, "S", "seconds a run measures")
    add_number(made, "--rate", 200.0, "R", "requests/s of the scenario json")
    made.add_argument(
        "--scenarios",
        type=lambda text: _names(text, tuple(SCENARIOS)),
        default=list(SCENARIOS),
        metavar="A,B",
        help=f"of {', '.join(SCENARIOS)} (default: all)",
    )
    made.add_argument(
        "--targets",
        type=lambda text: _names(text, TARGETS),
        default=list(TARGETS),
        metavar="A,B",
        help=f"of {', '.join(TARGETS)} (default: all; nginx and vllm-router only where they are installed)",
    )
    made.add_argument(
        "--micro",
        action="store_true",
        help="measure single steps of the hot path by themselves, nothing else",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure, raw results included")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code: 1 if it could not be measured, 2 for bad arguments."""
    options = parser().parse_args(arguments)
    if options.json is not None:
        try:
            options.json.touch()
        except OSError as error:
            return _say(f"cannot write {options.json}: {error.strerror}", 2)
    try:
        text, figures = _micro() if options.micro else _overhead(options)
    except StartError as error:
        return _say(str(error), 1)
    except KeyboardInterrupt:
        return INTERRUPTED
    print(text)
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    return 0


def _overhead(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    scenarios = [SCENARIOS[name] for name in options.scenarios]
    with progress_bar(TimeRemainingColumn()) as progress:
        task = progress.add_task("starting", total=run_count(scenarios, options.targets, options.passes))

        def on_run(run: str) -> None:
            progress.update(task, description=run, advance=1)

        measured: Measured = measure(
            scenarios,
            targets=options.targets,
            passes=options.passes,
            duration_s=options.duration,
            rate_per_s=options.rate,
            on_run=on_run,
        )
    settings = {"passes": options.passes, "duration_s": options.duration, "rate_per_s": options.rate}
    return report.text(measured), report.as_json(measured, settings)


def _micro() -> tuple[str, Mapping[str, Any]]:
    from benchmarks.overhead import micro

    costs = micro.measure()
    return micro.text(costs), {"micro": [asdict(cost) for cost in costs]}


def _say(message: str, code: int) -> int:
    print(f"python -m benchmarks.overhead: {message}", file=sys.stderr)
    return code


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)!r} is none of {', '.join(known)}")
    return list(dict.fromkeys(names))


if __name__ == "__main__":
    sys.exit(main())
