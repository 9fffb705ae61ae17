"""Keys and their spending over HTTP: for operators under /admin, for a key's holder under /v1.

A holder sees its own key and the keys below it. For any other key the answer is the same as for an unknown name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from router.core.errors import Refusal, invalid_request, unauthorized
from router.core.types import Outcome
from router.gateway.keys.client_keys import make, revoke
from router.gateway.keys.tenants import SETTINGS, BadKey, NameUsed, Tenant
from router.gateway.routes.access import admin_router, client_name, known_parameters, not_found
from router.gateway.service import Gateway
from router.store.keys import StoredKey
from router.store.spend_report import BadReport, day, dimensions, spend_report
from router.store.state import TOTAL, Bucket
from router.store.totals import today

#: The parameters of a report.
_By = Annotated[str, Query(description="any of day, key, policy, model; comma-separated")]
_Day = Annotated[str | None, Query(description="a day (UTC): 2026-11-22, today, or 7d (the last seven)")]

_Read = TypeVar("_Read")

#: Changes of keys below one operator's key: at once, and a second. All gateways read all keys after each change.
_CHANGES_AT_ONCE, _CHANGES_PER_S = 60, 1.0

#: A report with more rows is refused: all requests wait while its answer is made.
MAX_REPORT_ROWS = 20_000

#: Keys listed between two turns of the event loop.
_AT_A_TIME = 25

_CLOSED = "The gateway was open; from now on every request needs a key."


class NewKey(BaseModel):
    """A key to make: `name`, and settings as in the fleet file."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: Any = None


class NewKeyBelow(NewKey):
    """The same for operators; `maker` is the key above it (null: none)."""

    maker: str | None = None


# --- operators ----------------------------------------------------------------------------------------
def operator_routes(gateway: Gateway) -> APIRouter:
    """All of /admin/keys and /admin/spend."""
    router = admin_router()

    @router.get("/keys")
    async def keys() -> Response:
        """All keys, revoked ones included: own and effective settings, and what they and the keys below them have spent and
        have left."""
        return await _listed(gateway, list(gateway.rules.tenants))

    @router.post("/keys", status_code=201, responses={409: {}, 422: {}})
    async def make_key(body: NewKeyBelow, response: Response) -> dict[str, Any]:
        """Make a key: `name`, settings as in the fleet file, and `maker` for a key below another key. Only this answer
        contains the key itself."""
        if gateway.admin_key is None:
            # The first key closes the gateway: any program on this machine could lock its owner out.
            raise unauthorized("Keys can be made over HTTP only if the gateway has an admin key.")
        return await _make(gateway, body, body.maker, response)

    @router.delete("/keys/{name}", responses={404: {}, 409: {}})
    async def revoke_key(name: str) -> dict[str, Any]:
        """Revoke a key and all keys below it, for good."""
        tenant = gateway.rules.tenants.get(name)
        if tenant is None:
            raise not_found("There is no such key")
        return await _revoke(gateway, tenant)

    @router.get("/spend", responses={400: {}})
    async def spend(by: _By = "day,key", since: _Day = None, until: _Day = None) -> Response:
        """Requests, tokens and USD of all keys."""
        return await _spend(gateway, by, since, until, None)

    return router


# --- holders ------------------------------------------------------------------------------------------
def holder_routes(gateway: Gateway) -> APIRouter:
    """All of /v1/keys and /v1/spend."""
    router = APIRouter(prefix="/v1", tags=["keys"], dependencies=[Depends(known_parameters)])

    def caller(request: Request) -> Tenant:
        name = client_name(gateway, request)
        found = None if name is None else gateway.rules.tenants.get(name)
        if found is None:
            raise not_found("This gateway is open: there is no key")
        return found

    async def may_change(maker: str) -> None:
        root = gateway.rules.tenants.chain(maker)[-1].name
        await gateway.budget_admission.take_change(Bucket(f"{root}/keys", _CHANGES_AT_ONCE, _CHANGES_PER_S))

    @router.get("/keys/self", responses={404: {}})
    async def own(request: Request) -> dict[str, Any]:
        """The caller's key: effective settings, spending and what is left."""
        tenant = caller(request)
        return {"name": tenant.name, **_effective(gateway, tenant.name), **_money(gateway, tenant.name)}

    @router.get("/keys", responses={404: {}})
    async def keys(request: Request) -> Response:
        """The keys below the caller's key."""
        tenants = gateway.rules.tenants
        made = map(tenants.get, tenants.made_by(caller(request).name))
        return await _listed(gateway, [tenant for tenant in made if tenant is not None])

    @router.post("/keys", status_code=201, responses={403: {}, 404: {}, 409: {}, 422: {}})
    async def make_key(body: NewKey, request: Request, response: Response) -> dict[str, Any]:
        """Make a key below the caller's: `name`, and settings within the caller's own. Only this answer contains the key
        itself."""
        maker = caller(request).name
        if not gateway.rules.tenants.effective(maker).makes_keys:
            raise Refusal(403, "permission_denied", "This key may not make keys", Outcome.REJECTED_AUTH)
        await may_change(maker)
        return await _make(gateway, body, maker, response)

    @router.delete("/keys/{name}", responses={404: {}})
    async def revoke_key(name: str, request: Request) -> dict[str, Any]:
        """Revoke a key below the caller's, and all keys below that."""
        tenants, maker = gateway.rules.tenants, caller(request).name
        tenant = tenants.get(name) if name in tenants.made_by(maker) else None
        if tenant is None:
            raise not_found("There is no such key")
        await may_change(maker)
        return await _revoke(gateway, tenant)

    @router.get("/spend", responses={400: {}, 404: {}})
    async def spend(
        request: Request, by: _By = "day,key", since: _Day = None, until: _Day = None, key: str | None = None
    ) -> Response:
        """Requests, tokens and USD of the caller's key and the keys below it, or of one of them (`key`)."""
        name = caller(request).name
        visible = [name, *gateway.rules.tenants.made_by(name)]
        if key is not None and key not in visible:
            raise not_found("There is no such key")
        return await _spend(gateway, by, since, until, visible if key is None else [key])

    return router


