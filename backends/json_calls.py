"""Calls whose answer is one JSON object: generation and embeddings in one piece, and an engine's tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import NoneType
from typing import Any

import orjson

from backends import bounded_json
from backends.connection import Connection
from backends.engine_errors import ABORT, from_event, stopped
from backends.engine_numbers import finish_reason, sound_usage
from backends.pool import Pool
from backends.post import Follower
from backends.scanning import Post
from backends.stream import ODD_SHAPES
from router.background import failed
from router.core.errors import AnswerTooLarge, UpstreamError
from router.core.interfaces import Call

MAX_BODY_BYTES = 64 * 1024 * 1024
#: Larger answers are not repaired, which is done at once.
_MAX_REPAIRED_BYTES = 1024 * 1024
_VECTOR, _MESSAGE = (list, str), (dict, NoneType)


class JsonCall(Post):
    """`router.core.interfaces.OpenCall` for an answer in one piece. `read` turns the engine's answer into OpenAI's, or raises
    UpstreamError. `vectors`: the answer has embeddings."""

    __slots__ = ("_read", "_vectors")

    def __init__(
        self,
        pool: Pool,
        head: bytes,
        request_id: str,
        body: Any,
        follower: Follower,
        read: Callable[[dict[str, Any]], dict[str, Any]],
        *,
        vectors: bool = False,
    ) -> None:
        """Raises UpstreamRejected for a body that JSON cannot hold."""
        super().__init__(pool, head, request_id, body, follower)
        self._read = read
        self._vectors = vectors

    def resume(self) -> None:
        """Does nothing: such a call never pauses."""

    def _opened(self, connection: Connection) -> None:
        connection.watched = True  # the idle limit holds from here on
        connection.listener = self._on_data
        self._on_data()

    def _on_data(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            data = self._complete_body(connection, MAX_BODY_BYTES)
        except UpstreamError as error:
            self._follower.failed(error)
            return
        if data is None:
            return
        if len(data) <= bounded_json.SMALL_BYTES:
            self._parsed(_loads, data)
        else:  # the event loop runs while a large one is read
            read = bounded_json.read_vectors if self._vectors else bounded_json.read
            self._later = task = asyncio.get_running_loop().create_task(_read(read, data))
            task.add_done_callback(self._read_large)

    def _read_large(self, task: asyncio.Task[Any]) -> None:
        if self._later is task:  # else it was aborted meanwhile
            self._later = None
            self._parsed(task.result)

    def _parsed(self, parse: Callable[..., Any], *given: Any) -> None:
        try:
            answer = self._read(_checked(parse, *given))
        except UpstreamError as error:
            self._failed(error)
        except ODD_SHAPES as error:
            failed("engine-answer", error)
            self._follower.failed(UpstreamError("the engine's answer has an unknown shape"))
        except Exception as error:  # noqa: BLE001 (the root of a callback)
            self._follower.failed(error)
        else:
            self._follower.ended(answer)


def _loads(data: bytes) -> Any:
    """Parse an answer at once, repaired if it must be."""
    try:
        return bounded_json.loads(data)
    except orjson.JSONDecodeError:
        return bounded_json.loads(bounded_json.repaired(data))


async def _read(read: Callable[[bytes], Awaitable[Any]], data: bytes) -> Any:
    """Read a large answer, repaired if it must be."""
    try:
        return await read(data)
    except orjson.JSONDecodeError:
        if len(data) > _MAX_REPAIRED_BYTES:
            raise
        return await read(bounded_json.repaired(data))


def _checked(parse: Callable[..., Any], *given: Any) -> dict[str, Any]:
    try:
        answer = parse(*given)
    except bounded_json.TooComplex as error:
        raise AnswerTooLarge(f"the engine's answer {error}") from error
    except ValueError as error:
        raise UpstreamError("the engine's answer is not JSON") from error
    if not isinstance(answer, dict):
        raise UpstreamError("the engine's answer is not a JSON object")
    if answer.get("error"):  # some engines send errors with status 200
        raise from_event(answer, started=False)
    return answer


class _Answer:
    """A follower whose answer can be awaited."""

    def __init__(self) -> None:
        self.future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def sent(self) -> None: ...

    def ended(self, answer: dict[str, Any] | None) -> None:
        if not self.future.done():
            self.future.set_result(answer or {})

    def failed(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


async def json_answer(pool: Pool, head: bytes, request_id: str, body: Any) -> dict[str, Any]:
    """POST a body and wait for the object that answers it. Raises UpstreamError."""
    answer = _Answer()
    call = JsonCall(pool, head, request_id, body, answer, lambda found: found).start()
    try:
        return await answer.future
    finally:
        call.abort()  # does nothing after the end


def sound_answer(answer: dict[str, Any], call: Call) -> dict[str, Any]:
    """A complete answer to `call` in OpenAI's shape in which every member that the router reads has the right type. Raises
    UpstreamError, also for one without a choice, and for another number of vectors than of inputs."""
    vectors = call.api == "embeddings"
    listed = answer.get("data" if vectors else "choices") or []
    if not isinstance(listed, list):
        raise _unknown_shape()
    if vectors and len(listed) != (inputs := _inputs(call.body.get("input"))):
        raise UpstreamError(f"the engine gave {len(listed)} vectors for {inputs} inputs")
    if not listed:
        raise UpstreamError("the engine's answer is empty")
    for number, each in enumerate(listed):
        if not isinstance(each, dict):
            raise _unknown_shape()
        if vectors:
            if not isinstance(each.get("embedding"), _VECTOR):
                raise _unknown_shape()
            if type(each.get("index")) is not int:
                each["index"] = number
        else:
            message = each.get("message")
            if not isinstance(message, _MESSAGE) or not _are_calls((message or {}).get("tool_calls")):
                raise _unknown_shape()
            each["finish_reason"] = finish_reason(each.get("finish_reason"))
            if each["finish_reason"] == ABORT:
                raise stopped()
    if answer.get("usage") is not None:
        answer["usage"] = sound_usage(answer["usage"]) or {}
    return answer


def _are_calls(value: Any) -> bool:
    """Whether a message's tool calls have the right shape."""
    return value is None or (
        isinstance(value, list)
        and all(isinstance(each, dict) and isinstance(each.get("function"), _MESSAGE) for each in value)
    )


def _inputs(value: Any) -> int:
    """How many inputs a request for embeddings has: a text, its tokens, or a list of either."""
    return len(value) if isinstance(value, list) and not (value and isinstance(value[0], int)) else 1


def _unknown_shape() -> UpstreamError:
    return UpstreamError("the engine's answer has an unknown shape")
