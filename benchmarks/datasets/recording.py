"""What a gateway knows of its attempts, written down at the calls that teach its predictor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec

from predictors.online.predictor import OnlinePredictor
from predictors.training.dataset import Attempt, State
from router.core.interfaces import SentAttempt
from router.core.state import Instance
from router.core.types import EndedHow

P = ParamSpec("P")


class Recorder:
    """Keeps every attempt and report that `predictor` observes from now on. `runs` gives the id of each instance's run."""

    def __init__(self, predictor: OnlinePredictor, runs: Mapping[str, str]) -> None:
        self.attempts: list[Attempt] = []
        self.states: list[State] = []
        self._cached_tokens = predictor.cached_tokens
        self._runs = runs
        self._open: dict[SentAttempt, int] = {}
        notes: dict[str, Callable[..., None]] = {
            "observe_dispatch": self._dispatch,
            "observe_ttft": self._ttft,
            "observe_end": self._end,
            "observe_loss": self._loss,
            "observe_report": self._report,
        }
        for name, note in notes.items():
            setattr(predictor, name, _after(note, getattr(predictor, name)))

    def _dispatch(self, attempt: SentAttempt, now: float) -> None:
        request, instance = attempt.request, attempt.instance.name
        self._open[attempt] = len(self.attempts)
        self.attempts.append(
            Attempt(
                self._runs[instance],
                attempt.candidate.model,
                now,
                request.prompt_tokens,
                max_tokens=request.max_tokens,
                cached_tokens=int(self._cached_tokens(request, instance)),
                session=request.session,
            )
        )

    def _ttft(self, attempt: SentAttempt, _: float, now: float) -> None:
        self._change(self._open[attempt], first_token_s=now)

    def _end(self, attempt: SentAttempt, *what: Any) -> None:
        output_tokens, _, prompt_tokens, _, now = what
        index = self._open.pop(attempt)
        counted = {} if prompt_tokens is None else {"prompt_tokens": prompt_tokens}  # by the engine
        self._change(index, ended_s=now, output_tokens=output_tokens, **counted)

    def _loss(self, attempt: SentAttempt, *what: Any) -> None:
        _, decoding, tokens, _, now = what
        index = self._open.pop(attempt)
        how = EndedHow.CANCELLED.value
        self._change(index, ended_s=now, output_tokens=tokens if decoding else None, ended_how=how)

    def _change(self, index: int, **facts: Any) -> None:
        self.attempts[index] = replace(self.attempts[index], **facts)

    def _report(self, instance: Instance, now: float) -> None:
        report = instance.report
        self.states.append(
            State(self._runs[instance.name], now, report.running, report.waiting, report.kv_usage)
        )


def _after(note: Callable[..., None], teach: Callable[P, None]) -> Callable[P, None]:
    """`teach`, once the same is noted."""

    def observe(*what: P.args, **more: P.kwargs) -> None:
        note(*what, **more)
        teach(*what, **more)

    return observe
