"""Whom to ask: the instances of a fleet file (emulated ones are started and ended), or plain URLs."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import yaml

from backends import KINDS
from backends.engine import profiles
from backends.http1 import tls_context
from backends.ollama import OLLAMA
from benchmarks.collect.clients import Client, OllamaClient, OpenAIClient
from benchmarks.replay.client import check_url
from predictors.learned.names import family_of
from router.config import ConfigError, FleetConfig, InstanceConfig, Problem, load, loads
from router.config.secrets import engine_secrets
from router.core.interfaces import Backend
from router.core.types import Candidate
from router.emulated import EmulatedEngines
from router.wiring import check_profile, create_backend


@dataclass(frozen=True, slots=True)
class Engine:
    """One instance, open: `client` sends requests, `backend` (the gateway's adapter) reads its load.
    `profiles` has the engine profile's name for each model that has one."""

    name: str
    kind: str
    candidates: tuple[Candidate, ...]
    client: Client
    backend: Backend
    hardware: str | None = None
    speed: float = 1.0
    profiles: Mapping[str, str] = field(default_factory=dict)


def fleet_from(args: argparse.Namespace) -> FleetConfig:
    """The fleet that the command line names, `--config` or URLs. Raises ConfigError, WorkloadError."""
    if args.config is not None:
        config = load(args.config)
        if not config.instances:
            raise ConfigError(args.config, [Problem(("instances",), "has no instance to send prompts to")])
        return config
    for option, urls in (("--vllm", args.vllm), ("--ollama", args.ollama)):
        for url in urls:
            check_url(url, option)
    models = [{"name": name, "family": family_of(name)} for name in args.model]
    served = {name: {"name": name} for name in args.model}
    key = {} if args.api_key_env is None else {"api_key_env": args.api_key_env}
    instances = [
        {"name": f"{kind}-{number}", "kind": kind, "url": url, "serves": served, **key}
        for kind, urls in (("vllm", args.vllm), ("ollama", args.ollama))
        for number, url in enumerate(urls)
    ]
    return loads(yaml.safe_dump({"models": models, "instances": instances}), "command line")


@asynccontextmanager
async def open_engines(config: FleetConfig, environment: Mapping[str, str]) -> AsyncIterator[list[Engine]]:
    """All instances of a fleet, open; they may be down. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        emulated = await stack.enter_async_context(EmulatedEngines())
        for each in config.instances:
            check_profile(each)
        await emulated.start([each for each in config.instances if each.is_emulated])
        engines = []
        for each in config.instances:
            url = each.url if each.url is not None else await emulated.url(each)
            backend = create_backend(each, config, url, environment)
            stack.push_async_callback(backend.aclose)
            client = _client(each, url, environment)
            stack.push_async_callback(client.aclose)
            engines.append(
                Engine(
                    name=each.name,
                    kind=each.protocol,
                    candidates=tuple(config.candidates(each).values()),
                    client=client,
                    backend=backend,
                    hardware=each.hardware_name,
                    speed=each.speed,
                    profiles={
                        name: known.name for name, known in each.engine_profiles(profiles.find).items()
                    },
                )
            )
        yield engines


def _client(instance: InstanceConfig, url: str, environment: Mapping[str, str]) -> Client:
    key, headers = engine_secrets(instance, environment)
    tls = tls_context(instance.ca_file) if instance.ca_file is not None else None
    kind = KINDS[instance.protocol]
    if kind is OLLAMA:
        return OllamaClient(url, key, headers, tls)
    return OpenAIClient(url, key, headers, tls, kind.chat_bound)
