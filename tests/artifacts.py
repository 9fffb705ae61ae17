"""Small artifacts whose answers a test can tell beforehand."""

from __future__ import annotations

from math import exp, log
from pathlib import Path

import numpy as np

from predictors.learned.artifact import Artifact, save
from predictors.learned.latency import LATENCY_FEATURES, SHAPES
from predictors.learned.relevance import RELEVANCE_FEATURES
from predictors.learned.text import COUNTS


def latency_artifact(ttft: float = 0.0, tpot: float = 0.0) -> Artifact:
    """Says that log residuals have these medians, whatever the load, with 0.1 to the next quantile each."""
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    for name in ("event_scale", "target_scale", "widths"):
        arrays[name] += 1.0
    step = log(exp(0.1) - 1.0)  # softplus of it is 0.1
    arrays["last_bias"][:] = [ttft, step, step, step, step, tpot, step, step, step, step]
    return Artifact("latency", LATENCY_FEATURES, arrays, {"data": [{"name": "made by a test", "rows": 0}]})


def relevance_artifact(model: str, quality: float) -> Artifact:
    """Says that `model` has this quality on any prompt."""
    inputs = 2 + len(COUNTS) + 1
    arrays = {
        "gram_ids": np.array([1]),
        "gram_idf": np.array([1.0], np.float32),
        "gram_table": np.array([[1, 0]], np.int8),
        "gram_step": np.array([1.0], np.float32),
        "lexicon": np.array([[0]], np.int8),
        "lexicon_step": np.array([1.0], np.float32),
        "unknown_idf": np.array(1.0, np.float32),
        "hidden": np.zeros((inputs, 1), np.float32),
        "hidden_bias": np.zeros(1, np.float32),
        "out": np.zeros((2, 1), np.float32),
        "out_bias": np.zeros(1, np.float32),
        "task_weights": np.zeros((inputs, 1), np.float32),
        "task_bias": np.zeros(1, np.float32),
        "task_departures": np.zeros((1, 1), np.float32),
        "centres": np.array([[1.0, 0.0]], np.float32),
        "centre_counts": np.array([[50.0]], np.float32),
        "centre_clusters": np.array([0]),
        "departures": np.zeros((1, 1), np.float32),
        "near": np.array([-2.0, -1.0], np.float32),  # any prompt is like those learned from
        "head_names": np.array([model]),
        "head_scale": np.array([0]),
        "head_rows": np.array([100]),
        "head_prior": np.array([log(quality / (1 - quality))], np.float32),
        "scale_names": np.array(["correct"]),
        "scale_shift": np.zeros(1, np.float32),
    }
    return Artifact("relevance", RELEVANCE_FEATURES, arrays, {"data": [{"name": "made by a test"}]})


def write(folder: Path, *artifacts: Artifact) -> Path:
    """The artifacts as a directory of them."""
    for artifact in artifacts:
        save(artifact, folder)
    return folder
