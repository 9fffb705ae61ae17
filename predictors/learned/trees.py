"""p90 of TTFT and of TPOT from two forests of boosted trees, as llm-d's predicted-latency scheduling has them.

Features are llm-d's (its latency predictor's training server): KV use, input length, requests waiting and running,
prefix match, tokens in flight of prefill and of decode, and input less its prefix match. llm-d has one kind of
hardware a pool; here each instance's engine profile tells the hardware, so that one pair of forests serves a mixed
fleet. A forest foretells the logarithm of a time over what the profile alone makes of it:

    TTFT   over the prefill of this prompt and of those ahead, on an engine that does nothing else
    TPOT   over one decode step of the batch with the request in it

llm-d retrains every so often on what it has just seen. Trees stay as they are here, and the 90 % quantile of
their log errors, of each (model, hardware) and apart for an empty and for a full queue, is learned online and
added (`TreeOffset`): that takes up an engine that is not as its profile says, and drift.

Evaluation is plain NumPy: every tree is padded to one depth, so that a node's children are at 2n + 1 and 2n + 2, and
all trees take all rows one level down at a time. Training: `predictors.training.trees`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Container, Sequence
from math import exp, log, log1p
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from predictors.analytic.physical import StepCosts, is_unloaded
from predictors.learned.artifact import Artifact, ArtifactError
from predictors.learned.latency.features import Estimate
from predictors.online.pair import Pair
from predictors.online.prediction import PhysicalPrediction
from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, Request

TREE_FEATURES = (
    "kv_usage",  # share, as the engine reported it; 0 where it does not
    "kv_reported",
    "kv_held",  # share of KV memory that our own requests and this one hold
    "input_tokens",  # logs of 1 + count, here and below
    "new_tokens",  # without what the prefix cache should hold
    "prefix_match",  # share of the prompt
    "waiting",  # as the engine reported it; 0 where it does not
    "awaiting",  # our own without a first token
    "running",  # at the engine, all of them
    "prefill_tokens_in_flight",
    "decode_tokens_in_flight",
    "output_tokens",  # usual length of the model's answers
    # what tells the hardware, from the engine profile
    "lone_step",  # log seconds of a decode step for one, at real speed
    "lone_prefill",  # log seconds of this prompt's prefill on an idle engine, at real speed
    "backlog_by_prefill",  # log of (prefills ahead + own) / own
    "step_by_lone",  # log of the batch's decode step / that for one
    "seats_taken",  # sequences / most that one step takes
)
#: The quantile that is foretold.
TAU = 0.9
#: A log offset beyond this is no engine's speed any more.
_MOST_LOG = 20.0


class TreeRow(NamedTuple):
    """One row of `TREE_FEATURES`, and the logs of the seconds that the forests' answers are relative to."""

    features: tuple[float, ...]
    ttft_base: float
    tpot_base: float


class TreeForecast(NamedTuple):
    """What was foretold at a decision: log p90 seconds by the forests alone, and the offsets that learn from it."""

    ttft: float
    tpot: float
    group: TreeGroup
    queued: bool


def tree_row(instance: Instance, costs: StepCosts, known: Estimate) -> TreeRow:
    """A request with this estimate (its token counts are used, not its times) that may join the instance now."""
    profile, report, speed = costs.profile, instance.report, costs.speed
    running = instance.running
    prompt_tokens, pending_tokens = known.prompt_tokens, known.pending_tokens
    context_tokens = max(instance.context_tokens, 0)
    capacity_tokens = costs.kv_capacity_tokens
    lone_s = profile.step_s(0, 1, 0.0)
    prefill_s = profile.prefill_s(int(prompt_tokens), int(known.cached_tokens))
    backlog_s = prefill_s
    if pending_tokens >= 1.0:
        # Prompts ahead cost attention over themselves, not over each other.
        ahead = max(instance.awaiting_first_token, 1)
        backlog_s += ahead * profile.prefill_s(max(1, int(pending_tokens / ahead)))
    batch = min(running + 1, costs.seats)
    step_s = profile.step_s(0, batch, min(context_tokens + prompt_tokens, capacity_tokens))
    return TreeRow(
        (
            report.kv_usage or 0.0,
            0.0 if report.kv_usage is None else 1.0,
            (context_tokens + pending_tokens + prompt_tokens) / capacity_tokens,
            log1p(prompt_tokens),
            log1p(max(prompt_tokens - known.cached_tokens, 0.0)),
            known.cached_tokens / (prompt_tokens + 1.0),
            0.0 if report.waiting is None else log1p(report.waiting),
            log1p(instance.awaiting_first_token),
            log1p(running),
            log1p(pending_tokens),
            log1p(context_tokens),
            log1p(known.output_tokens),
            log(lone_s),
            log(prefill_s),
            log(backlog_s / prefill_s),
            log(step_s / lone_s),
            (running + 1) / costs.seats,
        ),
        log(backlog_s / speed),
        log(step_s / speed),
    )


