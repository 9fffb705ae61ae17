"""Latency predictors that an experiment fits: the LSTM and boosted trees, to some runs or without some features.

Both give the quantiles at `TAUS` of the log error of the corrected physical estimate, from the same rows. Each is called with
a run, or serves in the place of the trained latency model (`model`). They are made of arrays, so they can be sent to other
processes. The trees read the features of a request, lags included, but no events.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from benchmarks.evaluate.latency_baselines import MOST_RESIDUAL, grown
from predictors.kernels.levels import TAUS
from predictors.learned.latency import EVENT_FEATURES, LATENCY_FEATURES, TARGET_FEATURES, LatencyModel
from predictors.learned.models import load_models
from predictors.learned.trees import TreeModel
from predictors.training.latency import arrays_of
from predictors.training.latency_fit import Settings, fit
from predictors.training.replay import Episode
from predictors.training.trees import arrays_of as arrays_of_trees

Arrays = Mapping[str, np.ndarray]
_TREES, _DEPTH = 60, 4


def _features(*patterns: str) -> frozenset[str]:
    """Those of events and of requests whose names fit."""
    return frozenset(
        name
        for name in LATENCY_FEATURES
        if any(fnmatchcase(name.removeprefix("event."), pattern) for pattern in patterns)
    )


#: Features that are left out together, by what they are. The trees have none of events.
FEATURES: Mapping[str, frozenset[str]] = {
    "events (the LSTM itself)": frozenset(EVENT_FEATURES),
    "errors so far": _features("*error*", "*_bias"),
    "times of the last answers": _features(
        "t*_seen", "t*_last", "t*_median", "t*_low", "t*_high", "ttft_other"
    )
    - _features("*error*"),
    "requests in flight": _features(
        *("in_flight", "awaiting", "pending_*", "context_tokens", "oldest_*", "middle_age", "wait_by_*"),
        *("queue_ahead", "seats_taken"),
    ),
    "reports of the engine": _features("running", "waiting", "kv_usage", "report*"),
}


@dataclass(frozen=True)
class LatencyFit:
    """A fitted predictor: the LSTM with these arrays, or two forests (TTFT and TPOT) for each of `TAUS`."""

    lstm: Arrays | None = None
    forests: Sequence[Arrays] = ()

    def __call__(self, episode: Episode) -> np.ndarray:
        return predicted_by(self.model(), episode)

    def model(self) -> LatencyModel:
        """What serves as the trained latency model (`predictors.learned.models.Models.latency`)."""
        if self.lstm is not None:
            return LatencyModel(dict(self.lstm))
        return _TreeQuantiles(self.forests)  # type: ignore[return-value]


def predicted_by(model: LatencyModel, episode: Episode) -> np.ndarray:
    """(N, 2, 5): log seconds of TTFT and TPOT at `TAUS`, of the requests of a run, by the latency model alone, as it serves."""
    state = model.start()
    states = [state.copy()]
    for row in episode.events.tolist():
        model.step(tuple(row), state)
        states.append(state.copy())
    raw = model.quantiles([states[seen] for seen in episode.seen], episode.targets.astype(np.float64))
    return np.asarray(episode.corrected[:, :, None] + raw)


class _TreeQuantiles:
    """Forests in the place of a `LatencyModel`. The states of instances are kept as usual, and not read."""

    def __init__(self, forests: Sequence[Arrays]) -> None:
        latency = load_models().latency
        assert latency is not None  # noqa: S101 (it comes with Headway)
        self.network, self.head = latency.network, self
        self.start, self.step = latency.start, latency.step
        self._forests = [TreeModel(each) for each in forests]

    def quantiles(self, states: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
        found = np.stack([each.predict(rows) for each in self._forests], axis=2)
        return np.sort(found, axis=2).astype(np.float32)


def fit_lstm(found: Sequence[Episode], seed: int, *, left_out: Collection[str] = ()) -> LatencyFit:
    """The LSTM, with the usual settings, fitted to runs without the features `left_out`."""
    runs = [_without(each, left_out) for each in found]
    network, scales = fit(runs, Settings(), seed, lambda _: None)
    arrays = {**arrays_of(network, scales), "widths": np.ones((2, len(TAUS)), np.float32)}
    # What was 0 in training must have no effect when it serves.
    arrays["lstm"][_places(EVENT_FEATURES, left_out)] = 0.0
    for name in ("join_target", "skip"):
        arrays[name] = arrays[name].copy()
        arrays[name][_places(TARGET_FEATURES, left_out)] = 0.0
    if set(EVENT_FEATURES) <= set(left_out):
        arrays["join_encoding"] = np.zeros_like(arrays["join_encoding"])
    return LatencyFit(arrays)


def fit_trees(found: Sequence[Episode], seed: int, *, left_out: Collection[str] = ()) -> LatencyFit:
    """Boosted trees, fitted to runs without the features `left_out`. All requests weigh the same."""
    runs = [_without(each, left_out) for each in found]
    rows = np.concatenate([each.targets for each in runs]).astype(np.float64)
    residual = np.clip(np.concatenate([each.residual for each in runs]), -MOST_RESIDUAL, MOST_RESIDUAL)
    settings = {"max_iter": _TREES, "learning_rate": 0.1, "max_depth": _DEPTH, "early_stopping": False}
    forests = []
    for tau in TAUS:
        of_times = [
            grown(seed, (rows[known], residual[known, time]), loss="quantile", quantile=tau, **settings)
            for time in range(2)
            for known in [np.flatnonzero(np.isfinite(residual[:, time]))]
        ]
        forests.append(arrays_of_trees(of_times, _DEPTH))
    return LatencyFit(forests=forests)  # none splits by what was always 0


def _places(names: Sequence[str], wanted: Collection[str]) -> list[int]:
    return [at for at, name in enumerate(names) if name in wanted]


def _without(episode: Episode, left_out: Collection[str]) -> Episode:
    """The run with these features 0; without all those of events, it has no events before any request."""
    events, targets = episode.events.copy(), episode.targets.copy()
    events[:, _places(EVENT_FEATURES, left_out)] = 0.0
    targets[:, _places(TARGET_FEATURES, left_out)] = 0.0
    seen = np.zeros_like(episode.seen) if set(EVENT_FEATURES) <= set(left_out) else episode.seen
    return replace(episode, events=events, targets=targets, seen=seen)
