"""Limits of a request's body."""

from __future__ import annotations

from collections.abc import Mapping

from router.core.errors import Refusal, invalid_request

#: A larger body of a request over its key's limits is not read.
SMALL_BODY_BYTES = 64 * 1024


class ClientGone(Exception):
    """The client left before its request was complete."""


def is_small(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the announced length is so small that reading the body costs almost nothing."""
    length = headers.get(b"content-length", b"")
    return length.isdigit() and len(length) < 10 and int(length) <= SMALL_BODY_BYTES


def announces_more(length: bytes, limit: int) -> bool:
    """Whether an announced length is above `limit`. The parser accepts any number of leading zeros, `int` does not."""
    return length.isdigit() and int(length.lstrip(b"0") or b"0") > limit


def check_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Raise the 415 for a compressed body."""
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"", b"identity"):
        message = "Content-Encoding is not supported: send the body without compression."
        raise invalid_request(message, None, "unsupported_media_type", 415)


def too_large(max_body_mb: float) -> Refusal:
    """The 413."""
    return invalid_request(f"The body is larger than {max_body_mb:g} MiB.", None, "request_too_large", 413)