class TreeModel:
    """Both forests, evaluated together. Arrays, with T trees (those of TTFT first) of depth D: `feature` and
    `threshold` (T, 2^D - 1), `value` (T, 2^D), `base` (2,), `ttft_trees` () how many are TTFT's."""

    def __init__(
        self,
        feature: np.ndarray,
        threshold: np.ndarray,
        value: np.ndarray,
        base: np.ndarray,
        ttft_trees: int,
    ) -> None:
        trees, nodes = feature.shape
        self._depth = (nodes + 1).bit_length() - 1
        if (
            nodes + 1 != 2**self._depth
            or threshold.shape != (trees, nodes)
            or value.shape != (trees, nodes + 1)
            or base.shape != (2,)
            or not 0 < ttft_trees < trees
            or feature.min() < 0
            or feature.max() >= len(TREE_FEATURES)
        ):
            raise ArtifactError("its arrays are no two forests")
        self._feature = feature.astype(np.intp).ravel()
        self._threshold = threshold.astype(np.float64).ravel()
        self._value = value.astype(np.float64).ravel()
        self._base = base.astype(np.float64)
        self._ttft_trees = ttft_trees
        self._first_node = (np.arange(trees) * nodes)[:, None]
        self._first_leaf = (np.arange(trees) * (nodes + 1) - nodes)[:, None]

    @classmethod
    def load(cls, artifact: Artifact) -> TreeModel:
        """Raises ArtifactError for an artifact of other features or with arrays that do not fit."""
        if artifact.features != TREE_FEATURES:
            raise ArtifactError("made with other features than this version has: train it anew")
        arrays = artifact.arrays
        return cls(
            arrays["feature"],
            arrays["threshold"],
            arrays["value"],
            arrays["base"],
            int(arrays["ttft_trees"]),
        )

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """(N, 2) log p90 of TTFT and TPOT over their bases, for (N, features) rows."""
        size, width = rows.shape
        flat = rows.astype(np.float64).ravel()
        first_value = np.arange(size) * width
        node = np.zeros((len(self._first_node), size), np.intp)
        for _ in range(self._depth):
            at = self._first_node + node
            right = flat[self._feature[at] + first_value] > self._threshold[at]
            node += node
            node += 1
            node += right
        values = self._value[self._first_leaf + node]
        split = self._ttft_trees
        found: np.ndarray = np.stack([values[:split].sum(0), values[split:].sum(0)], axis=1) + self._base
        return found


class TreeOffset:
    """The 90 % quantile of the last log errors (actual over foretold). Until there are errors, pseudo-errors stand
    for them whose quantile is 0; every observation takes the place of one."""

    __slots__ = ("_pseudo", "_recent", "_sorted", "value")

    WINDOW = 128
    #: Of the pseudo-errors: how many, and their log standard deviation. A choice.
    _PRIOR, _PRIOR_SD = 8, 0.2

    def __init__(self) -> None:
        normal = NormalDist(-NormalDist().inv_cdf(TAU) * self._PRIOR_SD, self._PRIOR_SD)
        self._pseudo = [normal.inv_cdf((at + 0.5) / self._PRIOR) for at in (3, 4, 2, 5, 1, 6, 0, 7)]
        self._sorted = sorted(self._pseudo)
        self._recent: deque[float] = deque()
        self.value = 0.0

    @property
    def count(self) -> int:
        """Errors seen, as far as the window reaches."""
        return len(self._recent)

    def observe(self, error: float) -> None:
        """Learn one ln(actual / foretold by the forest alone)."""
        error = min(max(error, -_MOST_LOG), _MOST_LOG)
        ordered = self._sorted
        self._recent.append(error)
        insort(ordered, error)
        if self._pseudo:
            ordered.remove(self._pseudo.pop(0))
        elif len(self._recent) > self.WINDOW:
            del ordered[bisect_left(ordered, self._recent.popleft())]
        # With the (n + 1) of conformal prediction; beyond the greatest there is nothing.
        at = TAU * (len(ordered) + 1) - 1
        low = min(int(at), len(ordered) - 2)
        self.value = ordered[low] + min(at - low, 1.0) * (ordered[low + 1] - ordered[low])


