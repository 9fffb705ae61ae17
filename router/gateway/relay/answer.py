"""Parts of an answer that are the router's own: headers, the `headway` object, refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil
from typing import Any

from router.core.errors import Refusal
from router.core.request_state import AttemptState
from router.core.rounding import rounded
from router.core.settlement import Settlement
from router.explain import PREDICTED
from router.gateway.codecs.codec import ApiCodec
from router.gateway.http.client_request import ClientRequest
from router.store.records import OUTCOME_TEXT, RequestRecord, prediction_picker

_shown = prediction_picker(*PREDICTED)


def header_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Headers as they go over the wire."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


@lru_cache(maxsize=8192)
def candidate_lines(instance: str, model: str) -> bytes:
    """The header lines that name a candidate."""
    return f"x-headway-model: {model}\r\nx-headway-instance: {instance}\r\n".encode()


def headway_object(record: RequestRecord, settlement: Settlement, answer: AttemptState) -> dict[str, Any]:
    """The `headway` member of an answer."""
    candidate, ttft_s = answer.candidate, settlement.ttft_s
    return {
        "request_id": record.id,
        "policy": record.policy,
        "model": candidate.model,
        "instance": candidate.instance,
        "attempts": len(settlement.attempts),
        "ttft_ms": None if ttft_s is None else rounded(ttft_s * 1000, 3),
        "e2e_ms": rounded(settlement.e2e_s * 1000, 3),
        "cost_usd": settlement.cost_usd,
        "predicted": dict(zip(PREDICTED, _shown(record.set_prediction(answer.prediction)), strict=True)),
        "slo_met": settlement.slo_met,
        "outcome": OUTCOME_TEXT[settlement.outcome],
        "queue_wait_ms": rounded(settlement.queue_wait_s * 1000, 3),
    }


def refusal_headers(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    """The headers that an error's row of the contract asks for."""
    headers = []
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(refusal.retry_after_s))))
    if not refusal.should_retry:
        headers.append((b"x-should-retry", b"false"))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def respond_refusal(
    client: ClientRequest,
    codec: ApiCodec,
    refusal: Refusal,
    request_id: str,
    extra: Iterable[tuple[bytes, bytes]],
) -> None:
    """Send an error response."""
    own = (b"content-type", b"application/json"), (b"x-request-id", request_id.encode())
    headers = [*own, *extra, *refusal_headers(refusal)]
    # A 413 keeps the connection: what is left of the body is read and dropped. To close now would reset the
    # connection, and the client, still sending, would lose the answer.
    client.respond(refusal.status, header_lines(headers), codec.error(refusal))
