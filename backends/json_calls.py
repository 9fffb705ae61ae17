"""JSON requests to an engine over its pool: one place for headers, statuses and answers that are no JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from backends.engine_errors import from_response
from backends.http1 import Connection
from backends.pool import Pool
from router.core.errors import UpstreamError, UpstreamRejected
from router.core.long_text import dumps

MAX_ERROR_BYTES = 256 * 1024
_LARGE_BYTES = 1024 * 1024


def engine_headers(api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """The operator's headers for every request; `headers` may replace the Authorization."""
    own = {name.lower(): value for name, value in (headers or {}).items()}
    return {"authorization": f"Bearer {api_key}", **own} if api_key else own


async def post_json(pool: Pool, head: bytes, request_id: str, body: Mapping[str, Any]) -> Connection:
    """POST a body; the connection with a 2xx answer, or UpstreamError by the engine's error."""
    try:
        data = dumps(body)
    except TypeError as error:
        raise UpstreamRejected("the request cannot be written as JSON (nested too deeply?)") from error
    if len(data) > _LARGE_BYTES:
        await asyncio.sleep(0)  # to write so much takes its time too
    connection = await pool.post(head, request_id, data)
    if 200 <= connection.status < 300:
        return connection
    status = connection.status
    raise from_response(status, await connection.read_all(MAX_ERROR_BYTES))


def json_object(data: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UpstreamError("the engine's answer is not JSON") from error
    if not isinstance(answer, dict):
        raise UpstreamError("the engine's answer is not a JSON object")
    if answer.get("error"):  # some engines put errors under a 200
        raise from_response(500, data)
    return answer
