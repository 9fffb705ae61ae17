"""`headway emulate`: emulated engines as a process of their own."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import uvloop
import yaml

from backends.emulator.instance import EmulatedInstance, Kind, OnStop, start_all, stop_all
from backends.engine.profiles import UnknownProfile, names

STOP_GRACE_S = 5.0

#: Keys of one instance in a --config file: beside these, the flags' names without dashes.
_KEYS = frozenset(
    {
        *(
            "name",
            "kind",
            "profile",
            "model",
            "models",
            "host",
            "port",
            "speed",
            "api_key_env",
            "keep_alive_s",
        ),
        *("on_stop", "aliases", "max_num_queued_reqs", "shed_in_stream", "max_model_len", "prefix_caching"),
        *("num_parallel", "num_ctx", "max_loaded_models", "max_queue", "model_keep_alive_s"),
    }
)
_PASSED = _KEYS - {"name", "kind", "profile", "model", "models", "api_key_env"}
_INTEGERS = frozenset(
    {
        "port",
        "max_num_queued_reqs",
        "max_model_len",
        "num_parallel",
        "num_ctx",
        "max_loaded_models",
        "max_queue",
    }
)
_NUMBERS = frozenset({"speed", "keep_alive_s", "model_keep_alive_s"})


class BadInput(Exception):
    """One clear line for the user; exit 2."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `headway emulate`."""
    parser.description = "Serve an emulated vLLM or Ollama over HTTP: real wire format, made-up text."
    parser.add_argument("--list", action="store_true", help="print the names of all profiles and end")
    parser.add_argument(
        "--config", metavar="FILE", help="YAML or JSON list of instances, all in this process"
    )
    parser.add_argument("--kind", choices=get_args(Kind), default="vllm")
    parser.add_argument("--profile", metavar="MODEL@HARDWARE", help="engine profile (see --list)")
    parser.add_argument(
        "--model", metavar="NAME", help="name it is served under (default: the profile's model)"
    )
    parser.add_argument("--name", help="name of the instance in messages")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=None, help="default: 8000 for vllm, 11434 for ollama; 0: any"
    )
    parser.add_argument("--speed", type=float, default=1.0, help="10: ten times as fast as the hardware")
    parser.add_argument(
        "--api-key-env", metavar="VAR", help="environment variable with the key that guards /v1"
    )
    parser.add_argument(
        "--max-num-queued-reqs", type=int, metavar="N", help="vllm: shed above N requests in flight"
    )
    parser.add_argument(
        "--shed-in-stream", action="store_true", help="vllm: shed streams with 200 and an error event"
    )
    parser.add_argument(
        "--max-model-len", type=int, metavar="TOKENS", help="vllm: context, prompt and output"
    )
    parser.add_argument("--num-parallel", type=int, metavar="N", help="ollama: slots of a model")
    parser.add_argument("--num-ctx", type=int, metavar="TOKENS", help="ollama: default context of a slot")
    parser.add_argument(
        "--on-stop", choices=get_args(OnStop), default="error", help="what running streams get"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    if args.list:
        print("\n".join(names()))
        return 0
    try:
        instances = from_file(Path(args.config)) if args.config else [from_arguments(args)]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(instances))
    except BadInput as error:
        print(f"headway emulate: {error}", file=sys.stderr)
        return 2
    return 0


def from_arguments(args: argparse.Namespace) -> EmulatedInstance:
    """The instance that the flags describe. Raises BadInput."""
    if not args.profile:
        raise BadInput("--profile is needed (or --config or --list)")
    settings: dict[str, Any] = {
        key: getattr(args, key) for key in sorted(_KEYS) if getattr(args, key, None) is not None
    }
    return from_settings(settings, "command line")


def from_file(path: Path) -> list[EmulatedInstance]:
    """The instances of a --config file. Raises BadInput."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise BadInput(f"{path} is not valid YAML or JSON{where}") from None
    if isinstance(found, dict) and isinstance(found.get("instances"), list):
        found = found["instances"]
    if not isinstance(found, list) or not found or not all(isinstance(item, dict) for item in found):
        raise BadInput(f"{path} must hold a list of instances")
    return [from_settings(item, f"{path}, instance {number}") for number, item in enumerate(found, 1)]


def from_settings(settings: Mapping[str, Any], where: str) -> EmulatedInstance:
    """One instance from its settings (`_KEYS`). Raises BadInput."""
    unknown = sorted(set(settings) - _KEYS)
    if unknown:
        raise BadInput(f"{where}: unknown key {unknown[0]!r}")
    for key in sorted(_INTEGERS & set(settings)):
        if (
            isinstance(settings[key], bool)
            or not isinstance(settings[key], int)
            or settings[key] < (key != "port")
        ):
            raise BadInput(f"{where}: {key} must be a positive integer (given: {settings[key]!r})")
    for key in sorted(_NUMBERS & set(settings)):
        if isinstance(settings[key], bool) or not isinstance(settings[key], int | float) or settings[key] < 0:
            raise BadInput(f"{where}: {key} must be a number of at least 0 (given: {settings[key]!r})")
    kind = settings.get("kind", "vllm")
    if kind not in get_args(Kind):
        raise BadInput(f"{where}: unknown kind {kind!r}: vllm or ollama")
    on_stop = settings.get("on_stop", "error")
    if on_stop not in get_args(OnStop):
        raise BadInput(f"{where}: unknown on_stop {on_stop!r}: {', '.join(get_args(OnStop))}")
    models = settings.get("models")
    if models is None:
        profile = settings.get("profile")
        if not isinstance(profile, str):
            raise BadInput(f"{where}: a profile (or models) is needed")
        models = {str(settings.get("model") or profile.partition("@")[0]): profile}
    if not isinstance(models, dict) or not all(
        isinstance(item, str) for pair in models.items() for item in pair
    ):
        raise BadInput(f"{where}: models must map served names to profile names")
    api_key = None
    variable = settings.get("api_key_env")
    if variable is not None:
        api_key = os.environ.get(str(variable))
        if not api_key:
            raise BadInput(f"{where}: the environment variable {variable} is not set")
    passed: dict[str, Any] = {key: settings[key] for key in _PASSED if settings.get(key) is not None}
    passed.setdefault("port", 8000 if kind == "vllm" else 11434)
    try:
        return EmulatedInstance(
            str(settings.get("name") or f"{kind}-{passed['port']}"), kind, models, api_key=api_key, **passed
        )
    except (ValueError, UnknownProfile) as error:
        raise BadInput(f"{where}: {error}") from None


async def _serve(instances: list[EmulatedInstance]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        try:
            await start_all(instances)
        except OSError as error:
            raise BadInput(f"cannot listen: {error.strerror or error}") from None
        print("headway emulate: an emulator, no model runs here and all text is made up", flush=True)
        for instance in instances:
            print(instance.describe(), flush=True)
        gc.collect()
        gc.freeze()  # what is built by now stays: no collection needs to walk it
        await stopped.wait()
        await stop_all(instances, STOP_GRACE_S)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
