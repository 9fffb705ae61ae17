"""One request at one instance, as a scheduler tells a predictor of it."""

from __future__ import annotations

from predictors.online.predictor import OnlinePredictor
from router.core.state import Instance
from router.core.types import Candidate, Prediction, Request

#: What each observation of an attempt begins with.
Attempt = tuple[Request, Candidate, Instance, Prediction]


def sent(predictor: OnlinePredictor, request: Request, instance: Instance, at_s: float) -> Attempt:
    """Predicts for the request and dispatches it."""
    candidate = instance.candidates["m"]
    prediction = predictor.predict(request, candidate, instance, at_s)
    predictor.observe_dispatch(request, candidate, instance, prediction, at_s)
    return request, candidate, instance, prediction
