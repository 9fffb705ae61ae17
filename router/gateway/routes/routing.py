"""Dry runs, explanations of decisions, and feedback."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from router.core.errors import invalid_request
from router.explain import describe, described_candidates
from router.gateway.codecs.responses.request import is_response, responses_to_chat
from router.gateway.intake.request import read_request
from router.gateway.keys.admission import KeyReservation
from router.gateway.records import find_request
from router.gateway.routes.access import client_key, client_name, not_found
from router.gateway.service import Gateway
from router.request import body as bodies
from router.request.routing_params import KeyTerms
from router.store.explanations import kept
from router.store.records import RequestRecord

_PREDICT_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}},
    }
}


class Feedback(BaseModel):
    """Feedback about an answer: `quality` from 0 (useless) to 1 (perfect)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    request_id: str = Field(min_length=1, max_length=200)
    quality: float = Field(ge=0, le=1, allow_inf_nan=False)


def routing_routes(gateway: Gateway) -> APIRouter:
    """`/v1/routing/predict`, `/v1/routing/{request_id}` and `/v1/feedback`."""
    router = APIRouter(prefix="/v1", tags=["routing"])

    @router.post("/routing/predict", openapi_extra=_PREDICT_BODY)
    async def predict(request: Request) -> dict[str, Any]:
        """A dry run of a chat (`messages`), completion (`prompt`), embedding (`input`) or response (`input` with items, or
        with a field that only responses have): candidates, predictions and scores. Nothing is sent or recorded."""
        terms = client_key(gateway, request)
        if terms is None or terms.name is None:
            return await _dry_run(gateway, request, None, None)
        reservation = await gateway.budget_admission.enter(
            gateway.rules.working[terms.name].account, time.time(), [], sends=False
        )
        try:
            return await _dry_run(gateway, request, terms, reservation)
        finally:
            reservation.close(0.0, 0.0)

    @router.get("/routing/{request_id}")
    async def routing(request_id: str, request: Request) -> dict[str, Any]:
        """The decision for one of the caller's requests, and its outcome."""
        name = client_name(gateway, request)
        row = await find_request(gateway.store, gateway.state, request_id, name)
        if row is None:
            raise not_found("There is no such request")
        return await describe(gateway.store, row)

    @router.post("/feedback")
    async def feedback(rating: Feedback, request: Request) -> dict[str, Any]:
        """Rate an answer."""
        name = client_name(gateway, request)
        if not await gateway.feedback.add(rating.request_id, rating.quality, name):
            raise not_found("There is no such request")
        return {"request_id": rating.request_id, "quality": rating.quality}

    return router


async def _dry_run(
    gateway: Gateway, request: Request, terms: KeyTerms | None, reservation: KeyReservation | None
) -> dict[str, Any]:
    """The decision that would be made now. `reservation` is what the request has taken of its key's limits: its
    prompt's tokens are taken like those of a request that is sent."""
    rules = gateway.rules
    headers = {name.lower(): value for name, value in request.headers.raw}
    try:
        data = await request.body()  # `access.Guard` bounds it
    except ClientDisconnect:
        raise invalid_request("The connection was closed before the whole body had arrived.") from None
    body = await bodies.parse_large_json(data)
    rules.fields.check_names(body)
    if is_response(body):
        body = responses_to_chat(body).body
    api = "chat" if "messages" in body else "embeddings" if "input" in body else "completions"
    now = gateway.runner.clock()
    record = RequestRecord(
        id="predict", received_at=time.time(), arrived_at=now, key_name=None if terms is None else terms.name
    )
    decided, facts = await read_request(rules, terms, headers, api, body, record)
    if reservation is not None:
        await gateway.budget_admission.hold(reservation, decided.prompt_tokens, None, [])
    await gateway.tokens.count(decided, api, body, facts)
    decision = gateway.runner.scheduler.decide(decided, now)
    candidates = described_candidates(kept(decision, now))
    chosen = next(candidate for candidate in candidates if candidate["chosen"])
    return {
        "policy": decided.policy,
        "model": chosen["model"],
        "instance": chosen["instance"],
        "prompt_tokens": decided.prompt_tokens,
        "candidates": candidates,
    }
