"""Records as the gateway would fill them, and how it gives one to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select

from router.core.deciding import Decided
from router.core.interfaces import Choice, Option
from router.core.money.account import OutputBound
from router.core.request_state import AttemptState
from router.core.state import Instance
from router.core.types import Candidate, Considered, Decision, EndedHow, Prediction, Request
from router.store import tables
from router.store.entries import Entry, from_line
from router.store.queries import Store
from router.store.records import RequestRecord
from router.store.writer import record_line


def make_decision(candidates: int = 3, chosen: int = 1, at_s: float = 12.5) -> Decision:
    considered = tuple(
        Considered(
            Candidate(f"gpu-{i}", "llama", f"meta/llama-{i}"),
            Prediction(output_tokens_p50=100.0 + i, ttft_s_p50=0.1 * (i + 1), cost_usd=0.001, p_miss=None),
            0.5 + i,
            None if i == chosen else "a higher score",
        )
        for i in range(candidates)
    )
    loads = tuple((i, 1, 512, 4096, None, None, 0.25, 0.5) for i in range(candidates))
    return Decision("latency", at_s, chosen, considered, 0.75, loads)


def make_attempt(number: int, instance: str, model: str, dispatched_at: float, **fields: Any) -> AttemptState:
    """An attempt, with times on the clock of its record's `arrived_at`."""
    candidate, at = Candidate(instance, model, model), Instance(instance, "vllm", {})
    decided = Decided(
        "latency", dispatched_at, [Option(candidate, at)], Choice(0, (1.0,), (None,), 1.0), (), ()
    )
    attempt = AttemptState(
        Request("", 0.0, "latency", (model,)),
        candidate,
        at,
        Prediction(),
        number,
        decided,
        OutputBound(),
        False,
        dispatched_at,
    )
    for name, value in fields.items():
        setattr(attempt, name, value)
    return attempt


def make_record(number: int = 0, **fields: Any) -> RequestRecord:
    """A request with one attempt and one decision over three candidates; the number tells when it came too."""
    received_at = fields.pop("received_at", 1_700_000_000.0 + number)
    record = RequestRecord(
        id=f"req_{number:08d}",
        received_at=received_at,
        api="chat.completions",
        key_name="team-a",
        policy="latency",
        model_requested="auto",
        model="llama",
        instance="gpu-1",
        attempts=1,
        prompt_tokens=120,
        output_tokens=80,
        finish_reason="stop",
        decoded=True,
        ttft_s=0.125,
        e2e_s=2.5,
        cost_usd=0.0005,
        slo_ttft_s=0.5,
        slo_met=True,
        arrived_at=12.0,
        attempt_states=[
            make_attempt(
                *(1, "gpu-1", "llama", 12.01),
                first_token_at=12.125,
                ended_at=14.5,
                output_tokens=80,
                cost_usd=0.0005,
                ended_how=EndedHow.OK,
            )
        ],
        decisions=[make_decision()],
        prefix=(11, 2**63 + 5),
    )
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def entry_of(record: RequestRecord) -> Entry:
    """What the writer process makes of a record's line."""
    entry = from_line(record_line(record, keep_prompts=False) or b"")
    assert entry is not None
    return entry


def put(store: Store, record: RequestRecord) -> None:
    """A request arrives and has ended."""
    store.writer.arrived()
    store.writer.put(record)


async def written(store: Store, records: Iterable[RequestRecord]) -> None:
    """Requests arrive, have ended, and have their rows."""
    for each in records:
        put(store, each)
    assert await store.writer.flush(30)


async def runs_of(store: Store) -> list[dict[str, Any]]:
    """All runs of a store, oldest first."""
    return await store.rows(select(tables.runs).order_by(tables.runs.c.id))


def keep(
    path: Path, records: Sequence[RequestRecord], judged: Sequence[tuple[str, float]] = (), **options: Any
) -> None:
    """A SQLite file at `path` with records, and the judgements (request, quality) on them."""

    async def fill() -> None:
        store = await Store.open(f"sqlite+aiosqlite:///{path}", **options)
        try:
            for each in records:
                put(store, each)
            for request_id, quality in judged:
                await store.add_feedback(request_id, quality, "team-a")
        finally:
            await store.close()

    asyncio.run(fill())
