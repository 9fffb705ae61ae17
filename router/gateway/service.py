"""The running gateway: one object that holds what requests share, and the life of the fleet."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from predictors.models import Models
from predictors.serving import PhysicalPredictor
from router.config import FleetConfig, InstanceConfig, with_instances
from router.core.errors import UpstreamError
from router.core.events import Tick
from router.core.interfaces import Backend, Call
from router.core.types import Candidate, Request
from router.gateway.budgets import DailySpend, midnight
from router.gateway.fleet import ProfileLookup, instance_of, scheduler_settings
from router.gateway.metrics import Metrics
from router.gateway.monitor import Monitor
from router.gateway.rules import Rules
from router.gateway.runner import Runner
from router.gateway.scaling import scaling
from router.gateway.targets import LiveTargets
from router.gateway.tokenizer import PromptTokenizer
from router.store.queries import Store
from router.store.records import RequestRecord
from router.store.state import State

BackendFactory = Callable[[InstanceConfig, FleetConfig], Awaitable[Backend]]


class Gateway:
    """What all requests share. Built by `router.wiring`; `start` and `stop` frame its life."""

    def __init__(
        self,
        config: FleetConfig,
        runner: Runner,
        store: Store,
        metrics: Metrics,
        policies: tuple[str, ...],
        make_backend: BackendFactory,
        profile: ProfileLookup,
        predictor: PhysicalPredictor,
        admin_key: str | None,
        state: State,
        load_tokenizers: Callable[[FleetConfig], dict[str, PromptTokenizer]],
        load_artifacts: Callable[[FleetConfig], Models],
        reload: Callable[[], FleetConfig] | None = None,
        targets: LiveTargets | None = None,
    ) -> None:
        """`targets` are those that the scheduler's policies ask."""
        self.runner = runner
        self.store = store
        self.metrics = metrics
        self.policies = policies
        self.admin_key = admin_key
        self._state = state
        self._load_tokenizers = load_tokenizers
        self._load_artifacts = load_artifacts
        self._tokenizers: dict[str, PromptTokenizer] = {}
        self._predictor = predictor
        self.backends: dict[str, Backend] = {}
        self.spend = DailySpend()
        self.draining = False
        self.started_at = time.time()
        self._make_backend = make_backend
        self._profile = profile
        self._reload = reload
        self._randomness: list[str] = []
        self._headers: dict[tuple[str, str], bytes] = {}
        self._fleet_lock = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()  # tasks must be held somewhere
        self.rules = Rules.of(config, policies, state)
        self.targets = targets or LiveTargets(config)
        scheduler = runner.scheduler
        runner.on_decision = metrics.observe_decision
        metrics.watch(
            instances=lambda: scheduler.instances.values(),  # noqa: PLW0108 (the dict is replaced on a reload)
            queue_depth=lambda: scheduler.queue_depth,
            desired_replicas=self._desired_replicas,
            records=store.counts,
            predictor=predictor,
        )
        self.monitor = Monitor(runner, config.probes.interval_s, config.probes.timeout_s)

    @property
    def config(self) -> FleetConfig:
        return self.rules.config

    @property
    def artifact(self) -> str:
        """What records say of the predictions: the artifacts in use."""
        return self._predictor.name

    def _desired_replicas(self) -> dict[str, int]:
        wanted = scaling(self.runner.scheduler, [model.name for model in self.config.models])
        return {each.model: each.desired_replicas for each in wanted if each.desired_replicas is not None}

    # --- life ----------------------------------------------------------------------------------------
    async def start(self) -> None:
        now = time.time()
        self.spend.load(await self.store.spend_by_key(midnight(now)), now)
        await self._learn_feedback()
        await self._apply_fleet(self.config, None)

    async def _learn_feedback(self) -> None:
        for model, features, quality in await self.store.feedback_to_learn():
            self._predictor.observe_quality(model, features, quality)

    async def stop(self) -> None:
        """Stop watching, close the engines' connections, flush the records."""
        await self.monitor.stop()
        self.runner.stop()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for backend in self.backends.values():
            await backend.aclose()
        await self.store.close()

    async def reload(self) -> FleetConfig:
        """Read the fleet file again and apply it; raises ConfigError and keeps the old one if it is bad."""
        if self._reload is None:
            return self.config
        config = self._reload()
        artifacts = await asyncio.to_thread(self._load_artifacts, config)
        await self.apply(config)
        if artifacts.name != self.artifact:
            self._predictor.use(artifacts)
            await self._learn_feedback()
        return self.config

    async def apply(self, config: FleetConfig) -> None:
        """Apply a changed fleet. Requests under way go on where they are."""
        await self.change(lambda _: config)
        self.targets.use(config)

    async def change(self, edit: Callable[[FleetConfig], FleetConfig]) -> None:
        """Apply what `edit` makes of the fleet as it is when its turn comes, so that of two changes at once
        neither undoes the other."""
        async with self._fleet_lock:
            old = self.config
            config = edit(old)
            rules = Rules.of(config, self.policies, self._state)
            await self._apply_fleet(config, old)
            self.rules = rules

    async def _apply_fleet(self, config: FleetConfig, old: FleetConfig | None) -> None:
        scheduler = self.runner.scheduler
        tokenizers = await asyncio.to_thread(self._load_tokenizers, config)
        known = {} if old is None else {each.name: (each, old.candidates(each)) for each in old.instances}
        plan: list[tuple[InstanceConfig, dict[str, Candidate], bool]] = []  # whether it stays as it is
        gone: list[Backend] = []
        backends: dict[str, Backend] = {}
        same_limits = old is not None and old.limits == config.limits
        try:
            for each in config.instances:
                candidates = config.candidates(each)
                same = (
                    same_limits and known.get(each.name) == (each, candidates) and each.name in self.backends
                )
                plan.append((each, candidates, same))
                backends[each.name] = (
                    self.backends[each.name] if same else await self._make_backend(each, config)
                )
        except BaseException:
            for name, backend in backends.items():
                if self.backends.get(name) is not backend:
                    await backend.aclose()
            raise
        # From here on nothing fails: instances that are in use may be changed.
        instances = [
            scheduler.instances[each.name]
            if same
            else instance_of(each, candidates, self._profile, scheduler.instances.get(each.name))
            for each, candidates, same in plan
        ]
        for name, backend in self.backends.items():
            if backends.get(name) is not backend:
                gone.append(backend)
                self.monitor.renew(name)
            if name not in backends:
                self._predictor.forget(name)
        self.backends = backends
        self._tokenizers = tokenizers
        self._headers.clear()
        scheduler.set_instances(instances)
        scheduler.settings = scheduler_settings(config)
        self.runner.apply(Tick())  # queued requests may go to what has come, or must be told what has gone
        self.metrics.set_fleet(
            policies=self.policies,
            models=[model.name for model in config.models],
            aliases=[alias for model in config.models for alias in model.aliases],
            instances={instance.name: instance.kind for instance in instances},
            keys=[key.name for key in config.auth.keys],
        )
        self.monitor.interval_s, self.monitor.timeout_s = config.probes.interval_s, config.probes.timeout_s
        if old is None:
            await self.monitor.look(backends)
        self.monitor.watch(backends)
        for backend in gone:
            self._close_later(backend)

    def drain_instance(self, name: str) -> None:
        """Send an instance nothing more; it leaves the fleet when its last request has ended."""
        instance = self.runner.scheduler.instances[name]
        if instance.draining:
            return
        instance.draining = True
        self.runner.apply(Tick())

        async def leave() -> None:
            while instance.in_flight and instance.draining:  # noqa: ASYNC110 (rare; an event would cost)
                await asyncio.sleep(0.2)
            if instance.draining and self.runner.scheduler.instances.get(name) is instance:
                await self.remove_instance(name)

        self._in_background(leave(), f"drain {name}")

    async def remove_instance(self, name: str) -> None:
        """Take an instance out of the fleet now; what it carries runs to its end."""
        await self.change(
            lambda config: with_instances(config, [each for each in config.instances if each.name != name])
        )

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _close_later(self, backend: Backend) -> None:
        """A backend that left the fleet lives until the last request that it carries has ended."""

        async def close() -> None:
            try:
                await asyncio.sleep(1)  # a decision of this moment may still be on its way to it
                while backend.busy:  # noqa: ASYNC110 (rare; an event would cost each request)
                    await asyncio.sleep(1)
            finally:
                await backend.aclose()

        self._in_background(close(), "close backend")

    async def take_feedback(self, request_id: str, quality: float, key: str | None) -> bool:
        """Keep a judgement of an answer (`quality` 0 to 1) and learn from it; False if the key has no such
        request."""
        if not await self.store.add_feedback(request_id, quality, key):
            return False
        if len(await self.store.feedback(request_id)) > 1:
            return True  # kept; but one answer is judged once, or one caller could talk a model down
        for model, features, judged in await self.store.feedback_to_learn(request_id=request_id, limit=1):
            self._predictor.observe_quality(model, features, judged)
        return True

    def predictors(self) -> dict[str, Any]:
        """What was trained, and how it does: for people."""
        predictor = self._predictor
        return {
            "name": predictor.name,
            "artifacts": {kind: dict(about) for kind, about in predictor.models.about.items()},
            "latency": [
                {"model": model, "hardware": hardware, **trust.as_dict()}
                for (model, hardware), trust in sorted(predictor.groups().items())
            ],
            "length_weight": predictor.length_weights(),
            "feedback": predictor.feedback_counts(),
        }

    def prediction_quality(self, instance: str) -> dict[str, float | None] | None:
        """How well predictions for an instance have held lately; None before the first."""
        return self._predictor.coverage().get(instance)

    # --- requests ------------------------------------------------------------------------------------
    def new_request_id(self) -> str:
        """Time-ordered and unguessable."""
        if not self._randomness:
            noise = secrets.token_bytes(8 * 256)  # one system call for many ids
            self._randomness = [noise[at : at + 8].hex() for at in range(0, len(noise), 8)]
        return f"req_{int(time.time() * 1000):011x}{self._randomness.pop()}"

    def backend(self, instance: str) -> Backend:
        """The adapter of an instance; UpstreamError if it has left the fleet since the decision."""
        backend = self.backends.get(instance)
        if backend is None:
            raise UpstreamError("the instance has left the fleet")
        return backend

    def candidate_headers(self, candidate: Candidate) -> bytes:
        """The header lines that name a candidate."""
        key = (candidate.instance, candidate.model)
        headers = self._headers.get(key)
        if headers is None:
            headers = self._headers[key] = (
                f"x-headway-model: {candidate.model}\r\nx-headway-instance: {candidate.instance}\r\n".encode()
            )
        return headers

    async def count_tokens(self, request: Request, api: str, body: Mapping[str, Any]) -> None:
        """Set the prompt's token count from a tokenizer: one that is configured, else the engine's own where
        the count decides (a money cap, a prompt near a context's length)."""
        for model in request.models:
            tokenizer = self._tokenizers.get(model)
            if tokenizer is not None:
                self._counted(request, model, *await tokenizer.count(api, body))
                return
        if request.longest_prompt_tokens is not None:
            return  # of many prompts the estimate must do: each would take a call
        least = self.rules.least_context_tokens
        if request.max_cost_usd is None and (least is None or request.prompt_tokens_bound < least):
            return
        asked = self._tokenizing(request)
        if asked is None:
            return
        backend, candidate = asked
        try:
            async with asyncio.timeout(self.config.limits.connect_timeout_s):
                count = await backend.count_tokens(Call(api, body, candidate, request.id))
        except (UpstreamError, TimeoutError):
            return  # the estimate and its bound hold
        if count is not None:
            self._counted(request, candidate.model, count, count)

    @staticmethod
    def _counted(request: Request, model: str, tokens: int, bound: int) -> None:
        """Take over a count by one model's tokenizer; another model's may count more."""
        request.prompt_tokens = tokens
        request.counted = model, bound
        if len({*request.models, *request.fallbacks}) == 1:
            request.prompt_tokens_bound = bound

    def _tokenizing(self, request: Request) -> tuple[Backend, Candidate] | None:
        """A live engine that can count the request's tokens, where a candidate's context leaves doubt."""
        found = None
        unsure = request.max_cost_usd is not None
        for model in (*request.models, *request.fallbacks):
            for instance in self.runner.scheduler.serving(model):
                candidate = instance.candidates[model]
                context = candidate.context_tokens
                # No text is eight times denser or looser than the estimate.
                if context is not None and request.prompt_tokens / 8 < context <= request.prompt_tokens_bound:
                    unsure = True
                if found is None and instance.healthy and not instance.draining and instance.kind == "vllm":
                    found = self.backends[instance.name], candidate
        return found if unsure else None

    def finish(self, record: RequestRecord) -> None:
        """A request has ended: count it and keep it."""
        self.metrics.record(record)
        self.rules.keys.settle(record)
        self.spend.charge(record)
        self.store.writer.put(record)
