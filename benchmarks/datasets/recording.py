"""What a gateway knows of its attempts, written down at the calls that teach its predictor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from predictors.online.predictor import OnlinePredictor
from predictors.training.dataset import Attempt, State
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, Prediction, Request


class RecordingPredictor:
    """A predictor that predicts as `inner` does, and keeps every attempt and report that it observes. `runs` gives
    the id of each instance's run."""

    def __init__(self, inner: OnlinePredictor, runs: Mapping[str, str]) -> None:
        self.name = inner.name
        self.attempts: list[Attempt] = []
        self.states: list[State] = []
        self._inner = inner
        self._runs = runs
        #: Attempts under way by request and instance: hedges have two.
        self._open: dict[tuple[str, str], int] = {}
        self.predict, self.predict_all = inner.predict, inner.predict_all
        self.qualities, self.ttft_floor_s = inner.qualities, inner.ttft_floor_s
        self.observe_quality, self.receive = inner.observe_quality, inner.receive
        self.use, self.forget = inner.use, inner.forget

    def observe_dispatch(
        self, request: Request, candidate: Candidate, instance: Instance, prediction: Prediction, now: float
    ) -> None:
        """A new attempt."""
        self._open[request.id, instance.name] = len(self.attempts)
        self.attempts.append(
            Attempt(
                self._runs[instance.name],
                candidate.model,
                now,
                request.prompt_tokens,
                max_tokens=request.max_tokens,
                cached_tokens=int(self._inner.cached_tokens(request, instance.name)),
                session=request.session,
            )
        )
        self._inner.observe_dispatch(request, candidate, instance, prediction, now)

    def observe_ttft(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        engine_ttft_s: float,
        now: float,
    ) -> None:
        """Its first token."""
        index = self._open[request.id, instance.name]
        self.attempts[index] = replace(self.attempts[index], first_token_s=now)
        self._inner.observe_ttft(request, candidate, instance, prediction, engine_ttft_s, now)

    def observe_end(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        output_tokens: int,
        prompt_tokens: int | None,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """Its end, with the engine's own count of the prompt."""
        index = self._open.pop((request.id, instance.name))
        attempt = self.attempts[index]
        self.attempts[index] = replace(
            attempt,
            ended_s=now,
            output_tokens=output_tokens,
            prompt_tokens=attempt.prompt_tokens if prompt_tokens is None else prompt_tokens,
        )
        self._inner.observe_end(
            request, candidate, instance, prediction, output_tokens, prompt_tokens, tpot_s, now
        )

    def observe_loss(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        waited_s: float,
        decoding: bool,
        output_tokens: int,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """It was given up."""
        index = self._open.pop((request.id, instance.name))
        self.attempts[index] = replace(
            self.attempts[index],
            ended_s=now,
            output_tokens=output_tokens if decoding else None,
            ended_how=EndedHow.CANCELLED.value,
        )
        self._inner.observe_loss(
            request, candidate, instance, prediction, waited_s, decoding, output_tokens, tpot_s, now
        )

    def observe_report(self, instance: Instance, now: float) -> None:
        """The engine's view of itself."""
        report = instance.report
        self.states.append(
            State(self._runs[instance.name], now, report.running, report.waiting, report.kv_usage)
        )
        self._inner.observe_report(instance, now)
