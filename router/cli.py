"""The command `headway`: a table of subcommands. The module of a subcommand is imported only when it is used.

A command's module has `add_arguments(parser)` and `run(args) -> int` (the exit code). It may have `ERRORS`, the classes
of errors that `run` raises for bad input. Exit codes: 0 success, 1 ran and failed, 2 bad input or usage (one clear line
on stderr), 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from router import __version__
from router.extras import lack_of


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand's module, its line in `headway --help`, and the extra that it needs (one that brings `bench`)."""

    module: str
    help: str
    extra: str = "bench"


COMMANDS = {
    "serve": Command("router.serve", "run the gateway over a fleet file"),
    "demo": Command("router.demo", "run the gateway over emulated engines, which it starts itself"),
    "emulate": Command("backends.emulator.command", "serve emulated engines over HTTP (no model is run)"),
    "check": Command("router.check", "check a fleet file, or print its JSON schema"),
    "workload": Command("benchmarks.workloads.command", "build or show a workload"),
    "replay": Command("benchmarks.replay.command", "send a workload to a URL with its original timing"),
    "compare": Command("benchmarks.compare.command", "compare policies, in simulation or on a live gateway"),
    "plan": Command("benchmarks.planning.command", "plan which model runs on which GPUs of a cluster"),
    "collect": Command(
        "benchmarks.collect.command", "send the same prompts to every candidate at chosen loads", "train"
    ),
    "judge": Command(
        "benchmarks.judging.command", "score answers by a judge model, or compare them in pairs", "train"
    ),
    "dataset": Command("benchmarks.datasets.command", "release training data with a card"),
    "train": Command("benchmarks.training.command", "train a predictor and report its accuracy", "train"),
    "evaluate": Command("benchmarks.evaluate.command", "compare trained predictors with baselines", "train"),
    "calibrate": Command("benchmarks.calibrate.command", "fit an engine profile to measured requests"),
    "reproduce": Command(
        "benchmarks.reproduce.command", "run published placement systems on their own cases"
    ),
    "experiment": Command(
        "benchmarks.experiments.command",
        "measure how unpredictable and how different LLM instances are",
        "train",
    ),
    "keys": Command("router.keys_command", "make, list and revoke clients' keys"),
    "spend": Command("router.spend_command", "show the spending by day, key, policy and model"),
    "db": Command("router.db_command", "show the version of the database's tables, or upgrade them"),
    "export": Command("router.export", "export the records to a Parquet or CSV file"),
    "explain": Command("router.explain", "show the decisions for a request and what happened to it"),
    "replay-decisions": Command(
        "router.replay_decisions", "replay a gateway's decision log, and compare its instructions"
    ),
}


class _Parser(argparse.ArgumentParser):
    """Includes the invalid value in every error message, even if the argument's type does not."""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            error.message = error.message.replace("invalid _", "invalid ")
            if arg_string not in error.message:
                error.message += f" (given: {arg_string!r})"
            raise


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. Only the chosen command's module is imported and adds its arguments."""
    parser = _Parser(
        prog="headway", description="SLA-aware router and scheduler for mixed fleets of LLM instances."
    )
    parser.add_argument("--version", action="version", version=f"headway {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.help, description=_sentence(command.help))
        if name == chosen:
            importlib.import_module(command.module).add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command, and return its exit code."""
    # Before NumPy is imported: its matrix products are small here, and one thread per core would only compete with the
    # relay.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    for each in arguments:
        if each != each.encode(errors="replace").decode():
            return _refuse(f"the argument {each!r} is not UTF-8 text")
    chosen = next((each for each in arguments if not each.startswith("-")), None)
    if chosen == "serve":  # SIGHUP would end a gateway that starts: it waits until the gateway serves
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        if os.getpid() == 1:  # the first process of a container: without a handler the kernel drops SIGTERM
            signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    try:
        args = build_parser(chosen).parse_args(arguments)
        command = importlib.import_module(COMMANDS[args.command].module)
        try:
            code: int = command.run(args)
        except getattr(command, "ERRORS", ()) as error:
            print(_printable(f"headway {args.command}: {error}"), file=sys.stderr)
            return 2
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe; the interpreter's last flush must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        lack = None if chosen is None else lack_of(chosen, error, COMMANDS[chosen].extra)
        if lack is None:
            raise
        return _refuse(lack)
    except OSError as error:
        return _refuse(_described(error))
    except ValueError as error:
        from router.config.errors import ConfigError

        if not isinstance(error, ConfigError):
            raise
        return _refuse(str(error))
    return code


def _prepare_streams() -> None:
    """Open those of the standard streams that the caller has closed (`>&-`): a socket with the number of one ends libuv.
    What the encoding of standard output lacks becomes a question mark."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _refuse(message: str) -> int:
    print(_printable(f"headway: {message}" if "\n" not in message else message), file=sys.stderr)
    return 2


def _printable(message: str) -> str:
    """The message with escapes for what could control a terminal: it may quote a file of somebody else."""
    return "".join([each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in message])


def _described(error: OSError) -> str:
    """One line: the system's error, and the file or address."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    raise SystemExit(main())
