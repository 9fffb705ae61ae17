"""Limits of a request's body, and the body of one that is served through ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from router.core.errors import Refusal
from router.core.types import Outcome

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

#: A larger body of a request over its key's limits is not read.
SMALL_BODY_BYTES = 64 * 1024


class ClientGone(Exception):
    """The client left before its request was complete."""


def is_small(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the announced length is so small that reading the body costs almost nothing."""
    length = headers.get(b"content-length", b"")
    return length.isdigit() and len(length) < 10 and int(length) <= SMALL_BODY_BYTES


def check_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Raise the 415 for a compressed body."""
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"", b"identity"):
        raise Refusal(
            415,
            "unsupported_media_type",
            "Content-Encoding is not supported: send the body without compression.",
            Outcome.REJECTED_INVALID,
        )


async def read_body(headers: dict[bytes, bytes], receive: Receive, max_body_mb: float) -> bytes:
    """The complete body. Raises the 413 as soon as the limit is exceeded, and ClientGone."""
    limit = int(max_body_mb * 1024 * 1024)
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise too_large(max_body_mb)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    first: bytes = message["body"]
    if not message["more_body"]:
        if len(first) > limit:
            raise too_large(max_body_mb)
        return first
    parts, size = [first], len(first)
    while message["more_body"]:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message["body"])
        size += len(message["body"])
        if size > limit:
            raise too_large(max_body_mb)
    return b"".join(parts)


def too_large(max_body_mb: float) -> Refusal:
    """The 413."""
    return Refusal(
        413, "request_too_large", f"The body is larger than {max_body_mb:g} MiB.", Outcome.REJECTED_INVALID
    )
