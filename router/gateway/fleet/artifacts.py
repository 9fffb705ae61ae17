"""The trained artifacts that serve, and how a reload replaces them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from predictors.learned.models import Models
from predictors.online.predictor import OnlinePredictor
from router.config import FleetConfig
from router.core.events import PredictorsChanged
from router.gateway.records import Feedback
from router.gateway.runner import Runner


class Artifacts:
    """`read` loads the artifacts of a fleet file and raises ConfigError."""

    def __init__(
        self,
        predictor: OnlinePredictor,
        runner: Runner,
        feedback: Feedback,
        read: Callable[[FleetConfig], Models],
    ) -> None:
        self._predictor = predictor
        self._runner = runner
        self._feedback = feedback
        self._read = read
        self._named: tuple[Models | None, str] = (None, "")

    @property
    def name(self) -> str:
        """The artifacts in use, as records name them."""
        models = self._predictor.models
        if self._named[0] is not models:  # making the name takes too long to do it for each request
            self._named = models, self._predictor.name
        return self._named[1]

    async def load(self, config: FleetConfig) -> Models:
        """The artifacts of a fleet file, read in a thread. Raises ConfigError."""
        return await asyncio.to_thread(self._read, config)

    async def use(self, models: Models) -> None:
        """Predict with these from now on. New ones learn the recorded feedback again."""
        if models.name != self.name:
            self._runner.apply(PredictorsChanged(models))
            await self._feedback.learn_recorded()
