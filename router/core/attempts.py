"""The effects of an attempt's start and end: on its instance's work and health, and on its request's money."""

from __future__ import annotations

from bisect import bisect_left, insort

from router.core import health
from router.core.deciding import Decided
from router.core.events import Failure, FailureKind
from router.core.request_state import NO_PREDICTION, AttemptPhase, AttemptState, RequestState
from router.core.settings import SchedulerSettings
from router.core.settlement import bill
from router.core.types import EndedHow

#: Statuses that depend on the request or the load, and not on the instance's health.
NO_FAULT = frozenset({408, 413, 414, 415, 429, 431, 501, 503})
#: The most characters of an error that are recorded.
_ERROR_CHARS = 300
# Python 3.11 takes 600 instructions to find a member of an enumeration, and 10 to find a global name.
_OK = EndedHow.OK
_FUNDING = AttemptPhase.FUNDING
_DECODING = AttemptPhase.DECODING
_ENDED = AttemptPhase.ENDED


def start(state: RequestState, decided: Decided, now: float, *, hedge: bool) -> AttemptState:
    """Create an attempt at the chosen candidate. It may start if its phase is PREFILL. `count` follows."""
    option, money = decided.option, state.money
    candidate = option.candidate
    attempt = AttemptState(
        state.request,
        candidate,
        option.instance,
        NO_PREDICTION,
        len(state.attempts) + 1,
        decided,
        money.output_bound(candidate),
        hedge,
        now,
    )
    state.attempts.append(attempt)
    state.under_way.append(attempt)
    state.tried.add((candidate.instance, candidate.model))
    state.placed = candidate
    if not money.begin(attempt.number, candidate, attempt.bound):
        attempt.phase = _FUNDING
    return attempt


def count(attempt: AttemptState, confidence: float) -> None:
    """Count an attempt at its instance. It is counted even if its prediction is invalid, which raises."""
    request, prediction, instance = attempt.request, attempt.prediction, attempt.instance
    instance.dispatched(request.prompt_tokens)
    attempt.expected_output_tokens = int(prediction.output_tokens_p50 or 0.0)
    slo = request.slo
    # A target that will probably be missed anyway is no promise.
    if slo is not None and slo.tpot_s is not None and (prediction.p_miss or 0.0) <= confidence:
        attempt.promised_tpot_s = slo.tpot_s
        insort(instance.promised_tpot_s, slo.tpot_s)


def first_token(attempt: AttemptState, now: float) -> None:
    """An attempt has its first token and decodes from now on."""
    attempt.first_token_at = now
    attempt.phase = _DECODING
    attempt.instance.first_token(attempt.request.prompt_tokens, attempt.expected_output_tokens)


def assume_first_token(attempt: AttemptState) -> None:
    """The first token of an attempt without a stream was expected by now, so the attempt counts as decoding: otherwise the
    instance's queue of prompts would seem too long. Predictors learn nothing from it."""
    if attempt.phase is AttemptPhase.PREFILL:
        attempt.assumed_decoding = True
        attempt.instance.first_token(attempt.request.prompt_tokens, attempt.expected_output_tokens)


def end(
    state: RequestState,
    attempt: AttemptState,
    how: EndedHow,
    now: float,
    *,
    sent: bool = True,
    too_large: bool = False,
) -> None:
    """An attempt has ended: remove its work from its instance, and bill it. `sent`: the engine got the request; `too_large`:
    its answer was larger than the router reads."""
    instance = attempt.instance
    if how is _OK:
        health.answered(instance)
    attempt.phase, attempt.ended_how, attempt.ended_at = _ENDED, how, now
    state.under_way.remove(attempt)
    bill(attempt, sent=sent, too_large=too_large)
    state.money.end(
        attempt.number, attempt.candidate, attempt.cost_usd, attempt.prompt_tokens, attempt.output_tokens
    )
    decoding = attempt.first_token_at is not None or attempt.assumed_decoding
    instance.released(attempt.request.prompt_tokens, attempt.expected_output_tokens, decoding)
    if attempt.promised_tpot_s is not None:
        promised = instance.promised_tpot_s
        del promised[bisect_left(promised, attempt.promised_tpot_s)]
    instance.freed(now)


def count_failure(
    state: RequestState, attempt: AttemptState, failure: Failure, settings: SchedulerSettings
) -> None:
    """Record a failure. Count it against the instance, or keep it until it is known whether the instance or the request
    caused it."""
    attempt.error, attempt.retry_after_s = failure.message[:_ERROR_CHARS], failure.retry_after_s
    if failure.kind is FailureKind.REJECTED:
        # The engine's message is for the client only: it may quote the request.
        state.refused = True
        attempt.error = f"the engine refused the request ({failure.status})"
    elif failure.kind is FailureKind.UNREACHABLE:
        health.connection_failed(attempt.instance, settings.eject_after)
    elif failure.kind is FailureKind.ERROR and failure.status not in NO_FAULT:
        state.failed_at[attempt.instance.name] = attempt.instance


def blame(state: RequestState, settings: SchedulerSettings, *, answered: bool) -> None:
    """Count a request's failures against the instances at which it failed, unless the request itself is the cause: it
    failed at several instances, and none has `answered`."""
    if answered or len(state.failed_at) == 1:
        owner = state.request.owner
        for instance in state.failed_at.values():
            health.request_failed(instance, owner, settings.eject_after, settings.return_after)
    state.failed_at.clear()
