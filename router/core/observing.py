"""What the predictor hears of an attempt. The scheduler calls these after its instructions, before the next change."""

from __future__ import annotations

from dataclasses import replace

from router.core.interfaces import Predictor
from router.core.request_state import AttemptState
from router.core.types import Request


def dispatch(predictor: Predictor, request: Request, attempt: AttemptState) -> None:
    """It was dispatched, and counts at its instance."""
    predictor.observe_dispatch(
        request, attempt.candidate, attempt.instance, attempt.prediction, attempt.dispatched_at
    )


def first_token(predictor: Predictor, request: Request, attempt: AttemptState, now: float) -> None:
    """It has its first token."""
    predictor.observe_ttft(
        request, attempt.candidate, attempt.instance, attempt.prediction, now - attempt.dispatched_at, now
    )


def end(
    predictor: Predictor, request: Request, attempt: AttemptState, tpot_s: float | None, now: float
) -> None:
    """It has given its complete answer, at `tpot_s` seconds a token."""
    bound = attempt.bound.max_tokens
    if bound != request.max_tokens and request.decodes:
        request = replace(request, max_tokens=bound)  # without its bound the answer might have been longer
    predictor.observe_end(
        request,
        attempt.candidate,
        attempt.instance,
        attempt.prediction,
        attempt.output_tokens,
        attempt.prompt_tokens,
        tpot_s,
        now,
    )


def loss(predictor: Predictor, request: Request, attempt: AttemptState, now: float) -> None:
    """It has ended without a complete answer."""
    predictor.observe_loss(
        request,
        attempt.candidate,
        attempt.instance,
        attempt.prediction,
        now - attempt.dispatched_at,
        attempt.decoding,
        now,
    )
