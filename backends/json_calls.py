"""JSON requests to an engine over its pool: headers, statuses, and answers that are not JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from backends import bounded_json
from backends.engine_errors import from_event, from_response
from backends.engine_numbers import finish_reason, sound_usage
from backends.http1 import Connection
from backends.pool import Pool
from router.core.errors import AnswerTooLarge, UpstreamError, UpstreamRejected
from router.core.raw_json import dumps

MAX_ERROR_BYTES = 256 * 1024
_LARGE_BYTES = 1024 * 1024
#: A shorter text is no secret but a word, such as "Bearer".
_SECRET_BYTES = 8


def engine_headers(api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """The operator's headers for every request. `headers` may replace the Authorization."""
    own = {name.lower(): value for name, value in (headers or {}).items()}
    return {"authorization": f"Bearer {api_key}", **own} if api_key else own


async def post_json(
    pool: Pool, head: bytes, request_id: str, body: Mapping[str, Any], sent: Callable[[], None] | None = None
) -> Connection:
    """POST a body. Returns the connection of a 2xx answer, or raises an UpstreamError for the engine's error. `sent` as
    in `Pool.post`."""
    try:
        data = dumps(body)
    except TypeError as error:
        raise UpstreamRejected("the request cannot be written as JSON (nested too deeply?)") from error
    if len(data) > _LARGE_BYTES:
        await asyncio.sleep(0)  # writing a large body takes its time too
    connection = await pool.post(head, request_id, data, sent)
    if 200 <= connection.status < 300:
        return connection
    try:
        said = await connection.read_all(MAX_ERROR_BYTES)
    except AnswerTooLarge:
        said = b""
    for secret in _secrets(head):  # a refusal may quote the request's head, and is passed on to the client
        said = said.replace(secret, b"***")
    raise from_response(connection.status, said)


def _secrets(head: bytes) -> list[bytes]:
    """The operator's secrets in the constant part of a request's head (`request_head`: the first five lines are our
    own)."""
    words = [word for line in head.split(b"\r\n")[5:-1] for word in line.partition(b":")[2].split()]
    return sorted((word for word in words if len(word) >= _SECRET_BYTES), key=len, reverse=True)


async def json_object(connection: Connection, *, vectors: bool = False) -> dict[str, Any]:
    """The complete answer as an object. The event loop runs while a large one is read. `vectors`: the answer has
    embeddings."""
    data = await connection.read_all()
    try:
        answer = await (bounded_json.read_vectors if vectors else bounded_json.read)(data)
    except bounded_json.TooComplex as error:
        raise AnswerTooLarge(f"the engine's answer {error}") from error
    except ValueError as error:
        raise UpstreamError("the engine's answer is not JSON") from error
    if not isinstance(answer, dict):
        raise UpstreamError("the engine's answer is not a JSON object")
    if answer.get("error"):  # some engines send errors with status 200
        raise from_event(answer, started=True)
    return answer


def sound_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """A complete answer in OpenAI's shape in which every member that the router reads has the right type. Raises
    UpstreamError."""
    choices, data = answer.get("choices"), answer.get("data")
    for listed in (choices, data):
        if listed is not None and not (
            isinstance(listed, list) and all(isinstance(each, dict) for each in listed)
        ):
            raise _unknown_shape()
    for choice in choices or ():
        if not isinstance(choice.get("message", {}), dict | None):
            raise _unknown_shape()
        choice["finish_reason"] = finish_reason(choice.get("finish_reason"))
    for number, each in enumerate(data or ()):
        if not isinstance(each.get("embedding"), list | str):
            raise _unknown_shape()
        if type(each.get("index")) is not int:
            each["index"] = number
    if answer.get("usage") is not None:
        answer["usage"] = sound_usage(answer["usage"]) or {}
    return answer


def _unknown_shape() -> UpstreamError:
    return UpstreamError("the engine's answer has an unknown shape")
