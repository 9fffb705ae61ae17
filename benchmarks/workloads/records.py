"""The requests that a gateway has recorded, as a workload."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import median
from typing import Any

from sqlalchemy import RowMapping, select

from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest
from policies import POLICIES
from router.config import FleetConfig
from router.core.errors import Refusal
from router.core.types import OUTSIDE_ATTAINMENT
from router.gateway.fleet.rules import Rules
from router.request.model_names import AUTO, ModelNames
from router.store import tables
from router.store.database import opened, parse_url, public_url


def recorded_requests(
    url: str, config: FleetConfig | None, limit: int | None
) -> tuple[Header, list[WorkloadRequest]]:
    """The last `limit` requests of a store (None: all), by arrival, with the models, SLOs and limits that they had, without
    those for models that `config` does not have. A request that got no answer counts with the median length of all answers.
    Raises StoreError and WorkloadError."""
    found = asyncio.run(_rows(url, limit))
    names = None if config is None else Rules.of(config, tuple(POLICIES)).names
    models = {row["id"]: _models(row["model_requested"], names) for row in found}
    rows = [row for row in found if models[row["id"]] is not None]
    lengths = [row["output_tokens"] for row in rows if row["output_tokens"]]
    usable = [row for row in rows if row["prompt_tokens"]]
    if not usable or not lengths:
        raise WorkloadError(f"{public_url(parse_url(url))} has no requests with an answer")
    begin_s, length = usable[0]["received_at"], round(median(lengths))
    requests = [
        _request(row, models[row["id"]] or {}, begin_s, row["output_tokens"] or length) for row in usable
    ]
    without = sum(not row["output_tokens"] for row in usable)
    details = {
        "left_out_without_prompt_tokens": len(rows) - len(usable),
        "left_out_of_other_models": len(found) - len(rows),
        "without_an_answer": without,
    }
    return Header(source="records", requests=len(requests), details=details), requests


_COLUMNS = (
    *("id", "received_at", "model_requested", "prompt_tokens", "max_tokens", "output_tokens"),
    *("slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "on_miss", "max_cost_usd", "min_quality", "priority"),
)


async def _rows(url: str, limit: int | None) -> Sequence[RowMapping]:
    table = tables.requests
    outside = [outcome.value for outcome in OUTSIDE_ATTAINMENT]
    query = (
        select(*(table.c[name] for name in _COLUMNS))
        .where(table.c.outcome.not_in(outside))
        .order_by(table.c.received_at.desc(), table.c.id.desc())
        .limit(limit)
    )
    async with opened(url) as engine, engine.connect() as connection:
        found = (await connection.execute(query)).mappings().all()
    return found[::-1]


def _models(name: str | None, names: ModelNames | None) -> dict[str, Any] | None:
    """The routing parameter for the model that a client named, whose suffix may name a policy; None if the fleet does not
    have it."""
    if name is None:
        return {}
    if names is None:
        bare, _, suffix = name.rpartition(":")
        name = bare if suffix in POLICIES else name
        return {} if name == AUTO else {"models": [name]}
    try:
        found, _ = names.resolve(name)
    except Refusal:
        return None
    return {} if found == names.resolve(AUTO)[0] else {"models": list(found)}


def _request(row: RowMapping, models: dict[str, Any], begin_s: float, output_tokens: int) -> WorkloadRequest:
    slo = {
        f"{target}_ms": 1000 * row[f"slo_{target}_s"]
        for target in ("ttft", "tpot", "e2e")
        if row[f"slo_{target}_s"] is not None
    }
    # Without a target nothing is missed. With one, another fleet's default may be `reject`.
    no_effect = {"priority": 0, **({} if slo else {"on_miss": "best_effort"})}
    limits = {
        name: row[name]
        for name in ("on_miss", "max_cost_usd", "min_quality", "priority")
        if row[name] is not None and row[name] != no_effect.get(name)
    }
    routing = {**models, **({"slo": slo} if slo else {}), **limits}
    return WorkloadRequest(
        id=row["id"],
        arrival_s=row["received_at"] - begin_s,
        prompt_tokens=row["prompt_tokens"],
        max_tokens=row["max_tokens"],
        output_tokens=output_tokens,
        routing=routing or None,
        source="records",
    )
