"""What a gateway knows of its attempts, written down where its predictor learns from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictors.online.predictor import OnlinePredictor
from predictors.training.dataset import Attempt, State
from router.core.interfaces import SentAttempt
from router.core.state import Instance
from router.core.types import EndedHow


class Recorder(OnlinePredictor):
    """Keeps every attempt and report that it observes. `runs` gives the id of each instance's run. It has no trained models: the
    data that they are made of must not depend on those that are shipped."""

    def __init__(self, runs: Mapping[str, str]) -> None:
        super().__init__()
        self.attempts: list[Attempt] = []
        self.states: list[State] = []
        self._runs = runs
        self._open: dict[SentAttempt, int] = {}

    def observe_dispatch(self, attempt: SentAttempt, now: float) -> None:
        request, instance = attempt.request, attempt.instance.name
        self._open[attempt] = len(self.attempts)
        self.attempts.append(
            Attempt(
                self._runs[instance],
                attempt.candidate.model,
                now,
                request.prompt_tokens,
                max_tokens=request.max_tokens,
                cached_tokens=int(self.cached_tokens(request, instance)),
                session=request.session,
            )
        )
        super().observe_dispatch(attempt, now)

    def observe_ttft(self, attempt: SentAttempt, engine_ttft_s: float, now: float) -> None:
        self._change(self._open[attempt], first_token_s=now)
        super().observe_ttft(attempt, engine_ttft_s, now)

    def observe_end(
        self,
        attempt: SentAttempt,
        output_tokens: int,
        max_tokens: int | None,
        prompt_tokens: int | None,
        tpot_s: float | None,
        now: float,
    ) -> None:
        counted = {} if prompt_tokens is None else {"prompt_tokens": prompt_tokens}  # by the engine
        self._change(self._open.pop(attempt), ended_s=now, output_tokens=output_tokens, **counted)
        super().observe_end(attempt, output_tokens, max_tokens, prompt_tokens, tpot_s, now)

    def observe_loss(
        self,
        attempt: SentAttempt,
        waited_s: float,
        decoding: bool,
        output_tokens: int,
        tpot_s: float | None,
        now: float,
    ) -> None:
        how = EndedHow.CANCELLED.value
        seen_tokens = output_tokens if decoding else None
        self._change(self._open.pop(attempt), ended_s=now, output_tokens=seen_tokens, ended_how=how)
        super().observe_loss(attempt, waited_s, decoding, output_tokens, tpot_s, now)

    def observe_report(self, instance: Instance, now: float) -> None:
        report = instance.report
        self.states.append(
            State(self._runs[instance.name], now, report.running, report.waiting, report.kv_usage)
        )
        super().observe_report(instance, now)

    def _change(self, index: int, **facts: Any) -> None:
        self.attempts[index] = replace(self.attempts[index], **facts)
