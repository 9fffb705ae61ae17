"""Training of the forests: rows from the replay of runs, thinned by load as llm-d does, and boosted trees at p90.

llm-d keeps its samples in buckets (requests waiting x KV use x prefix match), each bounded, so that the usual load does
not drown the rare one (llm-d-latency-predictor, training server: 5 x 20 x 4 buckets of 500). The same buckets are used
here, filled by a seeded draw. HistGradientBoostingRegressor gets llm-d's XGBoost settings (200 trees of depth 6, rate
0.05).

Runs without an engine profile are left out: their times would be relative to a foreign profile, which the online offset
learns in serving. A request that was given up before its first token counts with the time that it waited.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from predictors.learned.artifact import Artifact
from predictors.learned.trees import TAU, TREE_FEATURES
from predictors.training.dataset import Dataset, DatasetError, Progress
from predictors.training.replay import Episode, episodes

_QUEUE_CLASSES = (0, 2, 5, 10)
_KV_CLASSES, _PREFIX_CLASSES = 20, 4
_LEAST_ROWS = 256
#: A log time further from its base than this is an outage, not a load.
_MOST_LOG = 8.0
#: No row is beyond it: padding of trees goes left.
_BEYOND = np.finfo(np.float64).max


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of either forest; `per_bucket` is the most rows of a bucket of load."""

    trees: int = 200
    depth: int = 6
    rate: float = 0.05
    leaves: int = 48
    least_leaf: int = 20
    per_bucket: int = 2000


@dataclass(frozen=True, slots=True)
class TreeRows:
    """N requests: `features` (N, TREE_FEATURES), `actual` (N, 2) logs of TTFT and TPOT over their bases, NaN where
    unknown, and the `source` of each."""

    features: np.ndarray
    actual: np.ndarray
    source: np.ndarray


def train(
    data: Dataset, *, seed: int = 1, settings: Settings | None = None, progress: Progress = lambda _: None
) -> Artifact:
    """The same data, seed and settings give the same artifact. Raises DatasetError for too few times."""
    settings = settings or Settings()
    progress("replay")
    rows = rows_of(list(episodes(data)))
    chosen = by_load(rows.features, settings.per_bucket, seed)
    progress(f"trees: {len(chosen):,} of {len(rows.features):,} requests")
    forests = []
    # More threads than idle cores wait for each other for minutes, and sums depend on their number.
    with threadpool_limits(limits=1):
        for time in range(2):
            known = chosen[np.isfinite(rows.actual[chosen, time])]
            if len(known) < _LEAST_ROWS:
                raise DatasetError(f"{len(known)} requests with a time of each kind are too few for trees")
            forests.append(fit(rows, known, time, settings, seed))
    about = {
        "settings": {**asdict(settings), "seed": seed},
        "requests": dict(sorted(Counter(rows.source[chosen].tolist()).items())),
    }
    return Artifact("trees", TREE_FEATURES, arrays_of(forests, settings.depth), about)


def rows_of(found: Sequence[Episode]) -> TreeRows:
    """Rows of all runs that have a profile. Raises DatasetError if there is none."""
    kept = [each for each in found if each.run.profile_values]
    if not kept:
        raise DatasetError("no run with an engine profile: trees cannot be learned from these data")
    actual = np.concatenate([each.actual for each in kept])
    longer = np.concatenate([each.longer_than for each in kept])
    actual[:, 0] = np.where(np.isnan(actual[:, 0]) & np.isfinite(longer), longer, actual[:, 0])
    actual -= np.concatenate([each.tree_bases for each in kept])
    return TreeRows(
        np.concatenate([each.tree_rows for each in kept]),
        np.clip(actual, -_MOST_LOG, _MOST_LOG),
        np.concatenate([np.repeat(each.run.source, len(each.actual)) for each in kept]),
    )


def by_load(features: np.ndarray, per_bucket: int, seed: int) -> np.ndarray:
    """The positions, in order, of at most `per_bucket` rows of each bucket, drawn at random."""
    of = dict(zip(TREE_FEATURES, features.T, strict=True))
    waiting = np.maximum(of["waiting"], of["awaiting"])
    queue = np.searchsorted(_QUEUE_CLASSES, np.rint(np.expm1(waiting)), side="left")
    kv_usage = np.where(of["kv_reported"] > 0.0, of["kv_usage"], of["kv_held"])
    kv = np.clip(kv_usage * _KV_CLASSES, 0, _KV_CLASSES - 1).astype(int)
    match = np.clip(of["prefix_match"] * _PREFIX_CLASSES, 0, _PREFIX_CLASSES - 1).astype(int)
    buckets: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for at, bucket in enumerate(zip(queue.tolist(), kv.tolist(), match.tolist(), strict=True)):
        buckets[bucket].append(at)
    draw = np.random.default_rng(seed)
    kept = [
        places if len(places) <= per_bucket else draw.choice(places, per_bucket, replace=False)
        for _, places in sorted(buckets.items())
    ]
    return np.sort(np.concatenate(kept).astype(np.intp))


def fit(
    rows: TreeRows, known: np.ndarray, time: int, settings: Settings, seed: int
) -> HistGradientBoostingRegressor:
    """The forest of TTFT (`time` 0) or TPOT (1) on the `known` rows. A source weighs as the square root of its rows, as
    for the latency model."""
    _, of, counts = np.unique(rows.source[known], return_inverse=True, return_counts=True)
    return HistGradientBoostingRegressor(
        loss="quantile",
        quantile=TAU,
        max_iter=settings.trees,
        max_depth=settings.depth,
        max_leaf_nodes=settings.leaves,
        learning_rate=settings.rate,
        min_samples_leaf=settings.least_leaf,
        early_stopping=False,
        random_state=seed,
    ).fit(rows.features[known], rows.actual[known, time], counts[of] ** -0.5)


def arrays_of(forests: Sequence[HistGradientBoostingRegressor], depth: int) -> dict[str, np.ndarray]:
    """The arrays of `predictors.learned.trees.TreeModel`, from a forest of TTFT and one of TPOT."""
    trees = [iteration[0].nodes for forest in forests for iteration in forest._predictors]
    features, thresholds, values = zip(*(_padded(nodes, depth) for nodes in trees), strict=True)
    return {
        "feature": np.stack(features).astype(np.uint8),
        "threshold": np.stack(thresholds),
        "value": np.stack(values).astype(np.float32),
        "base": np.array([float(np.ravel(each._baseline_prediction)[0]) for each in forests]),
        "ttft_trees": np.array(len(forests[0]._predictors)),
    }


def _padded(nodes: Any, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One tree of scikit-learn's as a full one: below a leaf every row goes left, to that leaf's value."""
    size = 2**depth - 1
    feature, threshold = np.zeros(size, int), np.full(size, _BEYOND)
    value = np.zeros(size + 1)

    def place(node: int, at: int) -> None:
        one = nodes[node]
        if one["is_leaf"]:
            while at < size:
                at = 2 * at + 1
            value[at - size] = one["value"]
            return
        feature[at], threshold[at] = one["feature_idx"], one["num_threshold"]
        place(one["left"], 2 * at + 1)
        place(one["right"], 2 * at + 2)

    place(0, 0)
    return feature, threshold, value
