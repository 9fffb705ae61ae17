"""Training of the latency model: replay, normalise, fit LSTM and head by gradient descent, export.

There are two stages. The first fits everything, by truncated backpropagation along the events of many runs at once. The
second fits the head alone on all requests in random order: neighbours in a run are alike, so the batches of the first
stage are poor, and the head has most of the weights. Before that, both stages run without every fourth load level. The
quantiles are too narrow there, and the model's `widths` compensate for half of it.

The loss is the pinball loss of the log residual at `TAUS`, of TTFT and TPOT together. A request that never had a first
token is right-censored: only a quantile below the time that it waited is wrong. Every source weighs as the square root
of its requests, so that a small log of a real engine counts beside a large emulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from predictors.kernels.levels import P50, TAUS
from predictors.learned.artifact import Artifact
from predictors.learned.latency import LATENCY_FEATURES
from predictors.training.dataset import Dataset, DatasetError, Progress
from predictors.training.latency_fit import Network, Settings, fit, predict, requests_by_source
from predictors.training.replay import Episode, episodes

_LEAST_REQUESTS = 64


def train(
    data: Dataset, *, seed: int = 1, settings: Settings | None = None, progress: Progress = lambda _: None
) -> Artifact:
    """The same data, seed and settings give the same artifact. Raises DatasetError for data with too few requests or
    first tokens, with one TTFT throughout, or with invalid times."""
    settings = settings or Settings()
    progress("replay")
    found = list(episodes(data))
    _check(found)
    widths = _widths(found, settings, seed, progress)
    network, scales = fit(found, settings, seed, progress)
    about = {
        "settings": {**asdict(settings), "seed": seed},
        "requests": dict(sorted(requests_by_source(found).items())),
        "runs": len(found),
    }
    return Artifact("latency", LATENCY_FEATURES, {**arrays_of(network, scales), "widths": widths}, about)


def _check(found: Sequence[Episode]) -> None:
    requests = sum(len(each.targets) for each in found)
    if requests < _LEAST_REQUESTS:
        raise DatasetError(f"{requests} attempts: latency needs at least {_LEAST_REQUESTS} of them")
    known = np.concatenate([each.actual[:, 0] for each in found])
    known = known[~np.isnan(known)]
    if len(known) < _LEAST_REQUESTS:
        raise DatasetError(
            f"{len(known)} of {requests} attempts have a first token: latency needs at least {_LEAST_REQUESTS}"
        )
    if np.ptp(known) < 1e-9:
        raise DatasetError(
            f"every first token came after {math.exp(known[0]):.3g} s: nothing to learn from that"
        )


def _widths(found: Sequence[Episode], settings: Settings, seed: int, report: Progress) -> np.ndarray:
    """(2, 5) factors of the quantiles' distances from the median, at least 1. They are half way (in logarithms) to the
    factors with which the quantiles hold on load levels that were left out: every fourth of each source, all sources
    weighing the same. Half way, since a network that has seen all levels is nearer to what it will serve."""
    levels: dict[str, list[str]] = {}
    for source in sorted({each.run.source for each in found}):
        of_source = {each.run.level or "" for each in found if each.run.source == source}
        levels[source] = sorted(of_source, key=lambda level: (len(level.partition(".")[0]), level))[1::4]
    out = [each for each in found if (each.run.level or "") in levels[each.run.source]]
    rest = [each for each in found if (each.run.level or "") not in levels[each.run.source]]
    widths = np.ones((2, len(TAUS)), np.float32)
    if sum(len(each.targets) for each in out) < _LEAST_REQUESTS or not rest:
        return widths
    network, scales = fit(rest, settings, seed, lambda line: report(f"without every fourth level: {line}"))
    predicted = np.concatenate([predict(network, scales, each) for each in out])
    residual = np.concatenate([each.residual for each in out])
    sources = np.concatenate([np.repeat(each.run.source, len(each.targets)) for each in out])
    for time in range(2):
        known = np.isfinite(residual[:, time])
        if known.sum() < _LEAST_REQUESTS:
            continue
        _, of, counts = np.unique(sources[known], return_inverse=True, return_counts=True)
        for at, tau in enumerate(TAUS):
            by = predicted[known, time, at] - predicted[known, time, P50]
            if at != P50:
                ratio = (residual[known, time] - predicted[known, time, P50]) / by
                share = tau if at > P50 else 1.0 - tau
                fitting = np.quantile(ratio, share, weights=1.0 / counts[of], method="inverted_cdf")
                widths[time, at] = math.sqrt(max(1.0, fitting))
        widths[time, P50 + 1 :] = np.maximum.accumulate(widths[time, P50 + 1 :])
    return widths


def arrays_of(network: Network, scales: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The network's weights and scales by the names of `predictors.learned.latency.SHAPES`, all but `widths`."""
    state = {name: value.detach().numpy().astype(np.float32) for name, value in network.state_dict().items()}
    return {
        **scales,
        "lstm": np.concatenate([state["lstm.weight_ih_l0"].T, state["lstm.weight_hh_l0"].T]),
        "lstm_bias": state["lstm.bias_ih_l0"] + state["lstm.bias_hh_l0"],
        "join_encoding": state["join_encoding.weight"].T,
        "join_bias": state["join_encoding.bias"],
        "join_target": state["join_target.weight"].T,
        "middle": state["middle.weight"].T,
        "middle_bias": state["middle.bias"],
        "last": state["last.weight"].T,
        "last_bias": state["last.bias"],
        "skip": state["skip.weight"].T,
    }
