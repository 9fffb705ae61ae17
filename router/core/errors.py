"""Errors of the contract, each with its status, code and outcome.

Refusal                     the caller gets it as an HTTP error; it says outcome and Retry-After
UpstreamError               one attempt failed; the scheduler may try elsewhere
 +- UpstreamRejected        the engine answered 400: passed through once, not tried again
 +- UpstreamTimeout         silence for longer than the idle limit, or no connection in time
 +- OutOfSockets            the gateway has no socket left: no fault of the engine's
 +- AnswerTooLarge          the engine answered with more than is read: paid for, not tried again
"""

from __future__ import annotations

from router.core.quoting import cut
from router.core.types import Outcome

#: Characters of an error's text, and of its field and code. What is repeated in it is cut earlier (`core.quoting`); this
#: holds for all that is not.
MAX_MESSAGE_CHARS = 2000
MAX_PARAM_CHARS = 200


class Refusal(Exception):
    """A request that gets an error in place of an answer.

    `status` is the HTTP status, `code` the contract's `error.code`, `param` the field at fault,
    `retry_after_s` the Retry-After to send, `should_retry` False sends `x-should-retry: false`.
    """

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


def invalid_request(message: str, param: str | None = None, code: str = "invalid_request") -> Refusal:
    return Refusal(400, code, message, Outcome.REJECTED_INVALID, param=param)


class UpstreamError(Exception):
    """One attempt failed. `status` is the engine's HTTP status if it gave one; the message is for
    logs and records and holds no prompt text. `unreachable`: no connection could be made."""

    def __init__(self, message: str, status: int | None = None, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.unreachable = unreachable


class UpstreamRejected(UpstreamError):
    """The engine refused the request itself (400). `body` is its own error text, passed on once."""

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, status)
        self.param = param
        self.code = code


class UpstreamTimeout(UpstreamError):
    """No connection in time, or no bytes for longer than the idle limit."""


class OutOfSockets(UpstreamError):
    """This machine has no file, port or buffer left for a connection."""


class AnswerTooLarge(UpstreamError):
    """The engine answered with more than the router reads. That is the request's doing: another engine's answer would be as
    large, and the work was done."""
