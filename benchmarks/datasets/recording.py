"""What a gateway knows of its attempts, written down at the calls that teach its predictor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec

from predictors.online.predictor import OnlinePredictor
from predictors.training.dataset import Attempt, State
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, Request

P = ParamSpec("P")


class Recorder:
    """Keeps every attempt and report that `predictor` observes from now on. `runs` gives the id of each instance's run."""

    def __init__(self, predictor: OnlinePredictor, runs: Mapping[str, str]) -> None:
        self.attempts: list[Attempt] = []
        self.states: list[State] = []
        self._cached_tokens = predictor.cached_tokens
        self._runs = runs
        #: Attempts under way by request and instance: hedges have two.
        self._open: dict[tuple[str, str], int] = {}
        notes: dict[str, Callable[..., None]] = {
            "observe_dispatch": self._dispatch,
            "observe_ttft": self._ttft,
            "observe_end": self._end,
            "observe_loss": self._loss,
            "observe_report": self._report,
        }
        for name, note in notes.items():
            setattr(predictor, name, _after(note, getattr(predictor, name)))

    def _dispatch(
        self, request: Request, candidate: Candidate, instance: Instance, _: Any, now: float
    ) -> None:
        self._open[request.id, instance.name] = len(self.attempts)
        self.attempts.append(
            Attempt(
                self._runs[instance.name],
                candidate.model,
                now,
                request.prompt_tokens,
                max_tokens=request.max_tokens,
                cached_tokens=int(self._cached_tokens(request, instance.name)),
                session=request.session,
            )
        )

    def _ttft(self, request: Request, _: Candidate, instance: Instance, *times: Any) -> None:
        self._change(self._open[request.id, instance.name], first_token_s=times[-1])

    def _end(self, request: Request, _: Candidate, instance: Instance, *what: Any) -> None:
        _, output_tokens, prompt_tokens, _, now = what
        index = self._open.pop((request.id, instance.name))
        counted = {} if prompt_tokens is None else {"prompt_tokens": prompt_tokens}  # by the engine
        self._change(index, ended_s=now, output_tokens=output_tokens, **counted)

    def _loss(self, request: Request, _: Candidate, instance: Instance, *what: Any) -> None:
        _, _, decoding, tokens, _, now = what
        index = self._open.pop((request.id, instance.name))
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
