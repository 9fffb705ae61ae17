"""Gateways whose state is audited, and what must hold once all requests have ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.gateway.keys.accounts import TOTAL, KeyBudget
from tests.integration.budgets.audit import Audited
from tests.integration.gateway.live import Live, key
from tests.integration.gateway.staged import Script, Stage, staged

INPUT_USD, OUTPUT_USD = 0.05e-6, 0.25e-6  # a token's price of llama-3.1-8b in `live.MODELS`
PROMPT_BOUND = 99  # of "Hello": the JSON of its message and what a chat template may add
PROMPT_USD = PROMPT_BOUND * INPUT_USD


def budget(tokens: float) -> float:
    """USD that pay the bound of a prompt and so many output tokens."""
    return PROMPT_USD + tokens * OUTPUT_USD


def use(gw: Live, state: Audited, key_budgets: Mapping[str, tuple[KeyBudget, ...]]) -> None:
    """Put the audited state in, and say what the requests of each key are taken from."""
    gateway = gw.gateway
    gateway.budget_admission.state = state
    working = dict(gateway.rules.working)
    for name, some in key_budgets.items():
        key = working[name]
        working[name] = key._replace(account=replace(key.account, key_budgets=some))
    gateway.fleet.rules = replace(gateway.rules, working=working)


@asynccontextmanager
async def audited(
    gw: Live, *, delay_s: float = 0.0, **key_budgets: tuple[KeyBudget, ...]
) -> AsyncIterator[Audited]:
    """An audited state for the body; afterwards the ledger must balance."""
    state = Audited(delay_s)
    use(gw, state, key_budgets)
    yield state
    await balanced(gw, state)


async def balanced(gw: Live, state: Audited) -> None:
    """Wait until all have ended. Then nothing is held, and what was spent is what the rows say."""
    await gw.until(lambda: not gw.gateway.runner.scheduler.live)
    await gw.gateway.budget_admission.aclose()
    await gw.until(lambda: not state.reserved)
    assert state.broken == []
    working = gw.gateway.rules.working
    spent_usd: dict[str, float] = {}
    for row in await gw.rows():
        if row["key_name"] in working:
            for purse in working[row["key_name"]].account.key_budgets:
                spent_usd[purse.key] = spent_usd.get(purse.key, 0.0) + (row["cost_usd"] or 0.0)
    for name, usd in spent_usd.items():
        assert state.spent_usd(name, TOTAL) == pytest.approx(usd, rel=1e-9)


def purse(name: str, usd: float | None = None, *, day: float | None = None) -> KeyBudget:
    return KeyBudget(name, day, usd)


@asynccontextmanager
async def one_key(
    tmp_path: Path, *scripts: Script, limit_usd: float, delay_s: float = 0.0, **sections: Any
) -> AsyncIterator[tuple[Live, Stage, Audited]]:
    """Engines that answer by script, and the key `k` with so much money in all."""
    async with (
        staged(tmp_path, *scripts, auth={"keys": [key("k")]}, **sections) as (gw, stage),
        audited(gw, delay_s=delay_s, k=(purse("k", limit_usd),)) as state,
    ):
        yield gw, stage, state
