"""OpenAI's error object."""

from __future__ import annotations

from typing import Any

import orjson

from router.core.errors import Refusal

#: By status; all others are an `invalid_request_error` of the client, or an `api_error` of the server.
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_object(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _ERROR_TYPES.get(refusal.status)
    if kind is None:
        kind = "invalid_request_error" if refusal.status < 500 else "api_error"
    if refusal.code == "insufficient_quota":
        kind = "insufficient_quota"
    return {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}


def openai_error(refusal: Refusal) -> bytes:
    """OpenAI's error body."""
    return orjson.dumps({"error": error_object(refusal)})
