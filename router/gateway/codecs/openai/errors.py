"""OpenAI's error object."""

from __future__ import annotations

from typing import Any

import orjson

from router.core.errors import Refusal

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}


def error_object(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _ERROR_TYPES.get(refusal.status, "api_error")
    if refusal.code == "insufficient_quota":
        kind = "insufficient_quota"
    return {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}


def openai_error(refusal: Refusal) -> bytes:
    """OpenAI's error body."""
    return orjson.dumps({"error": error_object(refusal)})