class TreeGroup:
    """Offsets of one (model, hardware): of TTFT and TPOT with nothing waiting, with a queue, and of all."""

    __slots__ = ("_all", "_by_queue")

    #: Errors from which on a queue's own offset is believed.
    _LEAST = 16

    def __init__(self) -> None:
        self._all = TreeOffset(), TreeOffset()
        self._by_queue = (TreeOffset(), TreeOffset()), (TreeOffset(), TreeOffset())

    def value(self, time: int, queued: bool) -> float:
        """What to add to a log p90 of TTFT (`time` 0) or TPOT (1)."""
        own = self._by_queue[queued][time]
        return own.value if own.count >= self._LEAST else self._all[time].value

    def observe(self, time: int, queued: bool, error: float) -> None:
        self._by_queue[queued][time].observe(error)
        self._all[time].observe(error)


class TreeTimes:
    """What serves `predicted_latency`: the forests, and the offsets of each (model, hardware)."""

    def __init__(self, model: TreeModel | None) -> None:
        self.model = model
        self._groups: dict[tuple[str, str], TreeGroup] = {}

    def times(
        self,
        request: Request,
        options: Sequence[Option],
        pair_of: Callable[[Candidate, Instance], Pair],
    ) -> list[tuple[float, float]] | None:
        """By option p90 of TTFT from the request's arrival and of TPOT, in seconds; None without the forests, and for
        options without predictions by the serving predictor. Each prediction is given what its outcome will be
        learned from."""
        model = self.model
        predictions = [
            option.prediction for option in options if isinstance(option.prediction, PhysicalPrediction)
        ]
        if model is None or len(predictions) < len(options):
            return None
        pairs = [pair_of(option.candidate, option.instance) for option in options]
        rows = [
            tree_row(option.instance, pair.costs, prediction.estimate)
            for option, pair, prediction in zip(options, pairs, predictions, strict=True)
        ]
        told = model.predict(np.array([row.features for row in rows]))
        logs = told + np.array([(row.ttft_base, row.tpot_base) for row in rows])
        found = []
        for option, prediction, pair, (ttft, tpot) in zip(
            options, predictions, pairs, logs.tolist(), strict=True
        ):
            instance = option.instance
            group = self.group(pair.group_name)
            queued = instance.awaiting_first_token > 0
            ttft_s = exp(ttft + group.value(0, queued))
            if is_unloaded(instance, option.candidate.upstream_model):
                # Forests have not seen models being loaded, and this TTFT tells nothing of other ones.
                ttft_s += pair.costs.load_s
            else:
                prediction.trees = TreeForecast(ttft, tpot, group, queued)
            waited_s = max(prediction.made_at - request.arrived_at, 0.0)
            found.append((waited_s + ttft_s, exp(tpot + group.value(1, queued))))
        return found

    def group(self, name: tuple[str, str]) -> TreeGroup:
        """The offsets of a (model, hardware)."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = TreeGroup()
        return group

    def keep(self, used: Container[tuple[str, str]]) -> None:
        """Forget what was learned of every other (model, hardware)."""
        self._groups = {name: group for name, group in self._groups.items() if name in used}


def learn_ttft(forecast: TreeForecast | None, engine_ttft_s: float) -> float | None:
    """The first token came so many seconds after the dispatch that this was foretold for. The error that was learned,
    here and below; None if there was nothing to learn."""
    if forecast is None or engine_ttft_s <= 0.0:
        return None
    return _learn(forecast, 0, log(engine_ttft_s) - forecast.ttft)


def learn_tpot(forecast: TreeForecast | None, tpot_s: float | None) -> float | None:
    """A whole answer took so many seconds a token."""
    if forecast is None or tpot_s is None or tpot_s <= 0.0:
        return None
    return _learn(forecast, 1, log(tpot_s) - forecast.tpot)


def learn_no_ttft(forecast: TreeForecast | None, waited_s: float) -> float | None:
    """No first token came in so many seconds: that tells something where it was foretold sooner."""
    if forecast is None or waited_s <= 0.0 or (error := log(waited_s) - forecast.ttft) <= 0.0:
        return None
    return _learn(forecast, 0, error)


def _learn(forecast: TreeForecast, time: int, error: float) -> float:
    forecast.group.observe(time, forecast.queued, error)
    return error
