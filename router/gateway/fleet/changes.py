"""What operators change while the fleet serves, here or at another replica: added, drained and removed instances,
targets, and files to be read again.

All of it is one shared document (`router.gateway.fleet.overlay`). A change made here is tried here first: what cannot be
applied is refused, and nobody hears of it. Then it is written into the document, and only then does it hold, here as
elsewhere; if the document was changed meanwhile, that change is applied first and this one is tried again on top.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from router.config import ConfigError, FleetConfig, InstanceConfig, with_instances
from router.core.errors import Refusal
from router.core.events import DrainChanged
from router.core.types import Outcome
from router.gateway.fleet.overlay import DOCUMENT, Overlay, OverlayError, revision_of
from router.gateway.fleet.reloaded import needs_restart, what_changed
from router.store.state import State, StateError

if TYPE_CHECKING:
    from predictors.models import Models
    from router.gateway.service import Gateway

logger = logging.getLogger("headway")

#: Others may change the document as often while a change is tried here.
_TRIES = 8
#: A drained instance is looked at this often, and leaves when nobody had anything there so many times in a row: where
#: there are others, what they have just sent may not have been heard of.
_LOOK_S = 0.2
_QUIET_ALONE, _QUIET = 1, 3

#: Makes a new overlay of the one that holds and this replica's file; None if there is nothing to change. Raises
#: Refusal.
Edit = Callable[[Overlay, FleetConfig], Overlay | None]


class FleetChanges:
    """`file` is this replica's fleet file as last read, `overlay` what holds over it here, `trouble` why the newest
    change could not be applied here (None: it is). Each replica finds instances (`discovery`) by itself: they stand
    beside those of its file."""

    def __init__(self, gateway: Gateway, file: FleetConfig, state: State) -> None:
        self.file = self._started = file
        self.overlay = Overlay()
        self.trouble: str | None = None
        self._gateway = gateway
        self._state = state
        self._lock = asyncio.Lock()
        self._document: Mapping[str, Any] = {}  # as last known, applied or not
        self._known: Overlay | None = self.overlay  # what it says; None: it cannot be read here
        self._heard: Mapping[str, Any] | None = None  # not yet looked at
        self._reads_file = False  # from the start on, when others were told to
        self._found: dict[int, tuple[InstanceConfig, ...]] = {}  # by entry of `discovery`

    # --- changes made here -------------------------------------------------------------------------------
    async def edit(self, make: Edit) -> None:
        """Change the fleet for all replicas. Raises what `make` raises, ConfigError where the change cannot be applied,
        Refusal (503) if the shared state does not answer."""
        async with self._lock:
            try:
                await self._publish(make, self.file)
            except StateError as error:
                raise _unavailable() from error

    async def reload(self, read: Callable[[], FleetConfig], *, everywhere: bool) -> None:
        """Have every replica read its file again; what was changed over it is forgotten. A bad file here is refused
        (ConfigError), and nobody hears of it. If the shared state does not answer, `everywhere` refuses (503);
        else this file is applied here alone."""
        async with self._lock:
            file = read()
            artifacts = await asyncio.to_thread(self._gateway.load_artifacts, file)
            try:
                await self._publish(lambda overlay, _: overlay.reloaded(), file)
            except StateError as error:
                if everywhere:
                    raise _unavailable() from error
                logger.warning(
                    "the shared state does not answer: other replicas do not read their fleet files"
                )
                await self._apply(self.overlay, file)
            await self._gateway.use_artifacts(artifacts)

    async def found(self, entry: int, instances: Sequence[InstanceConfig]) -> None:
        """These are the instances that an entry of `discovery` finds now. Raises ConfigError and keeps those before if
        they do not fit the fleet."""
        async with self._lock:
            before = self._found
            self._found = {**before, entry: tuple(instances)}
            try:
                await self._apply(self.overlay, self.file)
            except BaseException:
                self._found = before
                raise

    def _base(self, file: FleetConfig) -> FleetConfig:
        """A file's fleet with what was found. A name that is taken already is left out."""
        taken = {each.name for each in file.instances}
        found = []
        for each in (one for instances in self._found.values() for one in instances):
            if each.name in taken:
                logger.warning("discovery: %s is left out, its name is taken", each.name)
            else:
                taken.add(each.name)
                found.append(each)
        return with_instances(file, (*file.instances, *found)) if found else file

    async def _publish(self, make: Edit, file: FleetConfig) -> None:
        for _ in range(_TRIES):
            if self._known is None:
                raise Refusal(
                    409, "fleet_unknown", f"Nothing was changed: {self.trouble}", Outcome.REJECTED_INVALID
                )
            wanted = make(self._known, self._base(file))
            if wanted is None:
                return
            try:
                await self._apply(wanted, file, publish=True)
            except _Behind as behind:
                await self._take(behind.document)
            else:
                self.trouble = None
                return
        raise Refusal(
            503,
            "state_unavailable",
            "The fleet is being changed elsewhere: ask again.",
            Outcome.REJECTED_OVERLOAD,
            retry_after_s=1,
        )

    async def _apply(
        self,
        overlay: Overlay,
        file: FleetConfig,
        artifacts: Models | None = None,
        *,
        publish: bool = False,
    ) -> None:
        """Have an overlay hold over a file. With `publish` it is written into the document before; _Behind if that has
        been changed since. Raises ConfigError, StateError and changes nothing then."""
        prepared = await self._gateway.prepare(overlay.over(self._base(file)))
        try:
            if publish:
                before, known, document = self._document, self._known, overlay.document()
                self._document, self._known = document, overlay  # so that our own echo is known
                try:
                    await self._state.change(DOCUMENT, partial(_replace, before, document))
                except BaseException:
                    self._document, self._known = before, known
                    raise
        except BaseException:
            await prepared.discard()
            raise
        released = self.overlay.draining - overlay.draining
        replaced = self.file
        self.file, self.overlay = file, overlay
        self._gateway.commit(prepared)
        if artifacts is not None:
            await self._gateway.use_artifacts(artifacts)
        self._aim()
        self._drain(released)
        if file is not replaced:
            late = self.needs_restart()
            logger.log(
                logging.WARNING if late else logging.INFO,
                "the fleet file is applied (%s)%s",
                what_changed(replaced, file),
                f"; only a restart applies {', '.join(late)}" if late else "",
            )

    def needs_restart(self) -> list[str]:
        """The settings of the file that hold only after a restart, since they differ from those of the start."""
        return needs_restart(self._started, self.file)

    def _aim(self) -> None:
        targets = self._gateway.targets
        targets.use(self.file)
        for key, values in self.overlay.targets.items():
            try:
                targets.change(key, values)
            except KeyError:
                logger.warning("targets of key %s are not applied: the fleet file here has no such key", key)

    # --- changes made elsewhere --------------------------------------------------------------------------
    def heard(self, document: Mapping[str, Any]) -> None:
        """The document has been changed (`Listener.changed`)."""
        if self._is_news(document):
            self._heard = document
            self._gateway.in_background(self.catch_up(), "follow the fleet")

    async def catch_up(self) -> None:
        """Apply what was heard last."""
        async with self._lock:
            document, self._heard = self._heard, None
            if document is not None and self._is_news(document):
                await self._take(document)
            self._reads_file = True

    def _is_news(self, document: Mapping[str, Any]) -> bool:
        """Whether a document is other than the one known, and not older: what was heard while a change was made here may
        be from before it."""
        return document != self._document and revision_of(document) >= revision_of(self._document)

    async def _take(self, document: Mapping[str, Any]) -> None:
        """Have a document that others have changed hold here, as far as it can."""
        self._document, self._known = document, None
        try:
            self._known = overlay = Overlay.of(document)
            file, artifacts = self.file, None
            if self._reads_file and overlay.reloads != self.overlay.reloads:
                file, artifacts = await self._gateway.read_again(file)
            await self._apply(overlay, file, artifacts)
        except (ConfigError, OverlayError) as error:
            self.trouble = " ".join(str(error).split())
            logger.error(
                "a change of the fleet that was made elsewhere is not applied here: %s", self.trouble
            )
        else:
            self.trouble = None

    # --- draining ------------------------------------------------------------------------------------------
    def _drain(self, released: frozenset[str]) -> None:
        """Send nothing more to instances that are to leave, and again to those that stay after all."""
        runner = self._gateway.runner
        instances = runner.scheduler.instances
        for name in sorted(released & instances.keys()):
            runner.apply(DrainChanged(name, False))
        for name in sorted(self.overlay.draining & instances.keys()):
            if not instances[name].draining:
                runner.apply(DrainChanged(name, True))
                self._gateway.in_background(self._leave(name), f"drain {name}")

    async def _leave(self, name: str) -> None:
        """Take a draining instance out when no replica has anything there."""
        quiet = 0
        while name in self.overlay.draining:
            instance = self._gateway.runner.scheduler.instances.get(name)
            if instance is None:
                return
            quiet = 0 if instance.in_flight else quiet + 1
            if quiet >= (_QUIET if self._state.health.shared else _QUIET_ALONE):
                try:
                    await self.edit(partial(_drained_out, name))
                except (Refusal, ConfigError) as error:
                    logger.warning("instance %s is drained but cannot leave yet: %s", name, error)
                    quiet = 0
            await asyncio.sleep(_LOOK_S)


def _drained_out(name: str, overlay: Overlay, file: FleetConfig) -> Overlay | None:
    return overlay.removing(name, file) if name in overlay.draining else None


class _Behind(Exception):
    """The document has been changed since it was last heard of."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__("changed elsewhere")
        self.document = document


def _replace(
    before: Mapping[str, Any], after: Mapping[str, Any], seen: Mapping[str, Any]
) -> Mapping[str, Any]:
    if seen != before:
        raise _Behind(seen)
    return after


def _unavailable() -> Refusal:
    return Refusal(
        503,
        "state_unavailable",
        "The shared state does not answer, so the other replicas cannot be told: nothing was changed.",
        Outcome.REJECTED_OVERLOAD,
        retry_after_s=2,
    )
