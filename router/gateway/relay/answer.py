"""Parts of an answer that are the router's own: headers, the `headway` object, refusals, the cut at a bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from operator import attrgetter
from typing import Any

import orjson

from backends import sse_events
from router.core.errors import Refusal
from router.core.types import Prediction, Request
from router.explain import PREDICTED
from router.gateway.codecs.codec import ApiCodec
from router.gateway.http.client_request import ClientRequest
from router.store.records import RequestRecord

_predicted: Callable[[Prediction], tuple[float | None, ...]] = attrgetter(*PREDICTED)


def header_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Headers as they go over the wire."""
    if not headers:
        return b""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def length_event(api: str, model: str, request: Request) -> bytes:
    """The event that ends every choice of an answer which the router cut at its bound."""
    kind, said = ("chat.completion.chunk", "delta") if api == "chat" else ("text_completion", "text")
    choices = [
        {"index": index, said: {} if api == "chat" else "", "finish_reason": "length"}
        for index in range(request.choices)
    ]
    chunk = {
        "id": request.id,
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
    }
    return sse_events.event(orjson.dumps(chunk))


def headway_object(record: RequestRecord, prediction: Prediction) -> dict[str, Any]:
    """The `headway` member of an answer."""
    return {
        "request_id": record.id,
        "policy": record.policy,
        "model": record.model,
        "instance": record.instance,
        "attempts": record.attempts,
        "ttft_ms": None if record.ttft_s is None else round(record.ttft_s * 1000, 3),
        "e2e_ms": None if record.e2e_s is None else round(record.e2e_s * 1000, 3),
        "cost_usd": record.cost_usd,
        "predicted": predicted_object(prediction),
        "slo_met": record.slo_met,
        "outcome": record.outcome,
        "queue_wait_ms": None if record.queue_wait_s is None else round(record.queue_wait_s * 1000, 3),
    }


def predicted_object(prediction: Prediction) -> dict[str, float | None]:
    """The `predicted` member of an answer."""
    return dict(zip(PREDICTED, _predicted(prediction), strict=True))


def respond_refusal(
    responder: ClientRequest,
    codec: ApiCodec,
    refusal: Refusal,
    request_id: str,
    extra: Iterable[tuple[bytes, bytes]],
) -> None:
    """Send an error response with the headers its row of the contract asks for."""
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode()), *extra]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(refusal.retry_after_s))))
    if not refusal.should_retry:
        headers.append((b"x-should-retry", b"false"))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    # A 413 keeps the connection: what is left of the body is read and dropped. To close now would reset the
    # connection, and the client, still sending, would lose the answer.
    responder.respond(refusal.status, header_lines(headers), codec.error(refusal))
