"""`headway check`: reads a fleet file as the gateway does, and reports errors and warnings.

Errors (exit 2): the file is wrong, one of the gateway's own secrets is not set in this environment, an extra that the file
needs is missing, or the database or Redis answers with a refusal, for example because of a wrong password. Warnings:
conditions that may differ on the gateway's machine, such as an unset secret of an engine or a missing file (both stop a
start), a database or Redis that does not answer, or a model that no instance serves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.table import Table

from backends import scanning
from backends.engine import profiles
from router.config import ConfigError, FleetConfig, InstanceConfig, Problem, load, located
from router.config.errors import dotted
from router.config.marks import LocalFile, Variable, named

#: Sections whose secrets and files may be those of another machine.
_OF_ENGINES = {"instances", "discovery", "scaling"}
#: Time limit for Redis to answer.
_STATE_TIMEOUT_S = 3.0
#: As replicas do, it writes: a server may be read-only or full.
_TRY_STATE = "redis.call('SET', KEYS[1], '', 'PX', 1)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FLEET", help="fleet file to check")
    what.add_argument("--schema", action="store_true", help="print the fleet file's JSON schema and exit")
    parser.add_argument(
        "--engines", action="store_true", help="check that each engine serves the models in the file"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Print the schema, or the fleet and the warnings. Raises ConfigError for a file that stops a start."""
    if args.schema:
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **FleetConfig.model_json_schema(),
        }
        print(json.dumps(schema, indent=2))
        return 0
    from benchmarks.terminal import table_console
    from predictors import kernels
    from router.wiring import check_profile

    config = load(args.config)
    try:
        if problems := [*_unset_secrets(config), *_unwritable_files(config)]:
            raise ConfigError(args.config, problems)
        _check_artifacts(config)
        _check_packages(config)
        for instance in config.instances:
            check_profile(instance)
        if config.scaling.pools:
            from router.scaling.loop import create_scaler

            create_scaler(config)
        found = [
            *warnings(config, os.environ),
            *_store_warnings(config, args.config),
            *_state_warnings(config, args.config),
            *(asyncio.run(_engine_warnings(config)) if args.engines else ()),
        ]
    except ConfigError as error:
        raise located(error, args.config) from None
    not_simulated = why_not_simulated(config)
    if args.json:
        answer = {
            "ok": True,
            "models": [each.name for each in config.models],
            "instances": [each.name for each in config.instances],
            "compiled_kernels": kernels.WHY_NOT_NATIVE is None,
            "compiled_scanning": scanning.WHY_NOT_NATIVE is None,
            "not_simulated": not_simulated,
            "warnings": found,
        }
        print(json.dumps(answer))
        return 0
    console = table_console()
    console.print(_table(config))
    console.print(f"note: {kernels.description()}", markup=False)
    console.print(f"note: {scanning.description()}", markup=False)
    if not_simulated is not None:
        console.print(f"note: headway compare cannot simulate this fleet: {not_simulated}", markup=False)
    for warning in found:
        console.print(f"warning: {warning}", markup=False, style="yellow")
    console.print(f"{args.config}: ok{', with warnings' if found else ''}", markup=False)
    return 0


def _unset_secrets(config: FleetConfig) -> Iterator[Problem]:
    """Secrets of the gateway itself that are not set, or cannot be used."""
    from router.config.secrets import secret_fault

    for each in named(config):
        of_engines = each.path[0] in _OF_ENGINES or each.path[:2] == ("auth", "engine_env")
        if (
            isinstance(each.name, Variable)
            and not of_engines
            and (fault := secret_fault(each.name, os.environ))
        ):
            yield Problem(each.path, fault)


def _unwritable_files(config: FleetConfig) -> Iterator[Problem]:
    """Files of the gateway itself that cannot be written."""
    from router.store.runs import takes_files

    log, spool = config.observability.decision_log, config.store.spool_directory
    if spool is None and config.store.url.startswith("postgresql"):
        spool = str(Path.cwd())
    if log is not None and not _can_be_written(Path(log)):
        yield Problem(("observability", "decision_log"), f"cannot write {log}")
    if spool is not None:  # the start makes directories that are missing
        there = next(each for each in (Path(spool), *Path(spool).absolute().parents) if each.exists())
        if not takes_files(there):
            yield Problem(("store", "spool_directory"), f"cannot write in {spool}")


