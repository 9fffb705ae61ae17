"""One request at one instance, as a scheduler tells a predictor of it."""

from __future__ import annotations

from predictors.online.predictor import OnlinePredictor
from router.core.interfaces import SentAttempt
from router.core.state import Instance
from router.core.types import Request


def sent(predictor: OnlinePredictor, request: Request, instance: Instance, at_s: float) -> SentAttempt:
    """Predicts for the request and dispatches it."""
    candidate = instance.candidates["m"]
    attempt = SentAttempt(request, candidate, instance, predictor.predict(request, candidate, instance, at_s))
    predictor.observe_dispatch(attempt, at_s)
    return attempt
