"""State that replicas share through one Redis.

Each replica makes one call at a time, an exchange: it sends its changes and its wants, and everything that comes up
meanwhile goes with the next exchange. So changes arrive complete and in order, and load makes exchanges larger instead of
more frequent. The script `redis_exchange.lua` handles an exchange atomically. If a call fails, the replica decides by
itself (`redis_takes` describes the states) and retries in the background.

The data of a failed call may have arrived, or may still arrive. Totals and reservations are sent as complete values, so
the next exchange corrects them. An exchange that arrives after a later one is ignored. Amounts for buckets are numbered,
so none is counted twice.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from router.background import failed, surviving
from router.store.redis_books import Books, Telling
from router.store.redis_documents import Documents
from router.store.redis_link import Link, Script
from router.store.redis_pace import RETRY_S, Pace
from router.store.redis_peers import PeerViews, view_text
from router.store.redis_takes import Takes
from router.store.state import Bucket, Budget, Grant, Listener, StateError, StateHealth, View, Want

logger = logging.getLogger("headway")

_EXCHANGE = Script(files("router.store").joinpath("redis_exchange.lua").read_text(encoding="utf-8"))
#: After this long without an answer the other replicas' work is unknown (`LIVE_S` in the script).
_LIVE_S = 2.0
#: Most observations of predictors that wait to be sent.
_LESSONS = 1000
#: Most round-robin positions that wait to be sent (`TURNS_KEPT` in the script).
_TURNS = 1024


@dataclass(frozen=True, slots=True)
class _Told:
    """The content of an exchange, kept until it is acknowledged."""

    telling: Telling
    view: str
    turns: Mapping[str, str]
    anything: bool  # whether it has anything new


class RedisState:
    """The shared state of one replica, whose run is `run_id`. All keys in Redis begin with the fleet's `name` in braces, so
    that a Cluster keeps them together. A call may take `timeout_s`; changes are sent at least every `interval_s`."""

    def __init__(
        self, url: str, *, name: str, run_id: str, timeout_s: float, interval_s: float, replicas: int = 1
    ) -> None:
        self._prefix = f"{{{name}}}:"
        self._run = run_id
        self._least_replicas = replicas
        self._link = Link(url, timeout_s)
        self._documents = Documents(Link(url, timeout_s), self._prefix, self._changed)
        self._pace = Pace(interval_s)
        self._settle_s = 2 * (RETRY_S + timeout_s)  # the other replicas retry within half of it
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

        self._books = Books(run_id)
        self._takes = Takes(self._books, self._pace, replicas)
        self._peers = PeerViews(run_id)
        self._turns: dict[str, str] = {}
        self._lessons: deque[str] = deque(maxlen=_LESSONS)
        self._view = ""  # as last sent

        self._known = False  # whether Redis knows this replica and what it has sent
        self._warned = False
        self._number = 0
        self._since = 0  # position in the changes of other replicas
        self._heard_lesson = ""
        self._heard_at = time.monotonic()
        self._exchanges = self._failures = 0
        self._exchange_s = 0.0

    # --- start, run, close ---
    async def start(self, listener: Listener) -> None:
        self._listener = listener
        while await self._exchange():
            pass
        if self._known:
            self._takes.join()  # a new replica has no share that others rely on
        self._task = asyncio.create_task(self._run_exchanges(), name="shared state")

    async def _run_exchanges(self) -> None:
        while not self._closing:
            await self._pace.due()
            try:
                await self._exchange()
            except Exception as error:  # noqa: BLE001 (the task's root: without this task every take would wait forever)
                failed("shared-state", error)
                self._cut()
        with surviving("shared-state"):
            while self._known and self._books.untold and await self._exchange():
                pass
            await self._exchange(bye=True)
        self._cut()

    async def aclose(self) -> None:
        self._closing = True
        if self._task is not None:
            self._pace.at_once()
            await self._task
        await self._link.aclose()

    # --- the gateway's calls ---
    def load_spent(self, spent: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
        self._takes.loaded(self._books.load(spent))
        self.poke()

    async def take(self, want: Want, now: float) -> Grant:
        return await self._takes.take(want)

    def give(self, bucket: Bucket, amount: float, now: float) -> None:
        self._takes.give(bucket, amount)

    def settle(self, budgets: Sequence[Budget], reserved_usd: float, spent_usd: float) -> None:
        for budget in budgets:
            self._books.settle((budget.key, budget.period), reserved_usd, spent_usd)
        self.poke()

    def spent_usd(self, key: str, period: str) -> float:
        return self._books.spent_usd((key, period))

    def tell(self, lesson: bytes) -> None:
        self._lessons.append(base64.b64encode(lesson).decode())

    def poke(self) -> None:
        if self._known:
            self._pace.soon()

    async def change(
        self, document: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        if self._takes.alone is not None:
            # Another replica may have a later version that Redis does not have yet.
            raise StateError("the shared state does not answer; nothing was changed")
        content = await self._documents.change(document, edit)
        self.poke()
        return content

    def _changed(self, document: str, content: Mapping[str, Any]) -> None:
        if self._listener is not None:
            self._listener.changed(document, content)

    @property
    def health(self) -> StateHealth:
        alone = self._takes.alone
        return StateHealth(
            shared=True,
            connected=self._known,
            replicas=self._peers.replicas,
            exchanges=self._exchanges,
            failures=self._failures,
            exchange_s=self._exchange_s,
            alone_s=self._takes.alone_s + (0.0 if alone is None else time.monotonic() - alone.since),
        )

    # --- exchanges ---
    async def _exchange(self, *, bye: bool = False) -> bool:
        """Send and receive once. True if there is more to send or to receive."""
        told, message = self._message(bye)
        began = time.monotonic()
        try:
            text = await self._link.run(_EXCHANGE, f"{self._prefix}replicas", self._prefix, message)
        except StateError as error:
            self._failures += 1
            if not self._warned:
                logger.warning("the shared state does not answer (%s): this replica decides by itself", error)
                self._warned = True
            self._cut()
            return False
        self._exchanges += 1
        self._heard_at = time.monotonic()
        self._exchange_s += self._heard_at - began
        answer = json.loads(text)
        if "grants" not in answer:
            logger.warning("the shared state has lost this replica's data: sending everything again")
            self._cut()
            self._pace.at_once()
            return True
        return self._hear(told, answer)

    def _message(self, bye: bool) -> tuple[_Told, str]:
        """The content of the next exchange, and its JSON."""
        hello = not self._known
        if hello:
            self._books.tell_all()
        view = View() if self._listener is None else self._listener.view()
        for what, (instance, model) in view.turns.items():
            self._turns[what] = json.dumps((self._run, instance, model))
        while len(self._turns) > _TURNS:  # Redis does not answer, and clients may name any set of models
            del self._turns[next(iter(self._turns))]
        text = view_text(view)
        telling, wants, turns = self._books.telling(), self._takes.rows(), dict(self._turns)
        gives_number, gives = self._takes.gives.batch()
        lessons = list(self._lessons)
        self._lessons.clear()  # best effort: sent once
        self._number += 1
        # After a silence the other replicas may have dropped the view.
        silent = time.monotonic() - self._heard_at > _LIVE_S / 2
        new_view = hello or silent or text != self._view
        message = {
            "run": self._run,
            "number": self._number,
            "hello": hello,
            "bye": bye,
            "spent": telling.spent,
            "reserved": telling.reserved,
            "gives_number": gives_number,
            "gives": gives,
            "wants": wants,
            "view": text if new_view else None,
            "turns": turns,
            "documents": self._documents.rows() if hello else (),
            "lessons": lessons,
            "since": 0 if hello else self._since,
            "heard": self._heard_lesson,
        }
        anything = bool(telling.own or telling.spent or wants or gives or lessons or turns or new_view)
        return _Told(telling, text, turns, anything), json.dumps(message, allow_nan=False)

    def _hear(self, told: _Told, answer: Mapping[str, Any]) -> bool:
        self._books.told(told.telling)
        self._takes.gives.acknowledged()
        self._takes.granted(list(answer["grants"]))
        self._view = told.view
        self._turns = {what: turn for what, turn in self._turns.items() if told.turns.get(what) != turn}
        for kind, name, *values in answer["changes"]:
            self._hear_change(kind, name, values)
        self._peers.lives(list(answer["live"]))
        self._since, self._heard_lesson = int(answer["since"]), answer["heard"]
        if self._listener is not None:
            if (news := self._peers.news()) is not None:
                self._listener.hear(news)
            if answer["lessons"]:
                self._listener.hear_lessons([base64.b64decode(each) for each in answer["lessons"]])

        if not self._known:
            self._known, self._warned = True, False
            self._takes.returned(self._settle_s)
        more = answer["more"] or self._books.untold
        if not more and self._takes.settled:
            self._takes.join()
            logger.warning("the shared state answers again and decides for all replicas")
        changed = told.anything or bool(answer["changes"] or answer["lessons"])
        self._pace.ended(changed=changed, replicas=self._peers.replicas)
        if more or self._takes.waiting:
            self._pace.at_once()
        return more

    def _hear_change(self, kind: str, name: str, values: Sequence[Any]) -> None:
        """Apply one change from `redis_exchange.lua`."""
        match kind:
            case "b":
                run, spent_usd, held_usd = values
                self._books.heard(name, run, float(spent_usd), float(held_usd))
            case "v":
                self._peers.viewed(name, values[0])
            case "t":
                self._peers.turned(name, values[0])
            case "d":
                self._documents.heard(name, int(values[0]), values[1])

    def _cut(self) -> None:
        """Redis does not answer, or does not know this replica."""
        self._known = False
        # Workers that start while Redis does not answer do not know of each other.
        self._takes.cut(max(self._peers.replicas, self._least_replicas))
        self._pace.failed()
        if time.monotonic() - self._heard_at > _LIVE_S:
            self._peers.forget_work()
            if self._listener is not None and (news := self._peers.news()) is not None:
                self._listener.hear(news)
