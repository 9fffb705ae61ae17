"""How requests and attempts end: what an attempt is billed, how an answer counts, what is recorded.

An engine is paid for an attempt:

- that answered: its prompt and its output;
- that failed: the same if it gave any output, or more than is read (the work was done); else nothing;
- that was cancelled: its prompt, once the engine was given the request, and the output so far. If the engine was to answer
  in one piece, its output is estimated: what it usually produces in that time.

The engine's own count of the prompt is billed where it gave one, else the router's estimate.
"""

from __future__ import annotations

from typing import NamedTuple

from router.core.errors import Refusal
from router.core.request_state import AttemptState, RequestState
from router.core.types import EndedHow, Outcome, Request, Slo


class Settlement(NamedTuple):
    """All that is known of a request at its end. Times in seconds: `e2e_s`, `ttft_s` and `queue_wait_s` from its arrival;
    None where there was none.

    `answer` is the attempt that the record is about: the one that answered, else the last one (None: it had none).
    `refusal` is what the client gets in place of an answer. `decoded` says that some attempt gave a token. `cost_usd` is the
    cost of all `attempts`, `reserved_usd` what is reserved in each of the key's budgets and is to be released,
    `used_tokens` what counts against token limits, `overrun_usd` the cost beyond the cap or the budgets (None: there are
    none).
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
        return any(each.hedge for each in self.attempts)


#: Refusals that are nobody's missed SLO.
_OUTSIDE_SLO = frozenset({Outcome.REJECTED_INVALID, Outcome.CLIENT_CANCELLED})


def settle(state: RequestState) -> Settlement:
    """The settlement of a request that has its verdict and no attempt under way."""
    request, verdict, money = state.request, state.verdict, state.money
    assert verdict is not None  # noqa: S101 (a request is settled after its verdict)
    attempts = tuple(state.attempts)
    answer = verdict.answer
    if answer is None and attempts:
        answer = next((each for each in attempts if each.decoding and not _unseen(each)), attempts[-1])
    e2e_s = verdict.at - request.arrived_at
    ttft_s = None
    if (
        answer is not None
        and answer.first_token_at is not None
        and (answer is verdict.answer or not _unseen(answer))
    ):
        ttft_s = answer.first_token_at - request.arrived_at
    met = verdict.slo_met
    if verdict.refusal is not None and request.slo is not None and verdict.outcome not in _OUTSIDE_SLO:
        met = False
    refusal = verdict.refusal
    output_tokens = 0 if answer is None else answer.output_tokens
    worked = any(each.billed for each in attempts)
    prompt_tokens = request.prompt_tokens if answer is None else answer.prompt_tokens or request.prompt_tokens
    return Settlement(
        outcome=verdict.outcome,
        error_code=verdict.error_code or (None if refusal is None else refusal.code),
        refusal=refusal,
        slo_met=met,
        answer=answer,
        attempts=attempts,
        e2e_s=e2e_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s(ttft_s, e2e_s, output_tokens),
        queue_wait_s=e2e_s if not attempts else attempts[0].dispatched_at - request.arrived_at,
        decoded=any(each.decoding for each in attempts),
        cost_usd=money.spent_usd,
        overrun_usd=money.overrun_usd,
        reserved_usd=money.reserved_usd,
        used_tokens=prompt_tokens + output_tokens if worked else 0,
    )


def _unseen(attempt: AttemptState) -> bool:
    """Whether the client saw nothing of an attempt that failed: the request could go on elsewhere."""
    return attempt.ended_how is EndedHow.FAILED


def tpot_s(ttft_s: float | None, e2e_s: float | None, output_tokens: int | None) -> float | None:
    """(E2E - TTFT) / (output tokens - 1); None for fewer than two tokens."""
    if ttft_s is None or e2e_s is None or output_tokens is None or output_tokens < 2:
        return None
    return (e2e_s - ttft_s) / (output_tokens - 1)


def slo_met(slo: Slo | None, ttft_s: float | None, e2e_s: float, output_tokens: int | None) -> bool | None:
    """Whether an answer that was delivered to its end kept its targets; None without an SLO."""
    return None if slo is None else slo.met(ttft_s, tpot_s(ttft_s, e2e_s, output_tokens), e2e_s)


def bill(request: Request, attempt: AttemptState, *, sent: bool, too_large: bool) -> None:
    """Set `billed` and `cost_usd` of an attempt whose end is known (see the module's docstring)."""
    how = attempt.ended_how
    cancelled = how is EndedHow.CANCELLED or how is EndedHow.HEDGE_LOST
    if cancelled and sent and not request.engine_streams:
        attempt.output_tokens = _estimated_tokens(request, attempt)
    attempt.billed = how is EndedHow.OK or too_large or (cancelled and sent) or attempt.output_tokens > 0
    if attempt.billed:
        prompt_tokens = attempt.prompt_tokens or request.prompt_tokens
        attempt.cost_usd = attempt.candidate.price.cost_usd(prompt_tokens, attempt.output_tokens)


def _estimated_tokens(request: Request, attempt: AttemptState) -> int:
    """What the engine has produced of an answer that nobody waited for, as predicted for the time since the dispatch."""
    prediction = attempt.prediction
    if not request.decodes or not prediction.tpot_s or attempt.ended_at is None:
        return 0
    decoding_s = attempt.ended_at - attempt.dispatched_at - (prediction.engine_ttft_s or 0.0)
    most = attempt.bound.max_tokens or attempt.candidate.context_tokens or request.prompt_tokens
    return request.choices * max(0, int(min(most, decoding_s / prediction.tpot_s)))
