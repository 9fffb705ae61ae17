"""A request at an instance: what is predicted for it, and how a scheduler tells a predictor of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from predictors.online.predictor import OnlinePredictor
from router.core.interfaces import SentAttempt
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, Prediction, Price, Request

PROFILE = EngineProfile("p", 2e-3, 10e-3, 1e-4, 1e-7, 1e-9, 100_000, load_s=8.0)
REQUEST = Request("r", 100.0, "latency", ("m",), prompt_tokens=500, max_tokens=300)


def candidate(instance: str = "i", model: str = "m") -> Candidate:
    return Candidate(instance, model, "up", Price(1.0, 4.0), 32_768, 0.5, family="f")


def an_instance(name: str = "i", kind: str = "vllm", profile: EngineProfile | None = PROFILE) -> Instance:
    profiles = {} if profile is None else {"m": profile}
    return Instance(name, kind, {"m": candidate(name)}, hardware="gpu", profiles=profiles)


def value(number: float | None) -> float:
    assert number is not None
    return number


def prediction_of(
    predictor: OnlinePredictor, instance: Instance | None = None, at_s: float = 100.0, **fields: Any
) -> Prediction:
    """For a request that arrives at this time; `fields` are those other than REQUEST's."""
    instance = instance or an_instance()
    request = replace(REQUEST, **{"arrived_at": at_s} | fields)
    return predictor.predict(request, instance.candidates["m"], instance, at_s)


def sent(predictor: OnlinePredictor, request: Request, instance: Instance, at_s: float) -> SentAttempt:
    """Predicts for the request and dispatches it."""
    candidate = instance.candidates["m"]
    attempt = SentAttempt(request, candidate, instance, predictor.predict(request, candidate, instance, at_s))
    predictor.observe_dispatch(attempt, at_s)
    return attempt
