"""Errors with their status, code and outcome.

Refusal                     sent to the client as an HTTP error, with an outcome and a Retry-After
UpstreamError               one attempt failed; the scheduler may try another candidate
 +- UpstreamRejected        the engine answered 400: passed to the client, not retried
 +- UpstreamTimeout         no bytes for longer than the idle limit, or no connection in time
 +- OutOfSockets            the gateway has no socket left; the engine is not at fault
 +- AnswerTooLarge          the answer is larger than the router reads: billed, not retried
"""

from __future__ import annotations

from router.core.quoting import cut
from router.core.types import Decision, Outcome

#: Most characters of an error's message, and of its field and code. Quoted values are cut earlier (`core.quoting`); this
#: limits the rest.
MAX_MESSAGE_CHARS = 2000
MAX_PARAM_CHARS = 200


class Refusal(Exception):
    """A request gets an error instead of an answer.

    `status` is the HTTP status, `code` the `error.code`, `param` the field at fault, and `retry_after_s` the Retry-After.
    If `should_retry` is False, the response has `x-should-retry: false`. `decision` says what speaks against each candidate,
    where the request was refused for lack of one; it is for the record.
    """

    decision: Decision | None = None

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        outcome: Outcome,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool = True,
    ) -> None:
        message = cut(message, MAX_MESSAGE_CHARS)
        super().__init__(message)
        self.status = status
        self.code = cut(code, MAX_PARAM_CHARS)
        self.message = message
        self.outcome = outcome
        self.param = None if param is None else cut(param, MAX_PARAM_CHARS)
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry


def invalid_request(
    message: str, param: str | None = None, code: str = "invalid_request", status: int = 400
) -> Refusal:
    return Refusal(status, code, message, Outcome.REJECTED_INVALID, param=param)


def unauthorized(message: str) -> Refusal:
    return Refusal(401, "invalid_api_key", message, Outcome.REJECTED_AUTH)


def model_not_found(message: str) -> Refusal:
    return Refusal(404, "model_not_found", message, Outcome.REJECTED_INVALID, param="model")


def rate_limited(message: str, retry_after_s: float) -> Refusal:
    return Refusal(429, "rate_limit_exceeded", message, Outcome.REJECTED_RATE, retry_after_s=retry_after_s)


class UpstreamError(Exception):
    """One attempt failed. `status` is the engine's HTTP status, if it sent one. The message is for logs and records and
    has no prompt text. `unreachable`: no connection could be made. `retry_after_s` is the engine's Retry-After."""

    retry_after_s: float | None = None

    def __init__(self, message: str, status: int | None = None, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.unreachable = unreachable


class UpstreamRejected(UpstreamError):
    """The engine refused the request itself (400). `message`, `param` and `code` are from the engine's error."""

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, status)
        self.param = param
        self.code = code


class UpstreamTimeout(UpstreamError):
    """No connection in time, or no bytes for longer than the idle limit."""


class OutOfSockets(UpstreamError):
    """The gateway's machine has no file descriptor, port or buffer left for a connection."""


class AnswerTooLarge(UpstreamError):
    """The answer is larger than the router reads. It is not retried: the engine did the work, and another engine's answer
    would be as large."""
