"""Changes of the fleet at run time, made here or at another replica: instances, targets, and reloads of the fleet file.

All changes are in one shared document (`router.gateway.fleet.overlay`). A change that is made here is first prepared
here: one that cannot be applied is refused, and other replicas never see it. Then it is written to the document, and then
it applies, here and elsewhere. If the document was changed meanwhile, that change is applied first and this one is tried
again on top of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import eq
from time import monotonic
from typing import Any

from predictors.learned.models import Models
from router.background import Tasks
from router.config import ConfigError, FleetConfig, InstanceConfig, with_instances
from router.core.errors import Refusal, invalid_request
from router.core.events import PredictorsChanged
from router.core.types import Outcome
from router.gateway.fleet.draining import Drains
from router.gateway.fleet.overlay import DOCUMENT, Edit, Overlay, drained, revision_of
from router.gateway.fleet.peers import PeerLink
from router.gateway.fleet.reload_report import needs_restart, what_changed
from router.gateway.fleet.served import ServedFleet
from router.gateway.records import Feedback
from router.gateway.runner import Runner
from router.store.state import ChangedElsewhere, State, StateError, replace_document

logger = logging.getLogger("headway")

_NO_ANSWER = (
    "The shared state does not answer: nothing was changed, unless the change had just reached it "
    "(see GET /admin/fleet when it answers again)."
)
#: Other replicas may change the document this often while a change is prepared here.
_TRIES = 8


class FleetChanges:
    """`file` is this replica's fleet file as last read, `overlay` the changes that apply over it here, `trouble` why the
    newest change could not be applied here (None: it is). Each replica discovers instances (`discovery`) by itself: they
    stand beside those of its file."""

    def __init__(
        self,
        file: FleetConfig,
        *,
        fleet: ServedFleet,
        runner: Runner,
        state: State,
        peers: PeerLink,
        feedback: Feedback,
        read_file: Callable[[], FleetConfig] | None,
        read_models: Callable[[FleetConfig], Models],
    ) -> None:
        """`read_file` reads the fleet file again (None: there is no file), `read_models` the artifacts of a fleet file. Both
        raise ConfigError."""
        self.file = self._started = file
        self.overlay = Overlay()
        self.trouble: str | None = None
        self._fleet = fleet
        self._runner = runner
        self._state = state
        self._peers = peers
        self._feedback = feedback
        self._read_file = read_file
        self._read_models = read_models
        self._drains = Drains(runner, state, lambda names: self.edit(drained(names)))
        self._tasks = Tasks()
        self._lock = asyncio.Lock()
        self._document: Mapping[str, Any] = {}  # as last seen, applied or not
        self._seen: Overlay | None = self.overlay  # what it says; None: it cannot be read here
        self._newest: Mapping[str, Any] | None = None  # not yet looked at
        self._follows_reloads = False  # after the start: earlier reloads are in the file already
        self._found: dict[int, dict[str, InstanceConfig]] = {}  # by entry of `discovery`, then by name
        # The last file, what was found then, and the two together: it takes long to check thousands of instances.
        self._whole: tuple[FleetConfig, dict[int, dict[str, InstanceConfig]], FleetConfig] | None = None
        # By name, when `discovery` found it no more, for as long as a request may take.
        self._lost_at: dict[str, float] = {}

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._drains.stop()
        # A change under way ends, and no other begins: it would watch the instances again, and the gateway would not end.
        await self._lock.acquire()

    # --- changes made here -------------------------------------------------------------------------------
    async def edit(self, make: Edit) -> None:
        """Change the fleet for all replicas.

        Raises what `make` raises, ConfigError if the change cannot be applied, Refusal (503) if the shared state does
        not answer.
        """
        async with self._lock:
            try:
                await self._publish(make, self.file)
            except StateError as error:
                raise _unavailable(_NO_ANSWER) from error

    async def reload(self, *, everywhere: bool = False) -> bool:
        """Have every replica read its file again, which drops all changes over it.

        Raises ConfigError, and changes nothing anywhere, for a bad file here. If the shared state does not answer,
        `everywhere` raises a Refusal (503); otherwise only this replica applies its file, and this returns False.
        """
        if self._read_file is None:
            return True
        published = True
        async with self._lock:
            file = await asyncio.to_thread(self._read_file)
            models = await asyncio.to_thread(self._read_models, file)
            try:
                await self._publish(lambda overlay, _: overlay.reloaded(), file)
            except StateError as error:
                if everywhere:
                    raise _unavailable(_NO_ANSWER) from error
                logger.warning(
                    "the shared state does not answer: other replicas do not read their fleet files"
                )
                published = False
                await self._apply(self.overlay, file)
            await self._predict_with(models)
        return published

    async def found(self, entry: int, instances: Sequence[InstanceConfig]) -> None:
        """An entry of `discovery` found these instances. Raises ConfigError, and keeps the earlier ones, if they do not
        fit the fleet."""
        async with self._lock:
            before = self._found
            self._found = {**before, entry: {each.name: each for each in instances}}
            try:
                await self._apply(self.overlay, self.file)
            except BaseException:
                self._found = before
                raise
            now = monotonic()
            since = now - self._fleet.config.limits.request_timeout_s
            self._lost_at = {name: at for name, at in self._lost_at.items() if at > since}
            self._lost_at |= {name: now for name in before.get(entry, ()) if not self.finds(name)}

    def finds(self, name: str) -> bool:
        """Whether `discovery` finds an instance of this name now, be it removed or not."""
        return any(name in instances for instances in self._found.values())

    def may_have_requests(self, name: str) -> bool:
        """Whether `discovery` finds an instance of this name now, or has found it so lately that requests of then may run."""
        lost_at = self._lost_at.get(name)
        recent = lost_at is not None and monotonic() - lost_at < self._fleet.config.limits.request_timeout_s
        return recent or self.finds(name)

    def _with_found(self, file: FleetConfig) -> FleetConfig:
        """A fleet file with the discovered instances, except those whose name is taken and those that do not fit it."""
        if self._whole is None or self._whole[0] is not file or self._whole[1] is not self._found:
            self._whole = file, self._found, self._join(file)
        return self._whole[2]

    def _join(self, file: FleetConfig) -> FleetConfig:
        taken = {each.name for each in file.instances} | {pool.name for pool in file.scaling.pools}
        found = []
        for each in (one for instances in self._found.values() for one in instances.values()):
            if each.name in taken:
                logger.warning("discovery: %s is left out, its name is taken", each.name)
            else:
                taken.add(each.name)
                found.append(each)
        if not found:
            return file
        try:
            return with_instances(file, (*file.instances, *found))
        except ConfigError as error:  # one of them, such as a pod with another model in its annotation
            start = len(file.instances)
            reasons = {
                int(each.path[1]) - start: f"{'.'.join(map(str, each.path[2:]))}: {each.reason}"
                for each in error.problems
            }
            for place, reason in reasons.items():
                logger.warning(
                    "discovery: %s is left out, it does not fit the fleet file: %s", found[place].name, reason
                )
            fitting = [each for place, each in enumerate(found) if place not in reasons]
            return with_instances(file, (*file.instances, *fitting))

    async def _publish(self, make: Edit, file: FleetConfig) -> None:
        for _ in range(_TRIES):
            if self._seen is None:
                raise invalid_request(f"Nothing was changed: {self.trouble}", None, "fleet_unknown", 409)
            wanted = make(self._seen, self._with_found(file))
            if wanted is self._seen:
                return
            try:
                await self._apply(wanted, file, publish=True)
            except ChangedElsewhere as changed:
                await self._apply_document(changed.content)
            else:
                self.trouble = None
                return
        raise _unavailable("Another replica is changing the fleet: send the request again.", retry_after_s=1)

    async def _apply(
        self, overlay: Overlay, file: FleetConfig, models: Models | None = None, *, publish: bool = False
    ) -> None:
        """Serve a fleet file with an overlay. With `publish`, first write the overlay into the document. Nothing changes if it
        raises: ChangedElsewhere if the document has changed since it was last seen, ConfigError, StateError."""
        prepared = await self._fleet.prepare(overlay.over(self._with_found(file)))
        try:
            if publish:
                before, seen, document = self._document, self._seen, overlay.document()
                self._document, self._seen = document, overlay  # so that our own change is not applied again
                try:
                    await replace_document(self._state, DOCUMENT, partial(eq, before), document)
                except BaseException:
                    self._document, self._seen = before, seen
                    raise
        except BaseException:
            await prepared.made.aclose()
            raise
        replaced = self.file
        self.file, self.overlay = file, overlay
        self._fleet.commit(prepared, overlay.targets)
        self._peers.repeat_load()
        if models is not None:
            await self._predict_with(models)
        self._drains.follow(overlay.draining)
        if file is not replaced:
            late = self.needs_restart()
            logger.log(
                logging.WARNING if late else logging.INFO,
                "the fleet file is applied (%s)%s",
                what_changed(replaced, file),
                f"; only a restart applies {', '.join(late)}" if late else "",
            )

    async def _predict_with(self, models: Models) -> None:
        """Predict with these from now on. New ones learn the recorded feedback again."""
        if models.name != self._runner.scheduler.predictor.name:
            self._runner.apply(PredictorsChanged(models))
            await self._feedback.learn_recorded()

    def needs_restart(self) -> list[str]:
        """The settings of the file that differ from those of the start and apply only after a restart."""
        return needs_restart(self._started, self.file)

    # --- changes made elsewhere --------------------------------------------------------------------------
    def document_changed(self, document: Mapping[str, Any]) -> None:
        """The shared document has changed (`Listener.changed`)."""
        if self._is_newer(document):
            self._newest = document
            self._tasks.start(self.catch_up(), "follow the fleet")

    async def catch_up(self) -> None:
        """Apply the newest document."""
        async with self._lock:
            document, self._newest = self._newest, None
            if document is not None and self._is_newer(document):
                await self._apply_document(document)
            self._follows_reloads = True

    def _is_newer(self, document: Mapping[str, Any]) -> bool:
        """Whether a document differs from the one seen last and is not older. A document that arrives while a change is
        made here may be from before that change."""
        return document != self._document and revision_of(document) >= revision_of(self._document)

    async def _apply_document(self, document: Mapping[str, Any]) -> None:
        """Apply a document that another replica changed, as far as it can be applied here."""
        self._document, self._seen = document, None
        try:
            self._seen = overlay = Overlay.of(document)
            file, models = self.file, None
            if self._follows_reloads and overlay.reloads != self.overlay.reloads and self._read_file:
                file = await asyncio.to_thread(self._read_file)
                models = await asyncio.to_thread(self._read_models, file)
            await self._apply(overlay, file, models)
        except ConfigError as error:
            self.trouble = " ".join(str(error).split())
            logger.error("another replica's change of the fleet is not applied here: %s", self.trouble)
        else:
            self.trouble = None


def _unavailable(message: str, retry_after_s: float = 2) -> Refusal:
    return Refusal(503, "state_unavailable", message, Outcome.REJECTED_OVERLOAD, retry_after_s=retry_after_s)
