"""The running gateway: one object that holds what requests share, and the life of the fleet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from predictors.models import Models
from predictors.serving import OnlinePredictor
from predictors.sharing import LessonCounts
from router.background import Tasks, close_all, surviving
from router.config import FleetConfig, InstanceConfig
from router.core.errors import Refusal, UpstreamError
from router.core.events import FleetChanged
from router.core.interfaces import COUNTED_FIELDS, Backend, Call
from router.core.types import Candidate, Outcome, Request
from router.gateway.fleet.changes import FleetChanges
from router.gateway.fleet.instances import ProfileLookup, instance_of, scheduler_settings
from router.gateway.fleet.monitor import Monitor
from router.gateway.fleet.overlay import DOCUMENT, Overlay
from router.gateway.fleet.peers import PeerLink
from router.gateway.fleet.scaling import scaling
from router.gateway.fleet.targets import LiveTargets
from router.gateway.http.callers import admin_needs_key
from router.gateway.keys.admission import BudgetAdmission, rolled_up
from router.gateway.keys.client_keys import ClientKeys
from router.gateway.relay.runner import Runner
from router.gateway.rules import Rules
from router.gateway.telemetry.metrics import BudgetLevel, Metrics
from router.gateway.telemetry.stalls import StallWatch
from router.gateway.telemetry.tracing import Tracing
from router.logs import log_request
from router.request.prompt import IMAGE_TOKENS, PromptFacts, unseen_bytes
from router.request.tokenizer import PromptTokenizer
from router.store.database import StoreError
from router.store.keys import StoredKey
from router.store.queries import Store
from router.store.records import RequestRecord
from router.store.state import TOTAL, State, StateError

logger = logging.getLogger("headway")

BackendFactory = Callable[[InstanceConfig, FleetConfig], Awaitable[Backend]]

#: A row reaches the store within about 0.2 s of its request's end. What another replica served is looked for again
#: after this long.
_RECORDED_S = 0.3
#: So many judgements of one answer are kept; the first is learned from.
MAX_JUDGEMENTS = 8
#: Spending that could not be read is asked for again after this long.
_LOAD_AGAIN_S = 5.0
#: The shared document that changes whenever keys were made or revoked; they themselves stand in the database.
_KEYS = "keys"


@dataclass(frozen=True, slots=True)
class PreparedFleet:
    """A fleet of which everything that may fail has been done. `plan` says of each instance whether it stays as it is;
    `made` are the adapters that are new."""

    config: FleetConfig
    rules: Rules
    tokenizers: dict[str, PromptTokenizer]
    plan: Sequence[tuple[InstanceConfig, dict[str, Candidate], bool]]
    backends: dict[str, Backend]
    made: Sequence[Backend]

    async def discard(self) -> None:
        """It is not to be used after all."""
        for backend in self.made:
            await backend.aclose()


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
        predictor: OnlinePredictor,
        admin_key: str | None,
        state: State,
        load_tokenizers: Callable[[FleetConfig], dict[str, PromptTokenizer]],
        load_artifacts: Callable[[FleetConfig], Models],
        reload: Callable[[], FleetConfig] | None = None,
        targets: LiveTargets | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`targets` are those that the scheduler's policies ask; without `tracing` no request is traced."""
        self.runner = runner
        self.store = store
        self.metrics = metrics
        self.policies = policies
        self.admin_key = admin_key
        self.state = state
        self.tracing = tracing
        self._load_tokenizers = load_tokenizers
        self.load_artifacts = load_artifacts
        self._tokenizers: dict[str, PromptTokenizer] = {}
        self._predictor = predictor
        self.backends: dict[str, Backend] = {}
        self.budget_admission = BudgetAdmission(state)
        self.draining = False
        self.started_at = time.time()
        self._make_backend = make_backend
        self._profile = profile
        self._reload = reload
        self._randomness: list[str] = []
        self._headers: dict[tuple[str, str], bytes] = {}
        self._was_open = False  # as the keys were used last
        self._background = Tasks()
        self._host = config.server.host
        self.rules = Rules.of(config, policies, state)
        self.keys = ClientKeys(store.keys, admin_key, self._use_keys, self._tell_of_keys)
        self.targets = targets or LiveTargets(config)
        self.changes = FleetChanges(self, config, state)
        self.peers = PeerLink(runner, state, predictor.sharing)
        self.peers.followers[DOCUMENT] = self.changes.heard
        self.peers.followers[_KEYS] = lambda _: self.in_background(
            self.keys.refresh_soon(), "client-keys refresh"
        )
        self.stalls = StallWatch()
        scheduler = runner.scheduler
        runner.on_decision = metrics.observe_decision
        metrics.watch(
            instances=lambda: scheduler.instances.values(),  # noqa: PLW0108 (the dict is replaced on a reload)
            queue_depth=lambda: scheduler.queue_depth,
            desired_replicas=self._desired_replicas,
            records=store.counts,
            predictor=predictor,
            live=lambda: scheduler.live,
            state=lambda: state.health,
            budgets=self._budget_levels,
            stalls=self.stalls,
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
        wanted = scaling(
            self.runner.scheduler,
            [model.name for model in self.config.models],
            self.peers.queued_elsewhere,
        )
        return {each.model: each.desired_replicas for each in wanted if each.desired_replicas is not None}

    def _budget_levels(self) -> Iterator[BudgetLevel]:
        """How far the budgets of keys are used today and in all."""
        now = time.time()
        for name, account in self.rules.accounts.items():
            for budget in account.budgets(now):
                if budget.key == name and math.isfinite(budget.limit_usd):
                    period = TOTAL if budget.period == TOTAL else "day"
                    spent_usd = self.state.spent_usd(name, budget.period)
                    yield BudgetLevel(name, period, spent_usd, budget.limit_usd)

    # --- life ----------------------------------------------------------------------------------------
    async def start(self) -> None:
        self.stalls.start()
        await self.keys.start(self.config)
        if self.keys.lost:
            self.rules.keys.close()
            self._was_open = False
        if self.admin_key is None:
            nobody = admin_needs_key(self.rules, None)
            logger.log(
                logging.WARNING if nobody else logging.INFO,
                "there is no admin key: /admin answers %s",
                "nobody until there is one" if nobody else "programs on this machine only",
            )
        await self._load_spent()
        self.in_background(self._load_late_spending(), "late-spending")
        await self._learn_feedback()
        self._install(await self.prepare(self.config, first=True))
        await self.monitor.look(self.backends)
        self.monitor.watch(self.backends)
        await self.peers.start()
        await self.changes.catch_up()

    async def _load_spent(self) -> None:
        self.state.load_spent(rolled_up(await self.store.spent(), self.rules.accounts))

    async def _load_late_spending(self) -> None:
        """What killed runs left on disk may take longer to be written than a start may last."""
        late = await self.store.taken_up()
        while late:
            try:
                await self._load_spent()
                return
            except StoreError as error:
                logger.warning("spending of killed runs is not counted yet: %s", error)
            await asyncio.sleep(_LOAD_AGAIN_S)

    async def _learn_feedback(self) -> None:
        for model, features, quality in await self.store.feedback_to_learn():
            self._predictor.observe_quality(model, features, quality, recorded=True)

    async def stop(self) -> None:
        """Stop watching, close the engines' connections, flush the records."""
        self.peers.followers.clear()  # what is heard from here on changes nothing here
        await close_all(
            "shutdown",
            self.keys.stop,
            self._background.stop,
            self.monitor.stop,  # after all that might make it watch again
            self.budget_admission.aclose,
            *[backend.aclose for backend in self.backends.values()],
            self.state.aclose,  # what was spent has been told by now
        )
        self.runner.stop()
        self.stalls.stop()
        await close_all("shutdown", self.store.close)

    async def reload(self, *, everywhere: bool = False) -> FleetConfig:
        """Have all replicas read their fleet files again. Raises ConfigError and keeps the old one if it is bad here. If
        the shared state does not answer, `everywhere` raises a Refusal (503); else this replica alone reads its own."""
        if self._reload is not None:
            await self.changes.reload(self._reload, everywhere=everywhere)
        return self.config

    async def read_again(self, file: FleetConfig) -> tuple[FleetConfig, Models | None]:
        """This replica's fleet file and artifacts as they are now, `file` and None without a file. Raises
        ConfigError."""
        if self._reload is None:
            return file, None
        file = self._reload()
        return file, await asyncio.to_thread(self.load_artifacts, file)

    async def use_artifacts(self, artifacts: Models) -> None:
        """Predict by these from now on."""
        if artifacts.name != self.artifact:
            self._predictor.use(artifacts)
            await self._learn_feedback()

    # --- instances -----------------------------------------------------------------------------------
    async def add_instance(self, added: InstanceConfig) -> None:
        """Add an instance for all replicas. Raises a Refusal (409) if its name is taken, ConfigError."""

        def edit(overlay: Overlay, file: FleetConfig) -> Overlay:
            if overlay.over(file).instance(added.name) is not None:
                raise Refusal(
                    409, "name_taken", f"An instance {added.name} is there already", Outcome.REJECTED_INVALID
                )
            return overlay.adding(added)

        await self.changes.edit(edit)

    async def remove_instance(self, name: str, *, drain: bool = False) -> None:
        """Take an instance out for all replicas: at once, what it carries running to its end, or with `drain` when
        none has anything there any more."""

        def edit(overlay: Overlay, file: FleetConfig) -> Overlay | None:
            if overlay.over(file).instance(name) is None or (drain and name in overlay.draining):
                return None
            return overlay.drained(name) if drain else overlay.removing(name, file)

        await self.changes.edit(edit)

    async def change_targets(self, key: str | None, values: Mapping[str, float | None]) -> None:
        """Change the targets of a key, or of the fleet (None), for all replicas. Raises KeyError for an unknown key."""
        if key is not None and key not in self.targets.scopes:
            raise KeyError(key)
        await self.changes.edit(lambda overlay, _: overlay.targeting(key, values))

    async def prepare(self, config: FleetConfig, *, first: bool = False) -> PreparedFleet:
        """Do all of a fleet that may fail. Raises ConfigError."""
        old = None if first else self.config
        self.keys.check(config)
        rules = Rules.of(config, self.policies, self.state, self.keys.stored)
        rules = replace(rules, pages=rules.pages.at(self._host))  # a reload moves no listener
        tokenizers = await asyncio.to_thread(self._load_tokenizers, config)
        known = {} if old is None else {each.name: (each, old.candidates(each)) for each in old.instances}
        same_limits = old is not None and old.limits == config.limits
        plan: list[tuple[InstanceConfig, dict[str, Candidate], bool]] = []
        backends: dict[str, Backend] = {}
        made: list[Backend] = []
        try:
            for each in config.instances:
                candidates = config.candidates(each)
                same = (
                    same_limits and known.get(each.name) == (each, candidates) and each.name in self.backends
                )
                plan.append((each, candidates, same))
                if same:
                    backends[each.name] = self.backends[each.name]
                else:
                    backends[each.name] = await self._make_backend(each, config)
                    made.append(backends[each.name])
        except BaseException:
            for backend in made:
                await backend.aclose()
            raise
        return PreparedFleet(config, rules, tokenizers, plan, backends, made)

    def commit(self, prepared: PreparedFleet) -> None:
        """Serve a prepared fleet from now on. Requests under way go on where they are."""
        gone = self._install(prepared)
        self.monitor.watch(self.backends)
        for backend in gone:
            self._close_later(backend)
        self.peers.tell_again()

    def _install(self, prepared: PreparedFleet) -> list[Backend]:
        """The adapters that are no longer used."""
        scheduler, config, backends = self.runner.scheduler, prepared.config, prepared.backends
        instances = [
            scheduler.instances[each.name]
            if same
            else instance_of(each, candidates, self._profile, scheduler.instances.get(each.name))
            for each, candidates, same in prepared.plan
        ]
        gone: list[Backend] = []
        for name, backend in self.backends.items():
            if backends.get(name) is not backend:
                gone.append(backend)
                self.monitor.renew(name)
            if name not in backends:
                self._predictor.forget(name)
        self.backends = backends
        self._tokenizers = prepared.tokenizers
        self._headers.clear()
        prepared.rules.stay_closed(self.rules)
        self.rules = prepared.rules
        self._use_keys(self.keys.stored)  # they may have changed meanwhile
        self.runner.apply(FleetChanged(tuple(instances), scheduler_settings(config)))
        self.metrics.set_fleet(
            policies=self.policies,
            models=[model.name for model in config.models],
            aliases=[alias for model in config.models for alias in model.aliases],
            instances={instance.name: instance.kind for instance in instances},
            keys=[key.name for key in config.auth.keys],
        )
        self.monitor.interval_s, self.monitor.timeout_s = config.probes.interval_s, config.probes.timeout_s
        return gone

    async def _tell_of_keys(self) -> None:
        """Have the other replicas look at the keys now; without the shared state they do within two seconds."""
        with contextlib.suppress(StateError):
            await self.state.change(_KEYS, lambda seen: {"changes": seen.get("changes", 0) + 1})

    def _use_keys(self, stored: Sequence[StoredKey]) -> None:
        self.rules = rules = self.rules.with_keys(stored)
        made = [name for name in rules.terms if rules.tenants[name].stored is not None]
        self.targets.use_keys(map(rules.tenants.effective, made))
        self.metrics.set_fleet(policies=(), models=(), instances={}, keys=made)
        if self._was_open and not rules.keys.open:
            logger.warning(
                "the first key closes the gateway: every request needs a key from now on%s",
                "" if self.admin_key is not None else ", and /admin an admin key, which there is none of",
            )
        self._was_open = rules.keys.open

    def in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._background.start(work, name)

    def _close_later(self, backend: Backend) -> None:
        """A backend that left the fleet lives until the last request that it carries has ended."""

        async def close() -> None:
            try:
                await asyncio.sleep(1)  # a decision of this moment may still be on its way to it
                while backend.busy:  # noqa: ASYNC110 (rare; an event would cost each request)
                    await asyncio.sleep(1)
            finally:
                await backend.aclose()

        self.in_background(close(), "close-backend")

    async def take_feedback(self, request_id: str, quality: float, key: str | None) -> bool:
        """Keep a judgement of an answer (`quality` 0 to 1) and learn from it; False if the key has no such
        request. Raises a Refusal (409) after `MAX_JUDGEMENTS`: one caller could fill the store with them."""
        before = len(await self.store.feedback(request_id))
        if before >= MAX_JUDGEMENTS and await self.store.request(request_id, key):
            raise Refusal(
                409, "judged_already", "This answer was judged often enough.", Outcome.REJECTED_INVALID
            )
        add = partial(self.store.add_feedback, request_id, quality, key)
        if not await add() and not (await self._may_be_recorded_yet() and await add()):
            return False
        if len(await self.store.feedback(request_id)) > 1:
            return True  # kept; but one answer is judged once, or one caller could talk a model down
        for model, features, judged in await self.store.feedback_to_learn(request_id=request_id, limit=1):
            self._predictor.observe_quality(model, features, judged)
        return True

    async def recorded(
        self, request_id: str, key: str | None = None, *, any_key: bool = False
    ) -> dict[str, Any] | None:
        """The row of a request, as `Store.request` finds it: one that another replica has just served, too."""
        find = partial(self.store.request, request_id, key, any_key=any_key)
        row = await find()
        if row is None and await self._may_be_recorded_yet():
            row = await find()
        return row

    async def _may_be_recorded_yet(self) -> bool:
        """Whether a request that is not in the store may be on its way there from another replica: by now it is."""
        if self.state.health.replicas == 1:
            return False
        await asyncio.sleep(_RECORDED_S)
        return True

    def lessons(self) -> LessonCounts:
        """What was told to other replicas of what is learned here, and heard of them."""
        return self._predictor.sharing.counts

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

    async def count_tokens(
        self, request: Request, api: str, body: Mapping[str, Any], facts: PromptFacts
    ) -> None:
        """Set the prompt's token count from a tokenizer: one that is configured, else the engine's own where
        the count decides (a money cap, a prompt near a context's length)."""
        for model in request.models:
            tokenizer = self._tokenizers.get(model)
            if tokenizer is not None:
                self._counted(request, model, *await tokenizer.count(api, body, facts))
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
            # It counts a place for each image, and nothing of the members that it does not take.
            usual, most = facts.media * IMAGE_TOKENS, facts.media_bound
            bound = count + most + unseen_bytes(body, COUNTED_FIELDS)
            self._counted(request, candidate.model, count + usual, bound)

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
            for instance in self.runner.scheduler.fleet.serving(model):
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
        if record.trace is not None and self.tracing is not None:
            with surviving("tracing"):
                self.tracing.end(record, record.trace)
        if self.config.observability.log_requests:
            log_request(record)
        self.store.writer.put(record)
