"""The scheduler's refusals and their Retry-After."""

from __future__ import annotations

from collections.abc import Iterable

from router.core.errors import Refusal, invalid_request
from router.core.events import Failure
from router.core.interfaces import Option
from router.core.request_state import AttemptState
from router.core.types import EndedHow, Outcome, Slo

_LEAST_S, _MOST_S = 1.0, 60.0


def bounded_s(seconds: float) -> float:
    """A time, limited to the range that Retry-After may have (1 to 60 s)."""
    return min(_MOST_S, max(_LEAST_S, seconds))


def until_met_s(slo: Slo, options: Iterable[Option], waited_s: float) -> float:
    """Predicted seconds until a retry could meet these targets at the best option. Per option this is the longest of: the
    lateness of the first token, the lateness of the whole answer, and, if TPOT is too high, a share of the median
    answer time, because running answers must end first."""
    excess = []
    for option in options:
        predicted = option.prediction
        if predicted is None:
            continue
        late_s = [0.0]
        if slo.ttft_s is not None and predicted.ttft_s_p95 is not None:
            late_s.append(predicted.ttft_s_p95 - waited_s - slo.ttft_s)
        if slo.e2e_s is not None and predicted.e2e_s_p95 is not None:
            late_s.append(predicted.e2e_s_p95 - waited_s - slo.e2e_s)
        if slo.tpot_s is not None and predicted.tpot_s is not None and predicted.e2e_s_p50 is not None:
            late_s.append(
                (1.0 - slo.tpot_s / predicted.tpot_s) * predicted.e2e_s_p50
                if predicted.tpot_s > slo.tpot_s
                else 0.0
            )
        excess.append(max(late_s))
    return bounded_s(min(excess, default=_LEAST_S))


def unattainable(message: str, retry_after_s: float) -> Refusal:
    """A hard SLO cannot be met now."""
    return Refusal(
        429,
        "slo_unattainable",
        message,
        Outcome.REJECTED_SLO,
        param="routing.slo",
        retry_after_s=retry_after_s,
        should_retry=False,
    )


def insufficient_quota(message: str) -> Refusal:
    """The budget of a key, or of a key that made it, cannot pay for the request."""
    return Refusal(429, "insufficient_quota", message, Outcome.REJECTED_BUDGET, should_retry=False)


def overloaded(retry_after_s: float) -> Refusal:
    """The queue is full."""
    return Refusal(
        503,
        "server_overloaded",
        "No instance can take the request now, and the queue is at its limit.",
        Outcome.REJECTED_OVERLOAD,
        retry_after_s=retry_after_s,
    )


def failed(attempts: Iterable[AttemptState]) -> Refusal:
    """Every attempt failed upstream. The message has the instance and the error of each, and no prompt and no secret. If all
    engines sent a Retry-After, the shortest one counts."""
    failures = [each for each in attempts if each.ended_how is EndedHow.FAILED]
    errors = "; ".join(f"{each.candidate.instance}: {each.error or 'no reason given'}" for each in failures)
    waits_s = [each.retry_after_s for each in failures if each.retry_after_s is not None]
    return Refusal(
        502,
        "upstream_error",
        f"Every attempt failed upstream: {errors}.",
        Outcome.BACKEND_ERROR,
        retry_after_s=bounded_s(min(waits_s)) if waits_s and len(waits_s) == len(failures) else None,
    )


def expired(after_s: float, outcome: Outcome, by_e2e: bool) -> Refusal:
    """A time limit has passed. `by_e2e`: the limit of the whole answer, not that of the first token."""
    whole = by_e2e or outcome is Outcome.EXPIRED_MID_DECODE
    code, what = ("deadline_exceeded", "answer") if whole else ("ttft_timeout", "first token")
    message = f"The time for the {what} passed after {after_s:.2f} s."
    return Refusal(504, code, message, outcome, should_retry=False)


def method_not_allowed() -> Refusal:
    """The path has no such method."""
    return invalid_request("This path does not take this method.", code="method_not_allowed", status=405)


def draining() -> Refusal:
    """The gateway is shutting down."""
    return Refusal(
        503, "no_instance", "The gateway is shutting down.", Outcome.REJECTED_NO_INSTANCE, retry_after_s=5
    )


def given_up(reason: str) -> Refusal:
    """The gateway itself ends a request: it is shutting down, or has an internal error."""
    return draining() if reason == "shutdown" else internal_error()


def internal_error() -> Refusal:
    """An internal error of the gateway."""
    return Refusal(500, "internal_error", "The gateway failed on this request.", Outcome.BACKEND_ERROR)


def broken_off() -> Refusal:
    """An engine failed after the client had received tokens."""
    return Refusal(502, "upstream_error", "The engine failed in mid-answer.", Outcome.BACKEND_ERROR)


def rejected(failure: Failure) -> Refusal:
    """An engine refused the request itself: its own message, passed on once."""
    code = failure.code or "invalid_request"
    return invalid_request(failure.message, failure.param, code, failure.status or 400)


def too_large(message: str) -> Refusal:
    """An engine's answer is larger than the router reads."""
    return Refusal(502, "upstream_error", f"{message.capitalize()}.", Outcome.BACKEND_ERROR)
