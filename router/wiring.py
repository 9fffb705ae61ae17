"""Builds the object graph of a running gateway from a fleet file. No other module does this."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING

import backends
import policies
from backends import scanning
from backends.engine import profiles
from policies.settings import TargetTable
from predictors import kernels
from predictors.learned.artifact import ArtifactError
from predictors.learned.models import Models, load_models
from predictors.online.predictor import OnlinePredictor
from router import __version__
from router.config import ConfigError, FleetConfig, InstanceConfig, PoolConfig, Problem
from router.config.secrets import engine_secrets, secret, state_url, store_url
from router.core.events import FleetChanged
from router.core.interfaces import Backend, TextEstimates, TextEstimator
from router.core.scheduler import Scheduler
from router.core.types import PromptFeatures, Targets
from router.decision_log import DecisionLog, Header
from router.emulated import EmulatedEngines
from router.gateway.fleet.changes import FleetChanges
from router.gateway.fleet.instances import scheduler_settings, targets_of
from router.gateway.fleet.overlay import DOCUMENT as FLEET_DOCUMENT
from router.gateway.fleet.peers import PeerLink
from router.gateway.fleet.served import BackendFactory, ServedFleet
from router.gateway.fleet.token_count import TokenCounter
from router.gateway.keys.admission import BudgetAdmission
from router.gateway.keys.client_keys import DOCUMENT as KEYS_DOCUMENT
from router.gateway.keys.client_keys import ClientKeys
from router.gateway.records import Feedback
from router.gateway.runner import Runner
from router.gateway.service import Gateway
from router.gateway.telemetry.metrics import Metrics
from router.gateway.telemetry.stalls import StallWatch
from router.gateway.telemetry.tracing import Tracing
from router.request.tokenizer import PromptTokenizer
from router.store.memory_state import MemoryState
from router.store.queries import Store
from router.store.state import State

if TYPE_CHECKING:
    from router.scaling.actuator import Actuator
    from router.scaling.deployments import Deployments
    from router.scaling.loop import ScalingLoop

logger = logging.getLogger("headway")


def create_scheduler(config: FleetConfig, predictor: OnlinePredictor, rng: Random) -> Scheduler:
    """A scheduler for a fleet file, with every registered policy and no instances. The gateway and the simulator both
    use it."""
    scheduling, targets = config.scheduling, targets_of(config, config.auth.keys)
    scheduler = build_scheduler(predictor, rng, scheduling.confidence, scheduling.ttft_weight, targets)
    scheduler.handle(FleetChanged((), scheduler_settings(config)), 0.0)
    return scheduler


def build_scheduler(
    predictor: OnlinePredictor,
    rng: Random,
    confidence: float,
    ttft_weight: float,
    targets: Mapping[str | None, Targets],
) -> Scheduler:
    """A scheduler with default settings, every registered policy and no instances."""
    table = TargetTable(targets)
    chosen = policies.create_all(
        policies.PolicySettings(
            confidence=confidence,
            ttft_weight=ttft_weight,
            cached_tokens=predictor.cached_tokens,
            targets=table,
            text=text_estimators(predictor),
            tree_times=predictor.tree_times,
        )
    )
    return Scheduler((), chosen, predictor, None, rng, table.use)


def text_estimators(predictor: OnlinePredictor) -> dict[str, TextEstimator]:
    """The text-only estimators by name. Each uses the artifact that is in use when it is called. Empty if there was no
    artifact at the start."""

    def current(name: str) -> TextEstimator:
        def estimate(features: PromptFeatures, models: Sequence[str]) -> TextEstimates:
            text = predictor.models.text
            found = None if text is None else text.estimators.get(name)
            if found is None:
                nothing = [None] * len(models)
                return TextEstimates(nothing, nothing)
            return found(features, models)

        return estimate

    text = predictor.models.text
    return {} if text is None else {name: current(name) for name in text.estimators}


def create_predictor(config: FleetConfig) -> OnlinePredictor:
    """The predictor of a fleet file. Raises ConfigError for an artifact that is damaged or does not fit."""
    logger.info("%s", kernels.description())
    logger.info("%s", scanning.description())
    return OnlinePredictor(load_artifacts(config))


def load_artifacts(config: FleetConfig) -> Models:
    """The artifacts in a fleet file's directory; if it has none, the shipped ones. Raises ConfigError for an artifact
    that is damaged or does not fit."""
    directory = _path(config.predictors.directory)
    if directory is not None and not directory.exists():
        logger.warning("%s is not there: the shipped predictors serve", directory)
        directory = None
    try:
        return load_models(directory)
    except (ArtifactError, OSError) as error:
        raise ConfigError("predictors", [Problem(("directory",), str(error))]) from error


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


@asynccontextmanager
async def open_gateway(
    config: FleetConfig,
    *,
    reload: Callable[[], FleetConfig] | None = None,
    environment: Mapping[str, str] | None = None,
    seed: int | None = None,
    engine_url: Callable[[InstanceConfig], Awaitable[str]] | None = None,
    clock: Callable[[], float] = monotonic,
) -> AsyncIterator[Gateway]:
    """A started gateway. At the end it is stopped, its records are flushed and its emulated engines end.

    `reload` reads the fleet file again. `engine_url` returns the URL of an emulated engine (None: a child process, which
    ends with this one, runs them). `clock` times requests, in seconds. Raises ConfigError, StoreError.
    """
    environment = os.environ if environment is None else environment
    variable = config.auth.admin_key_env or "HEADWAY_ADMIN_KEY"
    unset = config.auth.admin_key_env is None and not environment.get(variable)
    admin_key = None if unset else secret(variable, environment, "auth.admin_key_env")
    async with AsyncExitStack() as stack:
        store = await Store.open(
            store_url(config, environment),
            retain_days=config.store.retain_days,
            max_mb=config.store.max_mb,
            keep_prompts=config.store.keep_prompts,
            spool_directory=_path(config.store.spool_directory),
            spool_mb=config.store.spool_mb,
            wait_s=30.0,  # machines that start together: the database may take longer
        )
        stack.push_async_callback(store.close)
        for each in config.instances:
            check_profile(each)
        if engine_url is None:
            engines = await stack.enter_async_context(EmulatedEngines())
            await engines.start([each for each in config.instances if each.is_emulated])
            engine_url = engines.url

        async def make_backend(instance: InstanceConfig, fleet: FleetConfig) -> Backend:
            check_profile(instance)
            return create_backend(instance, fleet, instance.url or await engine_url(instance), environment)

        tracing = create_tracing(config)
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        predictor = create_predictor(config)
        seed = secrets.randbits(63) if seed is None else seed
        scheduler = create_scheduler(config, predictor, Random(seed))
        gateway = create_gateway(
            config,
            Runner(scheduler, clock),
            store,
            create_state(config, environment, store.run_id),
            predictor,
            make_backend=make_backend,
            admin_key=admin_key,
            read_file=None if reload is None else partial(read_again, reload),
            tracing=tracing,
        )
        decision_log = create_decision_log(config, predictor.name, seed)
        if decision_log is not None:
            stack.callback(decision_log.close)
            gateway.runner.on_event = decision_log.write
        stack.push_async_callback(gateway.stop)
        scaling = create_scaling(gateway, make_backend, environment)
        await gateway.start()
        if config.discovery:
            # Here, because most fleets need neither.
            import aiohttp

            from router.discovery import KubernetesPods

            session = await stack.enter_async_context(aiohttp.ClientSession())
            for number, entry in enumerate(config.discovery):
                pods = KubernetesPods(entry, session, environment)
                gateway.tasks.start(pods.follow(partial(gateway.changes.found, number)), "discovery")
        if scaling is not None:
            await stack.enter_async_context(scaling)
        yield gateway


def read_again(read: Callable[[], FleetConfig]) -> FleetConfig:
    """The fleet file as it is now. Raises ConfigError, also for pools that could not be scaled."""
    config = read()
    if config.scaling.pools:
        from router.scaling.loop import create_scaler

        create_scaler(config)
    return config


def create_gateway(
    config: FleetConfig,
    runner: Runner,
    store: Store,
    state: State,
    predictor: OnlinePredictor,
    *,
    make_backend: BackendFactory,
    admin_key: str | None,
    read_file: Callable[[], FleetConfig] | None,
    tracing: Tracing | None,
) -> Gateway:
    """The object graph of a gateway that is not started. `read_file` reads the fleet file again (None: there is none)."""
    metrics = Metrics()
    keys = ClientKeys(store.keys, state, admin_key)
    fleet = ServedFleet(
        config,
        tuple(runner.scheduler.policies),
        runner=runner,
        keys=keys,
        metrics=metrics,
        make_backend=make_backend,
        profile=lru_cache(maxsize=1024)(profiles.find),  # thousands of instances have few
        load_tokenizers=load_tokenizers,
    )
    feedback = Feedback(store, state, runner.apply)
    peers = PeerLink(runner, state, predictor.sharing)
    changes = FleetChanges(
        config,
        fleet=fleet,
        runner=runner,
        state=state,
        peers=peers,
        feedback=feedback,
        read_file=read_file,
        read_models=load_artifacts,
    )
    peers.followers[FLEET_DOCUMENT] = changes.document_changed
    peers.followers[KEYS_DOCUMENT] = keys.document_changed
    runner.on_decision = metrics.observe_decision
    return Gateway(
        runner=runner,
        store=store,
        state=state,
        metrics=metrics,
        stalls=StallWatch(),
        tracing=tracing,
        admin_key=admin_key,
        predictor=predictor,
        feedback=feedback,
        keys=keys,
        budget_admission=BudgetAdmission(state),
        fleet=fleet,
        changes=changes,
        peers=peers,
        tokens=TokenCounter(runner, fleet),
    )


def create_scaling(
    gateway: Gateway, make_backend: BackendFactory, environment: Mapping[str, str]
) -> ScalingLoop | None:
    """What scales the fleet, if the fleet file has pools. Raises ConfigError."""
    config = gateway.config.scaling
    if not config.pools:
        return None
    from router.scaling.actuator import Actuator
    from router.scaling.loop import ScalingLoop

    actuator = Actuator(gateway)
    if config.actuator == "processes":
        from router.scaling.processes import Processes

        actuator = Processes(gateway, make_backend, environment)
    elif config.actuator == "kubernetes":
        actuator = create_deployments(gateway, environment)
    return ScalingLoop(gateway, actuator, gateway.store.run_id)


def deployments() -> type[Deployments]:
    """The actuator `kubernetes`. Raises ConfigError without the extra `kubernetes`."""
    try:
        from router.scaling.deployments import Deployments
    except ModuleNotFoundError as error:
        raise _lacks(error, "kubernetes", "scaling", "actuator") from None
    return Deployments


def create_deployments(gateway: Gateway, environment: Mapping[str, str]) -> Actuator:
    """What scales Deployments. Raises ConfigError without the extra `kubernetes`, and without an API server."""
    create = deployments()
    from router.discovery import ApiServer, server_of

    def server(pool: PoolConfig) -> ApiServer:
        entry = gateway.config.discovery_of(pool)
        assert entry is not None  # noqa: S101 (the fleet file is checked for it)
        return server_of(entry, environment)

    for pool in gateway.config.scaling.pools:
        server(pool)
    return create(gateway, server)


def create_decision_log(config: FleetConfig, predictors: str, seed: int) -> DecisionLog | None:
    """The decision log, if the fleet file names one. Each of several workers writes its own. Raises ConfigError."""
    wanted = config.observability
    if wanted.decision_log is None:
        return None
    path = Path(wanted.decision_log)
    if config.server.workers > 1:
        path = path.with_name(f"{path.name}.{os.getpid()}")
    header = Header(
        __version__,
        seed,
        predictors,
        config.predictors.directory,
        config.scheduling.confidence,
        config.scheduling.ttft_weight,
        targets_of(config, config.auth.keys),
    )
    try:
        return DecisionLog(path, header, wanted.decision_log_mb * 1024 * 1024)
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror}"
        raise ConfigError("observability", [Problem(("decision_log",), reason)]) from None


def create_tracing(config: FleetConfig) -> Tracing | None:
    """Sends traces, if the fleet file asks for them. Raises ConfigError without the extra `otel`, and for a wrong OTEL_*
    variable."""
    traces = config.observability.traces
    if not traces.enabled:
        return None
    try:
        return Tracing(traces.endpoint, traces.sample, __version__)
    except ModuleNotFoundError as error:
        raise _lacks(error, "otel", "observability", "traces", "enabled") from None
    except ValueError as error:
        reason = f"an OTEL_* variable is wrong: {error}"
        raise ConfigError("observability", [Problem(("traces", "enabled"), reason)]) from error


def _lacks(error: ModuleNotFoundError, extra: str, section: str, *path: str) -> ConfigError:
    """The value at a path needs an extra."""
    reason = f"needs {error.name}: pip install '.[{extra}]' in Headway's checkout"
    return ConfigError(section, [Problem(path, reason)])


def create_state(config: FleetConfig, environment: Mapping[str, str], run_id: str) -> State:
    """The state that replicas share, for the run `run_id`. Raises ConfigError for an invalid URL, or if the client
    library is missing. Does not check whether the server answers."""
    state, url = config.state, state_url(config, environment)
    if url == "memory://":
        return MemoryState()
    from router.store.redis_state import RedisState

    try:
        return RedisState(
            url,
            name=state.name,
            run_id=run_id,
            timeout_s=state.timeout_ms / 1000,
            interval_s=state.interval_ms / 1000,
            replicas=config.server.workers,
        )
    except (ValueError, ImportError) as error:
        raise ConfigError("state", [Problem(("url",), str(error))]) from None


def load_tokenizers(config: FleetConfig) -> dict[str, PromptTokenizer]:
    """The configured tokenizers by model. A file that several instances name is read once."""
    by_file: dict[str, PromptTokenizer] = {}
    found: dict[str, PromptTokenizer] = {}
    for instance in config.instances:
        if instance.tokenizer is None:
            continue
        if instance.tokenizer not in by_file:
            try:
                by_file[instance.tokenizer] = PromptTokenizer.from_file(instance.tokenizer)
            except ModuleNotFoundError as error:
                raise _lacks(error, "tokenizers", "instances", instance.name, "tokenizer") from None
            except ValueError as error:
                raise ConfigError("instances", [Problem((instance.name, "tokenizer"), str(error))]) from error
        for model in instance.serves:
            found.setdefault(model, by_file[instance.tokenizer])
    return found


def check_profile(instance: InstanceConfig) -> None:
    """Raise ConfigError if an emulated instance has no known profile."""
    if not instance.is_emulated:
        return
    found = instance.engine_profiles(profiles.find)
    for model in instance.serves:
        if model not in found:
            name = instance.profile_name(model)
            near = get_close_matches(name or "", profiles.names(), n=3)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise ConfigError(
                "instances",
                [Problem((instance.name, "profile"), f"there is no engine profile {name!r}{hint}")],
            )


def create_backend(
    instance: InstanceConfig,
    fleet: FleetConfig,
    url: str,
    environment: Mapping[str, str],
) -> Backend:
    """The adapter of one instance, with its secrets from the environment."""
    api_key, headers = engine_secrets(instance, environment)
    limits = fleet.limits
    try:
        return backends.create(
            instance.protocol,
            url=url,
            candidates=list(fleet.candidates(instance).values()),
            api_key=api_key,
            headers=headers,
            ca_file=instance.ca_file,
            settings=instance.settings,
            connect_timeout_s=limits.connect_timeout_s,
            idle_timeout_s=limits.idle_timeout_s,
            control_timeout_s=fleet.probes.timeout_s,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"instances.{instance.name}", [Problem((), str(error))]) from error
