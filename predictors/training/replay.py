"""A recorded run, driven through the objects that serve: what the latency model would have seen of it.

In order of time, each attempt's dispatch, first token and end, and each report of the engine, go to a
`router.core.state.Instance`, the serving predictor and an `InstanceHistory`. Every decision gives one row of target
features, the corrected estimate that would have served, and the actual values.

For a cluster whose members are not identified (`Run.replicas`), each request is taken to reach an average member: its
counters are the cluster's, divided by the number of members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log, nextafter
from typing import Any

import numpy as np

from predictors.kernels import InstanceHistory
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.quantiles import PREDICTIONS
from predictors.learned.latency import EVENT_FEATURES, TARGET_FEATURES, LatencyModel
from predictors.learned.models import Models
from predictors.learned.trees import TREE_FEATURES, TreeModel, tree_row
from predictors.online.prediction import OnlinePrediction
from predictors.online.predictor import OnlinePredictor
from predictors.training.dataset import Attempt, Dataset, DatasetError, Run, State, by_run
from router.core.interfaces import Option, SentAttempt
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Request

#: What predicted (`Episode.predicted`).
PHYSICAL, MODEL, SERVED = "physical", "model", "served"
#: The same, but (N, 2): p90 alone.
FORESTS = "forests"

_REPORT, _FIRST_TOKEN, _END, _DISPATCH = range(4)  # in this order at the same moment


@dataclass(frozen=True, slots=True)
class Episode:
    """A run as the model sees it: E events and N requests in order of dispatch.

    `events` (E, event features), `targets` (N, target features), `seen` (N,) the number of events before each decision.
    `corrected` (N, 2) is the log of the corrected estimate of TTFT and TPOT in seconds, `actual` (N, 2) that of the measured
    times, NaN where unknown. For a request that never had a first token `longer_than` (N,) is the log of how long it waited,
    else -inf. `held` (N,) is the closed form of KV memory's mean use over the request's life. `tree_rows` (N, tree features)
    and `tree_bases` (N, 2) are the inputs of boosted trees (`predictors.learned.trees`).

    `predicted` holds, by name, the log seconds (N, 2, 5) of TTFT and TPOT at `TAUS` that were predicted at each
    decision: `PHYSICAL` by the estimate with its online correction; with a model also `MODEL` by the model alone, and
    `SERVED` by both with the weights and the calibration that are learned online. With trees it holds `FORESTS` (N, 2), the
    p90 by boosted trees with their online offset. It is empty without `judge`, a model or trees.
    """

    run: Run
    events: np.ndarray
    targets: np.ndarray
    seen: np.ndarray
    corrected: np.ndarray
    actual: np.ndarray
    longer_than: np.ndarray
    held: np.ndarray
    tree_rows: np.ndarray
    tree_bases: np.ndarray
    predicted: Mapping[str, np.ndarray]

    @property
    def residual(self) -> np.ndarray:
        """(N, 2): log of actual over corrected estimate."""
        residual: np.ndarray = self.actual - self.corrected
        return residual


class _Predictor(OnlinePredictor):
    """A predictor that gets the cached tokens of each request from the log, instead of guessing them from the prompt."""

    cached = 0.0

    def cached_tokens(self, request: Request, instance: str) -> float:
        return self.cached

    def predicted(
        self, prediction: OnlinePrediction, candidate: Candidate, instance: Instance
    ) -> dict[str, np.ndarray]:
        """By name, the log quantiles (2, TAUS) of TTFT and TPOT that were predicted."""
        known = prediction.estimate
        stats = self.stats.of(candidate, instance)
        windows = stats.ttft.windows[known.ttft_stratum], stats.tpot.windows[known.tpot_stratum]
        bases = np.log([[known.ttft_s], [known.tpot_s]])
        found = {PHYSICAL: bases + [window.quantiles(TAUS) for window in windows]}
        modelled = np.array([prediction.quantiles(time) for time in range(2)])
        if modelled.size:
            by_prediction = modelled.reshape(2, len(PREDICTIONS), len(TAUS)).transpose(1, 0, 2)
            found[SERVED], _, found[MODEL] = bases + by_prediction
        return found


def episodes(
    data: Dataset, model: LatencyModel | None = None, *, trees: TreeModel | None = None, judge: bool = False
) -> Iterator[Episode]:
    """One episode for each run that has attempts, in the data set's order. With `judge`, a model or trees, each has its
    `predicted`. Raises DatasetError for invalid times."""
    attempts, states = by_run(data.attempts), by_run(data.states)
    for run in data.runs:
        if attempts[run.id]:
            yield replay(run, attempts[run.id], states[run.id], model, trees=trees, judge=judge)


def replay(
    run: Run,
    attempts: Sequence[Attempt],
    states: Sequence[State],
    model: LatencyModel | None = None,
    *,
    trees: TreeModel | None = None,
    judge: bool = False,
) -> Episode:
    """Drive one run through an instance without any history."""
    for each in attempts:
        _check(each)
    ordered = sorted(attempts, key=lambda each: each.dispatched_s)
    models = Models(latency=model, trees=trees)
    return _Replay(run, ordered, models, judge or model is not None or trees is not None).play(states)


def _check(attempt: Attempt) -> None:
    start_s, first_s, end_s = attempt.dispatched_s, attempt.first_token_s, attempt.ended_s
    if first_s is not None and first_s <= start_s:
        raise DatasetError(
            f"run {attempt.run}: a first token that did not come after its dispatch ({start_s:.3f} s)"
        )
    if end_s is not None and end_s < (start_s if first_s is None else first_s):
        raise DatasetError(f"run {attempt.run}: an end before its first token or dispatch ({start_s:.3f} s)")


class _Replay:
    def __init__(self, run: Run, attempts: Sequence[Attempt], models: Models, judge: bool) -> None:
        self.run = run
        self.attempts = attempts
        self.predictor = _Predictor(models)
        self.judge = judge
        self.predicted: dict[str, list[Any]] = defaultdict(list)
        self.history = InstanceHistory(None)
        self.candidates = {
            model: Candidate(run.instance, model, model, family=run.family)
            for model in sorted({each.model for each in attempts})
        }
        profile = EngineProfile(**run.profile_values) if run.profile_values else None
        self.cluster = Instance(
            run.instance,
            run.kind,
            dict(self.candidates),
            hardware=run.hardware,
            speed=run.speed,
            profiles=dict.fromkeys(self.candidates, profile) if profile else {},
            fixed_slots=bool(run.fixed_slots),
        )
        self.sent: dict[int, SentAttempt] = {}
        self.predictions: dict[int, OnlinePrediction] = {}
        size = len(attempts)
        self.expected = [0] * size
        self.found = Episode(
            run,
            events=np.empty((0, len(EVENT_FEATURES)), np.float32),
            targets=np.empty((size, len(TARGET_FEATURES)), np.float32),
            seen=np.empty(size, np.int64),
            corrected=np.empty((size, 2)),
            actual=np.full((size, 2), np.nan),
            longer_than=np.full(size, -inf),
            held=np.empty(size),
            tree_rows=np.empty((size, len(TREE_FEATURES))),
            tree_bases=np.empty((size, 2)),
            predicted={},
        )

    def play(self, states: Sequence[State]) -> Episode:
        moments: list[tuple[float, int, int]] = [(each.at_s, _REPORT, at) for at, each in enumerate(states)]
        for at, each in enumerate(self.attempts):
            moments.append((each.dispatched_s, _DISPATCH, at))
            if each.first_token_s is not None:
                moments.append((each.first_token_s, _FIRST_TOKEN, at))
            # An attempt that failed at once ends at the moment of its dispatch, but after it.
            if each.ended_s is not None:
                moments.append((max(each.ended_s, nextafter(each.dispatched_s, inf)), _END, at))
        of_attempt = {_DISPATCH: self._dispatched, _FIRST_TOKEN: self._first_token, _END: self._ended}
        for now, what, at in sorted(moments):
            if what == _REPORT:
                self._reported(states[at], now)
            else:
                of_attempt[what](at, now)
        events = np.array(self.history.events, np.float32).reshape(-1, len(EVENT_FEATURES))
        predicted = {name: np.array(rows) for name, rows in self.predicted.items()}
        return replace(self.found, events=events, predicted=predicted)

    def _share(self) -> Instance:
        """What one member of the cluster holds, on average."""
        instance, replicas = self.cluster, self.run.replicas
        if replicas == 1:
            return instance
        # Fractions of requests are not whole numbers, which the arithmetic accepts.
        share: dict[str, Any] = {
            name: getattr(instance, name) / replicas
            for name in ("in_flight", "awaiting_first_token", "pending_prefill_tokens", "context_tokens")
        }
        return replace(instance, **share)

    def _dispatched(self, at: int, now: float) -> None:
        attempt, found = self.attempts[at], self.found
        candidate = self.candidates[attempt.model]
        request = Request(
            str(at),
            now,
            "",
            (attempt.model,),
            prompt_tokens=attempt.prompt_tokens,
            max_tokens=attempt.max_tokens,
            prefix=(at,) if attempt.cached_tokens else (),
        )
        instance = self._share()
        self.predictor.cached = float(attempt.cached_tokens or 0)
        prediction = self.predictor.predict(request, candidate, instance, now)
        assert isinstance(prediction, OnlinePrediction)  # noqa: S101 (that predictor makes no others)
        estimate = prediction.estimate
        self.predictions[at] = prediction
        self.expected[at] = int(prediction.output_tokens_p50 or 0.0)
        found.targets[at] = self.history.target(instance, estimate, now)
        found.held[at] = prediction.memory_ratio
        found.tree_rows[at], found.tree_bases[at] = tree_row(
            instance, self.predictor.stats.of(candidate, instance).costs, estimate
        )
        if self.judge:
            for name, row in self.predictor.predicted(prediction, candidate, instance).items():
                self.predicted[name].append(row)
            times = self.predictor.tree_times(request, [Option(candidate, instance, prediction)])
            if times is not None:
                self.predicted[FORESTS].append([log(time_s) for time_s in times[0]])
        found.seen[at] = len(self.history.events)
        found.corrected[at] = (
            log(estimate.ttft_s) + estimate.ttft_bias,
            log(estimate.tpot_s) + estimate.tpot_bias,
        )
        if attempt.first_token_s is not None:
            found.actual[at, 0] = log(attempt.first_token_s - now)
        elif attempt.ended_how != "ok" and attempt.ended_s is not None and attempt.ended_s > now:
            found.longer_than[at] = log(attempt.ended_s - now)
        if (tpot_s := _tpot_s(attempt)) is not None:
            found.actual[at, 1] = log(tpot_s)
        self.cluster.dispatched(attempt.prompt_tokens)
        instance = self._share()
        self.sent[at] = SentAttempt(request, candidate, instance, prediction)
        self.predictor.observe_dispatch(self.sent[at], now)
        self.history.waits(now)
        self.history.dispatched(instance, estimate, estimate.step_s, now)

    def _first_token(self, at: int, now: float) -> None:
        attempt, sent = self.attempts[at], self.sent[at]
        self.cluster.first_token(attempt.prompt_tokens, self.expected[at])
        waited_s = now - attempt.dispatched_s
        sent.instance = instance = self._share()
        self.predictor.observe_ttft(sent, waited_s, now)
        self.history.stops_waiting(attempt.dispatched_s)
        self.history.first_token(instance, self.predictions[at].estimate, waited_s, now)

    def _ended(self, at: int, now: float) -> None:
        attempt = self.attempts[at]
        decoding = attempt.first_token_s is not None
        self.cluster.released(attempt.prompt_tokens, self.expected[at], decoding)
        sent, prediction = self.sent[at], self.predictions[at]
        sent.instance = instance = self._share()
        tpot_s, tokens = _tpot_s(attempt), attempt.output_tokens or 0
        if attempt.ended_how != "ok":
            waited_s = now - attempt.dispatched_s
            self.predictor.observe_loss(sent, waited_s, decoding, tokens, tpot_s, now)
            self._lost(attempt, instance, decoding, now)
            return
        self.predictor.observe_end(sent, tokens, attempt.max_tokens, attempt.prompt_tokens, tpot_s, now)
        if decoding:
            self.history.ended(instance, prediction.estimate, tokens, tpot_s, now)
        else:  # an answer without a first token, which the predictor counts as lost too
            self._lost(attempt, instance, False, now)

    def _lost(self, attempt: Attempt, instance: Instance, decoding: bool, now: float) -> None:
        if not decoding:
            self.history.stops_waiting(attempt.dispatched_s)
        self.history.lost(instance, now - attempt.dispatched_s, decoding, now)

    def _reported(self, state: State, now: float) -> None:
        self.cluster.takes_report(
            LoadReport(running=state.running, waiting=state.waiting, kv_usage=state.kv_usage), now
        )
        instance = self._share()
        self.predictor.observe_report(instance, now)
        self.history.reported(instance, now)


def _tpot_s(attempt: Attempt) -> float | None:
    """Seconds for each token after the first, where the log shows it."""
    tokens, first_s, ended_s = attempt.output_tokens, attempt.first_token_s, attempt.ended_s
    if tokens is None or tokens < 2 or first_s is None or ended_s is None or ended_s <= first_s:
        return None
    if attempt.ended_how == "failed":  # the engine may have stopped long before
        return None
    return (ended_s - first_s) / (tokens - (1 if attempt.ended_how == "ok" else 0.5))