def _can_be_written(file: Path) -> bool:
    """Whether a file can be written, or made. It is not changed."""
    from router.store.runs import takes_files

    if not file.exists():
        return takes_files(file.parent)
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _check_artifacts(config: FleetConfig) -> None:
    """Raise ConfigError for artifacts that are damaged or incompatible."""
    if config.predictors.directory is not None and Path(config.predictors.directory).exists():
        from router.wiring import load_artifacts

        load_artifacts(config)


def _check_packages(config: FleetConfig) -> None:
    """Raise ConfigError for a missing extra. Other checks report those of the database, Redis and tokenizers."""
    from router.wiring import create_tracing, deployments

    tracing = create_tracing(config)
    if tracing is not None:
        tracing.close()
    if config.scaling.pools and config.scaling.actuator == "kubernetes":
        deployments()


def warnings(config: FleetConfig, environment: Mapping[str, str]) -> Iterator[str]:
    """Conditions that do not make the file wrong, but that an operator should know."""
    if config.predictors.directory is not None and not Path(config.predictors.directory).exists():
        yield f"predictors.directory {config.predictors.directory} does not exist: the shipped predictors are used"
    if config.ui.reports is not None and not Path(config.ui.reports).is_dir():
        yield f"ui.reports {config.ui.reports} is not a directory here: the page shows no comparison"
    for where, engine in _engines(config):
        absent = False
        for each in named(engine):
            if isinstance(each.name, Variable) and not environment.get(each.name):
                absent = True
                yield f"{where}: {dotted(each.path)}: environment variable {each.name} is not set"
            if isinstance(each.name, LocalFile) and not Path(each.name).is_file():
                absent = True
                yield f"{where}: {dotted(each.path)} {each.name} is not a file here"
        if not absent:
            yield from (f"{where}: {reason}" for reason in _unusable(engine, config, environment))
    yield from _discovery_warnings(config, environment)
    for instance in config.instances:
        known = instance.engine_profiles(profiles.find)
        for served in instance.serves:
            if served not in known and (profile := instance.profile_name(served)) is not None:
                yield (
                    f"instance {instance.name}: there is no engine profile {profile}; predictions start from a generic"
                    " profile"
                )
    models = {model for instance in config.instances for model in instance.serves}
    models |= {pool.model for pool in config.scaling.pools}
    for model in config.models:
        if model.name not in models:
            yield f"model {model.name}: no instance serves it"
        if model.price is None and any(
            model.name in each.serves and each.serves[model.name].price is None for each in config.instances
        ):
            yield f"model {model.name} has no price, so it counts as free"
    for section, wanted in (("judge", config.judge), ("second_look", config.second_look)):
        for key in config.auth.keys:
            if wanted is None or key.name != wanted.key or key.models is None:
                continue
            if config.model(wanted.model) not in map(config.model, key.models):
                yield f"{section}: its key {key.name} may not use the model {wanted.model}, so nothing is judged"


def _engines(config: FleetConfig) -> Iterator[tuple[str, InstanceConfig]]:
    """All engines that the file describes, each with its name in warnings."""
    for instance in config.instances:
        yield f"instance {instance.name}", instance
    for number, entry in enumerate(config.discovery):
        yield f"discovery[{number}]", entry.instance.at("pod", f"{entry.kubernetes.scheme}://pod")
    for pool in config.scaling.pools:
        yield f"pool {pool.name}", pool.instance.at(pool.name, "http://127.0.0.1")


def _discovery_warnings(config: FleetConfig, environment: Mapping[str, str]) -> Iterator[str]:
    """Entries whose API server or namespace is not known here."""
    for number, entry in enumerate(config.discovery):
        from router.discovery import server_of  # here, because most fleets do not need it

        try:
            server_of(entry, environment)
        except ConfigError as error:
            yield from (f"discovery[{number}]: {dotted(each.path)} {each.reason}" for each in error.problems)


def _unusable(instance: InstanceConfig, config: FleetConfig, environment: Mapping[str, str]) -> Iterator[str]:
    """Why the values of an instance's variables and the contents of its files cannot be used."""
    from router.wiring import create_backend, load_tokenizers

    def use() -> None:
        create_backend(instance, config, instance.url or "http://127.0.0.1", environment)

    for step in (use, lambda: load_tokenizers(config.model_copy(update={"instances": (instance,)}))):
        try:
            step()
        except ConfigError as error:
            yield from (each.reason for each in error.problems)