# --- both ---------------------------------------------------------------------------------------------
async def _make(gateway: Gateway, body: NewKey, maker: str | None, response: Response) -> dict[str, Any]:
    was_open = gateway.rules.keys.open
    settings = body.model_extra or {}
    try:
        made = await make(
            gateway.keys.table, gateway.rules.tenants, gateway.fleet.policies, body.name, settings, maker
        )
        await gateway.keys.changed_here()
    except BadKey as error:
        code, status = ("name_taken", 409) if isinstance(error, NameUsed) else ("invalid_key", 422)
        raise invalid_request(f"{error}.", error.field, code, status) from None
    response.headers["cache-control"] = "no-store"
    answer = {"key": made.text, **_row(made.stored.name, made.stored)}
    tenant = gateway.rules.tenants.get(made.stored.name)
    if tenant is not None:  # otherwise the database has just become unreachable
        answer |= _described(gateway, tenant)
    return answer | {"note": _CLOSED} if was_open else answer


async def _revoke(gateway: Gateway, tenant: Tenant) -> dict[str, Any]:
    try:
        revoked = await revoke(gateway.keys.table, gateway.rules.tenants, tenant)
        await gateway.keys.changed_here(revoked)
    except BadKey as error:
        raise invalid_request(f"{error}.", None, "in_fleet_file", 409) from None
    return {"name": tenant.name, "revoked": list(revoked)}


async def _spend(
    gateway: Gateway, by: str, since: str | None, until: str | None, keys: Sequence[str] | None
) -> Response:
    now = time.time()

    def read(param: str, text: str | None, reader: Callable[[str], _Read]) -> _Read | None:
        try:
            return None if text is None else reader(text)
        except ValueError as error:
            raise invalid_request(f"{param}: {error}", param) from None

    try:
        report = await spend_report(
            gateway.store,
            read("by", by, dimensions) or (),
            read("since", since, lambda text: day(text, now)),
            read("until", until, lambda text: day(text, now)),
            keys,
            MAX_REPORT_ROWS,
        )
    except BadReport as error:
        raise invalid_request(f"{error}.", "since") from None
    return Response(orjson.dumps(report), media_type="application/json")


async def _listed(gateway: Gateway, tenants: Sequence[Tenant]) -> Response:
    """Keys as JSON. There may be thousands, so the event loop runs in between."""
    listed = []
    for number, tenant in enumerate(tenants, 1):
        if gateway.rules.tenants.get(tenant.name) is not None:  # otherwise it was removed meanwhile
            listed.append(orjson.Fragment(orjson.dumps(_described(gateway, tenant))))
        if number % _AT_A_TIME == 0:
            await asyncio.sleep(0)
    return Response(orjson.dumps({"keys": listed}), media_type="application/json")


def _described(gateway: Gateway, tenant: Tenant) -> dict[str, Any]:
    return {
        **_row(tenant.name, tenant.stored),
        "source": "fleet" if tenant.stored is None else "table",
        "works": gateway.rules.tenants.alive(tenant.name),
        "settings": tenant.settings.model_dump(
            mode="json", include=tenant.settings.model_fields_set & {*SETTINGS}
        ),
        "effective": _effective(gateway, tenant.name),
        **_money(gateway, tenant.name),
    }


def _row(name: str, stored: StoredKey | None) -> dict[str, Any]:
    columns = ("maker", "created_at", "revoked_at")
    return {"name": name, **{column: getattr(stored, column, None) for column in columns}}


def _effective(gateway: Gateway, name: str) -> dict[str, Any]:
    effective = gateway.rules.tenants.effective(name)
    return {setting: getattr(effective, setting) for setting in SETTINGS}


def _money(gateway: Gateway, name: str) -> dict[str, Any]:
    """The spending of the key and the keys below it, and what is left of its tightest budget (null without one)."""
    rules, now = gateway.rules, time.time()
    spent_usd, left_usd = {}, {}
    budgets = rules.tenants.account(name).budgets(now)
    for word, period in (("today", today(now)), ("total", TOTAL)):
        spent_usd[word] = gateway.state.spent_usd(name, period)
        left = [
            each.limit_usd - gateway.state.spent_usd(each.key, period)
            for each in budgets
            if each.period == period and each.limit_usd != float("inf")
        ]
        left_usd[word] = max(0.0, min(left)) if left else None
    return {"spent_usd": spent_usd, "left_usd": left_usd}
