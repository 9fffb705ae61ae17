"""The fleet as this process serves it: its rules, its instances in the scheduler, the adapters of their engines.

A change has two steps. `prepare` does everything that can fail and changes nothing. `commit` cannot fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from router.background import Tasks, close_all
from router.config import FleetConfig, InstanceConfig
from router.core.errors import UpstreamError
from router.core.events import FleetChanged, TargetsChanged
from router.core.interfaces import Backend
from router.core.types import Candidate, Targets
from router.gateway.fleet.instances import (
    ProfileLookup,
    instance_of,
    placeholders,
    scheduler_settings,
    targets_of,
)
from router.gateway.fleet.monitor import Monitor
from router.gateway.fleet.overlay import Values
from router.gateway.fleet.rules import Rules
from router.gateway.keys.client_keys import ClientKeys
from router.gateway.runner import Runner
from router.gateway.telemetry.metrics import Metrics
from router.request.tokenizer import PromptTokenizer
from router.store.keys import StoredKey

logger = logging.getLogger("headway")

BackendFactory = Callable[[InstanceConfig, FleetConfig], Awaitable[Backend]]
TokenizerLoader = Callable[[FleetConfig], dict[str, PromptTokenizer]]


@dataclass(frozen=True, slots=True)
class PreparedFleet:
    """A fleet that is ready to serve. `plan` has for each instance whether it stays as it is. `made` closes the new adapters
    if the fleet is not committed."""

    rules: Rules
    tokenizers: dict[str, PromptTokenizer]
    plan: Sequence[tuple[InstanceConfig, dict[str, Candidate], bool]]
    backends: dict[str, Backend]
    made: AsyncExitStack


class ServedFleet:
    """Holds the current rules (`rules`), adapters (`backends`) by instance, tokenizers by model, and targets by key (None: the
    fleet's)."""

    def __init__(
        self,
        config: FleetConfig,
        policies: tuple[str, ...],
        *,
        runner: Runner,
        keys: ClientKeys,
        metrics: Metrics,
        make_backend: BackendFactory,
        profile: ProfileLookup,
        load_tokenizers: TokenizerLoader,
    ) -> None:
        """`make_backend` and `load_tokenizers` raise ConfigError."""
        self.policies = policies
        self.rules = Rules.of(config, policies)
        self.backends: Mapping[str, Backend] = {}
        self.tokenizers: Mapping[str, PromptTokenizer] = {}
        self.targets: Mapping[str | None, Targets] = targets_of(config, config.auth.keys)
        self._changed_targets: Mapping[str | None, Values] = {}
        self.monitor = Monitor(runner, config.probes.interval_s, config.probes.timeout_s)
        self._runner = runner
        self._keys = keys
        self._metrics = metrics
        self._make_backend = make_backend
        self._profile = profile
        self._load_tokenizers = load_tokenizers
        self._was_open = False  # when keys last changed
        self._closing = Tasks()
        keys.on_change = self._use_keys

    @property
    def config(self) -> FleetConfig:
        return self.rules.config

    # --- life ----------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Serve the fleet file, once each instance has been probed. Raises ConfigError."""
        self._install(await self.prepare(self.config))
        await self.monitor.probe_all(self.backends)
        self.monitor.watch(self.backends)

    async def stop(self) -> None:
        """Stop watching, close the connections to all engines."""
        await close_all(
            "shutdown",
            self._closing.stop,
            self.monitor.stop,
            *[backend.aclose for backend in self.backends.values()],
        )

    # --- changes -------------------------------------------------------------------------------------
    async def prepare(self, config: FleetConfig) -> PreparedFleet:
        """Do everything of a change that can fail, for what has changed. Raises ConfigError."""
        old, known = self.config, self._runner.scheduler.instances
        self._keys.check(config)
        tokenizers = await asyncio.to_thread(self._load_tokenizers, config)
        # Tuples of the same object are equal at once.
        served = {each.name: (each,) for each in old.instances if each.name in self.backends}
        models_stay = old.models == config.models
        limits_stay = (old.limits, old.probes) == (config.limits, config.probes)
        plan: list[tuple[InstanceConfig, dict[str, Candidate], bool]] = []
        backends: dict[str, Backend] = {}
        async with AsyncExitStack() as made:
            for each in config.instances:
                stays = served.get(each.name) == (each,)
                candidates = known[each.name].candidates if stays and models_stay else config.candidates(each)
                same = stays and limits_stay and candidates == known[each.name].candidates
                plan.append((each, candidates, same))
                if same:
                    backends[each.name] = self.backends[each.name]
                else:
                    backends[each.name] = await self._make_backend(each, config)
                    made.push_async_callback(backends[each.name].aclose)
                    await asyncio.sleep(0)  # thousands may come at once
            every = [candidate for _, candidates, _ in plan for candidate in candidates.values()]
            rules = Rules.of(config, self.policies, self._keys.stored, every, self.rules)
            return PreparedFleet(rules, tokenizers, plan, backends, made.pop_all())

    def commit(self, prepared: PreparedFleet, changed_targets: Mapping[str | None, Values]) -> None:
        """Serve a prepared fleet from now on, with changed targets. Running requests continue where they are."""
        self._changed_targets = changed_targets
        unused = self._install(prepared)
        self.monitor.watch(self.backends)
        for backend in unused:
            self._closing.start(_close_when_idle(backend), "close-backend")

    def _install(self, prepared: PreparedFleet) -> list[Backend]:
        """Returns the adapters that are no longer used."""
        known = self._runner.scheduler.known_instances
        config, backends = prepared.rules.config, prepared.backends
        instances = [
            known[each.name] if same else instance_of(each, candidates, self._profile, known.get(each.name))
            for each, candidates, same in prepared.plan
        ]
        instances += placeholders(config, self._profile)
        unused = [backend for name, backend in self.backends.items() if backends.get(name) is not backend]
        self.backends = backends
        self.tokenizers = prepared.tokenizers
        self._use(prepared.rules.with_keys(self._keys.stored))  # keys may have changed since `prepare`
        self._runner.apply(FleetChanged(tuple(instances), scheduler_settings(config)))
        self._metrics.set_fleet(
            policies=self.policies,
            models=[model.name for model in config.models],
            aliases=[alias for model in config.models for alias in model.aliases],
            instances={instance.name: instance.kind for instance in instances if instance.name in backends},
            keys=[key.name for key in config.auth.keys],
        )
        self.monitor.interval_s, self.monitor.timeout_s = config.probes.interval_s, config.probes.timeout_s
        return unused

    def _use_keys(self, stored: Sequence[StoredKey]) -> None:
        """Keys were made or revoked."""
        self._use(self.rules.with_keys(stored))

    def _use(self, rules: Rules) -> None:
        before, self.rules = self.rules, rules
        if self._keys.lost or not before.keys.open:
            rules.keys.close()  # even if no key works any more
        if rules.working is not before.working:
            made = [name for name in rules.working if rules.tenants[name].stored is not None]
            self._metrics.set_fleet(policies=(), models=(), instances={}, keys=made)
        settings = (key.settings for key in rules.working.values())
        targets = targets_of(rules.config, settings, self._changed_targets)
        if targets != self.targets:
            self.targets = targets
            self._runner.apply(TargetsChanged(targets))
        if self._was_open and not rules.keys.open:
            logger.warning(
                "the first key closes the gateway: every request needs a key from now on%s",
                "" if self._keys.has_admin_key else ", and /admin needs an admin key, which does not exist",
            )
        self._was_open = rules.keys.open

    # --- requests ------------------------------------------------------------------------------------
    def backend(self, instance: str) -> Backend:
        """The adapter of an instance; UpstreamError if the instance has left the fleet since the decision."""
        backend = self.backends.get(instance)
        if backend is None:
            raise UpstreamError("the instance has left the fleet")
        return backend


async def _close_when_idle(backend: Backend) -> None:
    """Close an adapter that left the fleet when its last request has ended."""
    try:
        await asyncio.sleep(1)  # a decision made just now may still be on its way to it
        while backend.busy:  # noqa: ASYNC110 (rare; an event would cost each request)
            await asyncio.sleep(1)
    finally:
        await backend.aclose()
