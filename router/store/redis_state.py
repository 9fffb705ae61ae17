"""State that replicas share through one Redis.

Each replica makes one call at a time, an exchange: it sends its own changes and receives those of the others. Whatever comes
up meanwhile goes with the next exchange. So messages are complete and in order, and load makes exchanges larger rather
than more frequent. The script `redis_exchange.lua` answers each exchange in one step. When a call fails, the replica
continues alone (`redis_claims` describes the states) and tries again in the background.

A failed call may have arrived, may not have, or may arrive later. Totals and reservations are absolute values, so the next
exchange corrects them. Redis ignores an exchange that arrives after a later one. Amounts for buckets are numbered, so that
none counts twice.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import orjson

from router.background import failed, surviving
from router.store.ledger import Ledger, LedgerUpdate
from router.store.redis_claims import Claims
from router.store.redis_link import Link, Script
from router.store.redis_peers import PeerReports, report_text
from router.store.redis_timer import RETRY_S, ExchangeTimer
from router.store.state import Bucket, Budget, Claim, Grant, Listener, StateError, StateHealth

logger = logging.getLogger("headway")

_EXCHANGE = Script(files("router.store").joinpath("redis_exchange.lua").read_text(encoding="utf-8"))
_CHANGE = Script(files("router.store").joinpath("redis_change.lua").read_text(encoding="utf-8"))
#: The others' work is unknown after this time without an answer (as in the script).
_LIVE_S = 2.0
#: The most messages of observations that wait to be sent.
_MAX_MESSAGES = 1000
#: The most turns that wait to be sent (as many as Redis keeps: `TURNS_KEPT` of the script).
_TURNS = 1024


@dataclass(frozen=True, slots=True)
class _Message:
    """The content of an exchange, until it is acknowledged."""

    update: LedgerUpdate
    report: str
    turns: Mapping[str, str]
    anything: bool  # whether any of it is new


class RedisState:
    """The state of one replica, the run `run_id`.

    All keys in Redis begin with the fleet's `name` in braces, which keeps them together in a Cluster. A call may take
    `timeout_s`. Changes are sent at least every `interval_s`.
    """

    def __init__(
        self, url: str, *, name: str, run_id: str, timeout_s: float, interval_s: float, replicas: int = 1
    ) -> None:
        self._prefix = f"{{{name}}}:"
        self._run = run_id
        self._least_replicas = replicas
        self._link = Link(url, timeout_s)
        self._documents = _Documents(Link(url, timeout_s), self._prefix, self._changed)
        self._timer = ExchangeTimer(interval_s)
        self._settle_s = 2 * (RETRY_S + timeout_s)  # the others come back within half of it
        self._listener: Listener  # set by `start`, before anything is received
        self._task: asyncio.Task[None] | None = None
        self._closing = False

        self._ledger = Ledger(run_id)
        self._claims = Claims(self._ledger, self._timer, replicas)
        self._peers = PeerReports(run_id)
        self._turns: dict[str, str] = {}
        self._observations: deque[str] = deque(maxlen=_MAX_MESSAGES)
        self._report = ""  # as last sent

        self._joined = False  # whether Redis knows this replica and its amounts
        self._warned = False
        self._number = 0
        self._since = 0  # the last change elsewhere that was received
        self._last_message = ""
        self._answered_at = time.monotonic()
        self._exchanges = self._failures = 0
        self._exchange_s = 0.0

    # --- the life of a replica ---
    async def start(self, listener: Listener) -> None:
        self._listener = listener
        while await self._exchange():
            pass
        if self._joined:
            self._claims.join()  # no other replica counts on a share of a replica that has just started
            with contextlib.suppress(StateError):
                if (warning := await self._link.drops_keys(f"{self._prefix}replicas")) is not None:
                    logger.warning("%s", warning)
        self._task = asyncio.create_task(self._run_exchanges(), name="shared state")

    async def _run_exchanges(self) -> None:
        while not self._closing:
            await self._timer.due()
            try:
                await self._exchange()
            except Exception as error:  # noqa: BLE001 (the task's root: without it every claim would wait forever)
                failed("shared-state", error)
                self._lose()
        with surviving("shared-state"):
            while self._joined and self._ledger.unsent and await self._exchange():
                pass
            await self._exchange(bye=True)
        self._lose()

    async def aclose(self) -> None:
        self._closing = True
        if self._task is not None:
            self._timer.at_once()
            await self._task
        await self._link.aclose()

    # --- the interface ---
    def load_spent(self, spent: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
        self._claims.loaded(self._ledger.load(spent))
        self.wake()

    async def take(self, claim: Claim, now: float) -> Grant:
        return await self._claims.take(claim)

    def give(self, bucket: Bucket, amount: float, now: float) -> None:
        self._claims.give(bucket, amount)

    def settle(self, budgets: Sequence[Budget], reserved_usd: float, spent_usd: float) -> None:
        self._ledger.settle(budgets, reserved_usd, spent_usd)
        self.wake()

    def spent_usd(self, key: str, period: str) -> float:
        return self._ledger.spent_usd((key, period))

    def send_observations(self, message: bytes) -> None:
        self._observations.append(base64.b64encode(message).decode())

    def wake(self) -> None:
        if self._joined:
            self._timer.soon()

    async def change(self, document: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        if self._claims.fallback is not None:
            # Another replica may have a later version that Redis does not know yet.
            raise StateError("the shared state does not answer; nothing was changed")
        await self._documents.change(document, edit)
        self.wake()

    def _changed(self, document: str, content: Mapping[str, Any]) -> None:
        self._listener.document_changed(document, content)

    @property
    def health(self) -> StateHealth:
        fallback = self._claims.fallback
        return StateHealth(
            shared=True,
            connected=self._joined,
            replicas=self._peers.replicas,
            exchanges=self._exchanges,
            failures=self._failures,
            exchange_s=self._exchange_s,
            alone_s=self._claims.alone_s + (0.0 if fallback is None else time.monotonic() - fallback.since),
        )

    # --- exchanges ---
    async def _exchange(self, *, bye: bool = False) -> bool:
        """Exchange once; whether more is to be sent or received."""
        sent, message = self._message(bye)
        began = time.monotonic()
        try:
            text = await self._link.run(_EXCHANGE, f"{self._prefix}replicas", self._prefix, message)
        except StateError as error:
            self._failures += 1
            if not self._warned:
                logger.warning("the shared state does not answer (%s): this replica decides alone", error)
                self._warned = True
            self._lose()
            return False
        self._exchanges += 1
        self._answered_at = time.monotonic()
        self._exchange_s += self._answered_at - began
        answer = orjson.loads(text)
        if "grants" not in answer:
            logger.warning("the shared state does not know this replica: sending everything again")
            self._lose()
            self._timer.at_once()
            return True
        return self._receive(sent, answer)

    def _message(self, bye: bool) -> tuple[_Message, str]:
        """The content of the next exchange, and its JSON."""
        hello = not self._joined
        if hello:
            self._ledger.resend_all()
        report = self._listener.report()
        for what, (instance, model) in report.turns.items():
            self._turns[what] = json.dumps((self._run, instance, model))
        while len(self._turns) > _TURNS:  # Redis is away, and clients may name any set of models
            del self._turns[next(iter(self._turns))]
        text = report_text(report)
        update, claims, turns = self._ledger.update(), self._claims.rows(), dict(self._turns)
        adjustments_number, adjustments = self._claims.adjustments.batch()
        observations = list(self._observations)
        self._observations.clear()  # best effort: sent once
        self._number += 1
        # After a silence the others may have dropped the report.
        silent = time.monotonic() - self._answered_at > _LIVE_S / 2
        new_report = hello or silent or text != self._report
        message = {
            "run": self._run,
            "number": self._number,
            "hello": hello,
            "bye": bye,
            "spent": update.spent,
            "reserved": update.reserved,
            "adjustments_number": adjustments_number,
            "adjustments": adjustments,
            "claims": claims,
            "view": text if new_report else None,
            "turns": turns,
            "documents": self._documents.rows() if hello else (),
            "observations": observations,
            "since": 0 if hello else self._since,
            "last_message": self._last_message,
        }
        anything = bool(
            update.own or update.spent or claims or adjustments or observations or turns or new_report
        )
        return _Message(update, text, turns, anything), orjson.dumps(message).decode()

    def _receive(self, sent: _Message, answer: Mapping[str, Any]) -> bool:
        self._ledger.acknowledged(sent.update)
        self._claims.adjustments.acknowledged()
        self._claims.granted(list(answer["grants"]))
        self._report = sent.report
        self._turns = {what: turn for what, turn in self._turns.items() if sent.turns.get(what) != turn}
        for kind, name, *values in answer["changes"]:
            self._receive_change(kind, name, values)
        self._peers.set_live(list(answer["live"]))
        self._since, self._last_message = int(answer["since"]), answer["last_message"]
        self._report_peers()
        if answer["observations"]:
            self._listener.receive_observations([base64.b64decode(each) for each in answer["observations"]])

        if not self._joined:
            self._joined, self._warned = True, False
            self._claims.returned(self._settle_s)
        more = answer["more"] or self._ledger.unsent
        if not more and self._claims.may_join:
            self._claims.join()
            logger.warning("the shared state answers again: this replica no longer decides alone")
        changed = sent.anything or bool(answer["changes"] or answer["observations"])
        self._timer.ended(changed=changed, replicas=self._peers.replicas)
        if more or self._claims.waiting:
            self._timer.at_once()
        return more

    def _report_peers(self) -> None:
        if (peers := self._peers.drain()) is not None:
            self._listener.receive_peers(peers)

    def _receive_change(self, kind: str, name: str, values: Sequence[Any]) -> None:
        """A change in Redis, as `redis_exchange.lua` writes it."""
        match kind:
            case "b":
                run, spent_usd, held_usd = values
                self._ledger.received(name, run, float(spent_usd), float(held_usd))
            case "v":
                self._peers.report_received(name, values[0])
            case "t":
                self._peers.turn_received(name, values[0])
            case "d":
                self._documents.received(name, int(values[0]), values[1])

    def _lose(self) -> None:
        """Redis does not answer, or does not know this replica."""
        self._joined = False
        # Workers that start while Redis is away do not know of each other.
        self._claims.lose(max(self._peers.replicas, self._least_replicas))
        self._timer.failed()
        if time.monotonic() - self._answered_at > _LIVE_S:
            self._peers.forget_work()
            self._report_peers()


class _Documents:
    """Documents that replicas share. Each replica keeps a copy, which restores a Redis that lost its data.

    `link` is used for changes only, `prefix` begins all keys, `changed` is called with each new content.
    """

    def __init__(self, link: Link, prefix: str, changed: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._link = link
        self._prefix = prefix
        self._changed = changed
        self._copies: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._turn = asyncio.Lock()

    def rows(self) -> list[tuple[str, int, str]]:
        """Name, version and content of all documents, for a Redis that may have lost them."""
        return [(name, version, json.dumps(content)) for name, (version, content) in self._copies.items()]

    def received(self, name: str, version: int, text: str) -> None:
        """A version of a document; an older one is ignored."""
        if version > self._copies.get(name, (0, {}))[0]:
            content = json.loads(text)
            self._copies[name] = (version, content)
            self._changed(name, content)

    async def change(self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Edit a document. Raises StateError; the change may still have been made."""
        async with self._turn:
            while True:
                version, content = self._copies.get(name, (0, {}))
                edited = edit(content)
                try:
                    made, now_version, text = await self._link.run(
                        _CHANGE,
                        f"{self._prefix}documents",
                        self._prefix,
                        name,
                        str(version),
                        json.dumps(edited),
                    )
                finally:
                    # Changes are rare, and the server may be another one by the next.
                    await self._link.aclose()
                self.received(name, now_version, text)
                if made:
                    return