def why_not_simulated(config: FleetConfig) -> str | None:
    """The reason why `headway compare` cannot simulate the fleet; None if it can."""
    from benchmarks.simulator import open_fleet
    from benchmarks.workloads.format import WorkloadError

    try:
        open_fleet(config)
    except WorkloadError as error:
        return str(error)
    return None


def _store_warnings(config: FleetConfig, source: str) -> Iterator[str]:
    """Warnings about the database, which has a few seconds to answer. Raises ConfigError for one that stops a start."""
    from router.config.secrets import store_url
    from router.db_command import upgrade_due
    from router.keys_command import known_keys, lost_keys
    from router.store.database import StoreError

    url = store_url(config, os.environ)
    try:
        due = asyncio.run(upgrade_due(url))
    except StoreError as error:
        raise ConfigError(source, [Problem(("store", "url"), str(error))]) from None
    keys = None
    if due is not None:
        yield due
    else:
        with contextlib.suppress(StoreError, TimeoutError):
            keys = asyncio.run(known_keys(config, url))
    if keys is not None:
        yield from keys.left_out
    if config.auth.keys or (keys is not None and (keys.left_out or any(True for _ in keys))):
        return
    if (mark := lost_keys(config, url)) is not None:
        yield f"the database had keys before ({mark} records it): if it has none now, every request is refused"
    elif config.auth.required:
        yield "the file has no keys, and keys are required: if the database has none either, every request is refused"
    elif keys is None:
        yield "auth.keys is empty: anyone who reaches the gateway may use it, unless the database has keys"
    else:
        yield "there are no keys: anyone who reaches the gateway may use it"


def _state_warnings(config: FleetConfig, source: str) -> Iterator[str]:
    """A warning if Redis does not answer, or drops keys when it is full. Raises ConfigError if it refuses the connection."""
    if config.state.url == "memory://":
        return
    from router.config.secrets import state_url
    from router.store.redis_link import Link, Script
    from router.store.state import StateError, StateRefused

    async def connect() -> str | None:
        key = f"{{{config.state.name}}}:check"
        async with contextlib.aclosing(Link(state_url(config, os.environ), _STATE_TIMEOUT_S)) as link:
            await link.run(Script(_TRY_STATE), key)
            return await link.drops_keys(key)

    try:
        warning = asyncio.run(connect())
    except (StateRefused, ValueError, ImportError) as error:
        raise ConfigError(source, [Problem(("state", "url"), f"the shared state refuses: {error}")]) from None
    except StateError as error:
        yield f"the shared state does not answer here ({error})"
    else:
        if warning is not None:
            yield warning


async def _engine_warnings(config: FleetConfig) -> list[str]:
    """Warnings about engines that do not answer, or whose models are not those of the file."""
    from router.core.errors import UpstreamError
    from router.wiring import create_backend

    async def ask(instance: InstanceConfig, url: str) -> list[str]:
        try:
            backend = create_backend(instance, config, url, os.environ)
        except ConfigError:
            return []  # a secret or a file is missing here: there is a warning
        async with contextlib.aclosing(backend):
            try:
                found = (
                    await backend.mismatches()
                    if await backend.probe()
                    else ["the engine does not answer here"]
                )
            except UpstreamError as error:
                found = [f"the engine does not answer here: {error}"]
        return [f"instance {instance.name}: {each}" for each in found]

    asked = [ask(each, each.url) for each in config.instances if each.url is not None]
    return [warning for found in await asyncio.gather(*asked) for warning in found]


def _table(config: FleetConfig) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("instance", "kind", "where", "model", "engine profile"):
        table.add_column(column, overflow="fold")
    for column in ("in $/Mtok", "out $/Mtok", "quality", "context"):
        table.add_column(column, justify="right")
    for instance in config.instances:
        found = instance.engine_profiles(profiles.find)
        for candidate in config.candidates(instance).values():
            profile = found.get(candidate.model)
            table.add_row(
                instance.name,
                _kind(instance),
                instance.url or f"at {instance.speed:g} x real speed",
                candidate.model,
                (instance.profile_name(candidate.model) or "") if profile is None else profile.name,
                f"{candidate.price.input_usd_per_mtok:g}",
                f"{candidate.price.output_usd_per_mtok:g}",
                "" if candidate.quality is None else f"{candidate.quality:g}",
                "" if candidate.context_tokens is None else str(candidate.context_tokens),
            )
    return table


def _kind(instance: InstanceConfig) -> str:
    return f"{instance.kind} ({instance.emulates})" if instance.is_emulated else instance.kind
