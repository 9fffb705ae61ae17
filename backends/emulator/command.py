"""`headway emulate`: emulated engines as a process of their own."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import uvloop
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.emulator.instance import EmulatedInstance, OnStop, start_all, stop_all
from backends.emulator.servers import SERVERS, first_problem
from backends.engine.profiles import UnknownProfile, names

STOP_GRACE_S = 5.0

if TYPE_CHECKING:
    ServerName = str
else:
    ServerName = Literal[tuple(SERVERS)]

#: Keys of an instance in a `--config` file; further keys are arguments of `EmulatedInstance`.
_NOT_PASSED = {"name", "kind", "profile", "model", "models", "api_key_env"}


class InstanceSettings(BaseModel):
    """One instance of a `--config` file. Further keys are options of its kind of server (`VllmOptions`,
    `OllamaOptions`). `models` maps served names to profile names; `model` and `profile` are short for one."""

    model_config = ConfigDict(extra="allow", strict=True)

    kind: ServerName = "vllm"
    name: str | None = None
    profile: str | None = None
    model: str | None = None
    models: Annotated[dict[str, str], Field(min_length=1)] | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    speed: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] = 1.0
    api_key_env: str | None = None
    keep_alive_s: Annotated[float, Field(ge=0, strict=False)] | None = None
    on_stop: OnStop = "error"


#: Arguments of the command that are keys of an instance.
_FLAGS = {
    *InstanceSettings.model_fields,
    *(key for each in SERVERS.values() for key in each.OPTIONS.model_fields),
}


class BadInput(Exception):
    """A wrong argument or file. The message is one line for the user."""


ERRORS = (BadInput,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `headway emulate`."""
    parser.description = "Serve an emulated vLLM or Ollama over HTTP: real wire format, made-up text."
    parser.add_argument("--list", action="store_true", help="print the names of all profiles and end")
    parser.add_argument(
        "--config", metavar="FILE", help="YAML or JSON list of instances, all in this process"
    )
    parser.add_argument("--kind", choices=tuple(SERVERS), help="default: vllm")
    parser.add_argument("--profile", metavar="MODEL@HARDWARE", help="engine profile (see --list)")
    parser.add_argument(
        "--model", metavar="NAME", help="name it is served under (default: the profile's model)"
    )
    parser.add_argument("--name", help="name of the instance in messages")
    parser.add_argument("--host", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, help="default: 8000 for vllm, 11434 for ollama; 0: any")
    parser.add_argument("--speed", type=float, help="10: ten times as fast as the hardware")
    parser.add_argument(
        "--api-key-env", metavar="VAR", help="environment variable with the key that guards /v1"
    )
    parser.add_argument(
        "--max-num-queued-reqs", type=int, metavar="N", help="vllm: shed above N requests in flight"
    )
    parser.add_argument(
        "--shed-in-stream",
        action="store_true",
        default=None,
        help="vllm: shed streams with 200 and an error event",
    )
    parser.add_argument(
        "--max-model-len", type=int, metavar="TOKENS", help="vllm: context, prompt and output"
    )
    parser.add_argument("--num-parallel", type=int, metavar="N", help="ollama: slots of a model")
    parser.add_argument("--num-ctx", type=int, metavar="TOKENS", help="ollama: default context of a slot")
    parser.add_argument(
        "--on-stop", choices=get_args(OnStop), help="what running streams get (default: error)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code. Raises BadInput."""
    if args.list:
        print("\n".join(names()))
        return 0
    instances = from_arguments(args)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(instances))
    return 0


def from_arguments(args: argparse.Namespace) -> list[EmulatedInstance]:
    """The instances of `--config`, or the one that the flags describe. Raises BadInput."""
    given = {key: getattr(args, key) for key in sorted(_FLAGS) if getattr(args, key, None) is not None}
    if args.config:
        if given:
            flags = ", ".join(f"--{key.replace('_', '-')}" for key in given)
            raise BadInput(f"{flags}: with --config this is a key of each instance in the file")
        return from_file(Path(args.config))
    if not args.profile:
        raise BadInput("--profile is needed (or --config or --list)")
    return [from_settings(given, "command line")]


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
    """One instance from its settings (`InstanceSettings`). Raises BadInput."""
    try:
        given = InstanceSettings.model_validate(settings)
        server = SERVERS[given.kind]
        server.OPTIONS.model_validate(given.model_extra)
        passed = {"port": server.PORT, **given.model_dump(exclude_none=True, exclude=_NOT_PASSED)}
        if given.models is not None:
            models = given.models
        elif given.profile is not None:
            models = {given.model or given.profile.partition("@")[0]: given.profile}
        else:
            raise BadInput(f"{where}: a profile (or models) is needed")
        if given.api_key_env is not None:
            passed["api_key"] = _secret(given.api_key_env, where)
        return EmulatedInstance(given.name or f"{given.kind}-{passed['port']}", given.kind, models, **passed)
    except ValidationError as error:
        raise BadInput(f"{where}: {first_problem(error)}") from None
    except (ValueError, UnknownProfile) as error:
        raise BadInput(f"{where}: {error}") from None


def _secret(variable: str, where: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise BadInput(f"{where}: the environment variable {variable} is not set")
    return value


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
        gc.freeze()  # objects that exist by now stay, so the collector skips them
        await stopped.wait()
        await stop_all(instances, STOP_GRACE_S)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
