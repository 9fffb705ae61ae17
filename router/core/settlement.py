"""How requests and attempts end: the bill of an attempt, the outcome of an answer, and what is recorded.

An engine is paid for an attempt

- that answered: its prompt and its output;
- that failed: the same if it gave any output, or more than the router reads (the work was done); otherwise nothing;
- that was cancelled: its prompt, if the engine got the request, and the output so far. The output of a non-streaming
  answer is estimated from the time.

The prompt is billed by the engine's own count, or else by the router's estimate.
"""

from __future__ import annotations

from typing import NamedTuple

from router.compiled import compiled_init
from router.core.errors import Refusal
from router.core.request_state import AttemptState, RequestEnd, RequestState
from router.core.types import EndedHow, Outcome, Request

# Python 3.11 takes 600 instructions to find a member of an enumeration, and 10 to find a global name.
_OK = EndedHow.OK
_CANCELLED = EndedHow.CANCELLED
_HEDGE_LOST = EndedHow.HEDGE_LOST


@compiled_init
class Settlement(NamedTuple):
    """The result of a request. Times are in seconds: `e2e_s`, `ttft_s` and `queue_wait_s` count from its arrival; None
    if there was no such time.

    `answer` is the attempt that the record describes: the one that answered, else the last one (None: there was none).
    `refusal` is the client's error instead of an answer. `decoded`: some attempt gave a token. `cost_usd` is the cost
    of all `attempts`. `reserved_usd` is the amount in each of the key's budgets, to be released. `used_tokens` counts
    against token limits: prompt and output of all billed attempts. `overrun_usd` is the cost beyond the cap or the budgets
    (None: there are none).
    """

    outcome: Outcome
    error_code: str | None
    refusal: Refusal | None
    slo_met: bool | None
    answer: AttemptState | None
    attempts: tuple[AttemptState, ...]
    e2e_s: float
    ttft_s: float | None
    tpot_s: float | None
    queue_wait_s: float
    decoded: bool
    cost_usd: float
    overrun_usd: float | None
    reserved_usd: float
    used_tokens: int

    @property
    def hedged(self) -> bool:
        """Whether a second attempt ran beside a first one."""
        return len(self.attempts) > 1 and any(each.hedge for each in self.attempts)


#: Refusals that do not count as a missed SLO.
_OUTSIDE_SLO = frozenset({Outcome.REJECTED_INVALID, Outcome.CLIENT_CANCELLED})


def settle(state: RequestState) -> Settlement:
    """The settlement of a request whose end is decided, with no attempt under way."""
    request, end, money = state.request, state.end, state.money
    assert end is not None  # noqa: S101 (a request is settled after its end is decided)
    attempts = tuple(state.attempts)
    answer, refusal = end.answer, end.refusal
    if answer is None and attempts:
        answer = next((each for each in attempts if each.decoding and not _unseen(each)), attempts[-1])
    decoded_s = e2e_s = end.at - request.arrived_at
    ttft_s = None
    if answer is not None:
        if answer.first_token_at is not None and (answer is end.answer or not _unseen(answer)):
            ttft_s = answer.first_token_at - request.arrived_at
        if answer is state.held and answer.ended_at is not None:
            decoded_s = answer.ended_at - request.arrived_at  # its check is no part of TPOT
    met = end.slo_met
    if refusal is not None and request.slo is not None and end.outcome not in _OUTSIDE_SLO:
        met = False
    decoded, used_tokens = False, 0
    for each in attempts:
        if each.billed:
            used_tokens += (each.prompt_tokens or request.prompt_tokens) + each.output_tokens
        decoded = decoded or each.first_token_at is not None
    return Settlement(
        end.outcome,
        end.error_code or (None if refusal is None else refusal.code),
        refusal,
        met,
        answer,
        attempts,
        e2e_s,
        ttft_s,
        None if answer is None else tpot_s(ttft_s, decoded_s, answer.output_tokens),
        attempts[0].dispatched_at - request.arrived_at if attempts else e2e_s,
        decoded or _answered_in_one_piece(request, end),
        money.spent_usd,
        money.overrun_usd,
        money.reserved_usd,
        used_tokens,
    )


def _answered_in_one_piece(request: Request, end: RequestEnd) -> bool:
    """Whether an answer with tokens came, of a request of which nothing was streamed."""
    answer = end.answer
    return answer is not None and request.decodes and answer.output_tokens > 0


def _unseen(attempt: AttemptState) -> bool:
    """Whether the client got nothing of a failed attempt, so that the request could be sent elsewhere."""
    return attempt.ended_how is EndedHow.FAILED


def tpot_s(ttft_s: float | None, e2e_s: float, output_tokens: int) -> float | None:
    """(E2E - TTFT) / (output tokens - 1); None without a first token, and for fewer than two tokens."""
    if ttft_s is None or output_tokens < 2:
        return None
    return (e2e_s - ttft_s) / (output_tokens - 1)


def slo_met(answer: AttemptState, now: float) -> bool | None:
    """Whether a complete answer that is delivered now meets its targets; None without an SLO. An answer without a stream has
    its first token at its end."""
    request, ended_at = answer.request, answer.ended_at
    slo = request.slo
    if slo is None or ended_at is None:
        return None
    ended_s = ended_at - request.arrived_at
    ttft_s = ended_s if answer.first_token_at is None else answer.first_token_at - request.arrived_at
    return slo.met(ttft_s, tpot_s(ttft_s, ended_s, answer.output_tokens), now - request.arrived_at)


def bill(attempt: AttemptState, *, sent: bool, too_large: bool) -> None:
    """Set `billed` and `cost_usd` of an attempt whose end is known (see the module's docstring)."""
    request, how = attempt.request, attempt.ended_how
    cancelled = how is _CANCELLED or how is _HEDGE_LOST
    if cancelled and sent and not request.engine_streams:
        attempt.output_tokens = _estimated_tokens(attempt)
    attempt.billed = how is _OK or too_large or (cancelled and sent) or attempt.output_tokens > 0
    if attempt.billed:
        prompt_tokens = attempt.prompt_tokens or request.prompt_tokens
        attempt.cost_usd = attempt.candidate.price.cost_usd(prompt_tokens, attempt.output_tokens)


def _estimated_tokens(attempt: AttemptState) -> int:
    """The output that the engine has probably produced of a cancelled non-streaming answer, by the predicted speed and
    the time since the dispatch: at most its bound, or without one the length that nine of ten answers do not exceed."""
    request, prediction = attempt.request, attempt.prediction
    if not request.decodes or not prediction.tpot_s or attempt.ended_at is None:
        return 0
    decoding_s = attempt.ended_at - attempt.dispatched_at - (prediction.engine_ttft_s or 0.0)
    most: float | None = attempt.bound.max_tokens
    if most is None:
        most = attempt.candidate.context_tokens or request.prompt_tokens
        if prediction.output_tokens_p90:
            most = min(most, prediction.output_tokens_p90 / request.choices)
    return request.choices * max(0, int(min(most, decoding_s / prediction.tpot_s)))
