"""The p90 of TTFT and of TPOT from two forests of boosted trees, as in llm-d's predicted-latency scheduling.

The features are llm-d's (its latency predictor's training server): KV use, input length, requests waiting and running,
prefix match, tokens in flight of prefill and of decode, and input tokens outside the prefix match. llm-d has one kind of
hardware in a pool. Here the engine profile of each instance describes the hardware, so that one pair of forests serves a
mixed fleet. A forest predicts the logarithm of a time over what the profile alone gives:

    TTFT   over the prefill of this prompt and of the prompts ahead, on an otherwise idle engine
    TPOT   over one decode step of the batch with the request in it

llm-d retrains the forests now and then. Here they stay fixed, and `predictors.online.tree_times` corrects them online. Every
tree is padded to one depth, so that the children of node n are at 2n + 1 and 2n + 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, log1p

import numpy as np

from predictors.kernels.reference.estimates import Estimate
from predictors.kernels.step_costs import StepCosts
from predictors.learned.artifact import Artifact, ArtifactError, sizes
from router.core.state import Instance

TREE_FEATURES = (
    "kv_usage",  # share, as the engine reported it; 0 if it reports none
    "kv_reported",
    "kv_held",  # share of KV memory that this router's requests and this one hold
    "input_tokens",  # logs of 1 + count, here and below
    "new_tokens",  # outside what the prefix cache should hold
    "prefix_match",  # share of the prompt
    "waiting",  # as the engine reported it; 0 if it reports none
    "awaiting",  # this router's requests without a first token
    "running",  # at the engine, all of them
    "prefill_tokens_in_flight",
    "decode_tokens_in_flight",
    "output_tokens",  # usual length of the model's answers
    # the hardware, from the engine profile
    "lone_step",  # log seconds of a decode step for one, at real speed
    "lone_prefill",  # log seconds of this prompt's prefill on an idle engine, at real speed
    "backlog_by_prefill",  # log of (prefills ahead + own) / own
    "step_by_lone",  # log of the batch's decode step / that for one
    "seats_taken",  # sequences / most that one step takes
)
#: The quantile that is predicted.
TAU = 0.9


def tree_row(
    instance: Instance, costs: StepCosts, known: Estimate
) -> tuple[tuple[float, ...], tuple[float, float]]:
    """The row of `TREE_FEATURES` of a request that may join the instance now, and the logs of the seconds that the forests'
    outputs are relative to, of TTFT and TPOT. Of its estimate only the token counts are used."""
    profile, report, speed = costs.profile, instance.report, costs.speed
    running = instance.running
    prompt_tokens, pending_tokens = known.prompt_tokens, known.pending_tokens
    context_tokens = max(instance.context_tokens, 0)
    capacity_tokens = costs.kv_capacity_tokens
    lone_s = profile.step_s(0, 1, 0.0)
    prefill_s = profile.prefill_s(int(prompt_tokens), int(known.cached_tokens))
    backlog_s = prefill_s
    if pending_tokens >= 1.0:
        # Each prompt ahead costs attention over itself, not over the others.
        ahead = max(instance.awaiting_first_token, 1)
        backlog_s += ahead * profile.prefill_s(max(1, int(pending_tokens / ahead)))
    batch = min(running + 1, costs.seats)
    step_s = profile.step_s(0, batch, min(context_tokens + prompt_tokens, capacity_tokens))
    return (
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
        (log(backlog_s / speed), log(step_s / speed)),
    )


class TreeModel:
    """Both forests, evaluated together. The arrays for T trees (those of TTFT first) of depth D: `feature` and
    `threshold` (T, 2^D - 1), `value` (T, 2^D), `base` (2,), and `ttft_trees` (), the number of trees of TTFT."""

    features = TREE_FEATURES

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        trees, nodes = arrays["feature"].shape
        self._depth = (nodes + 1).bit_length() - 1
        self._feature = arrays["feature"].astype(np.intp).ravel()
        self._threshold = arrays["threshold"].astype(np.float64).ravel()
        self._value = arrays["value"].astype(np.float64).ravel()
        self._base = arrays["base"].astype(np.float64)
        self._ttft_trees = int(arrays["ttft_trees"])
        self._first_node = (np.arange(trees) * nodes)[:, None]
        self._first_leaf = (np.arange(trees) * (nodes + 1) - nodes)[:, None]

    @classmethod
    def load(cls, artifact: Artifact) -> TreeModel:
        """Raises ArtifactError for arrays that do not fit."""
        arrays = artifact.arrays
        found = sizes(
            artifact,
            {
                "feature": ("iu", "TN"),
                "threshold": ("f", "TN"),
                "value": ("f", "TL"),
                "base": ("f", (2,)),
                "ttft_trees": ("iu", ()),
            },
        )
        feature, leaves = arrays["feature"], found["L"]
        if (
            leaves != found["N"] + 1
            or leaves & (leaves - 1)
            or not 0 < arrays["ttft_trees"] < found["T"]
            or not 0 <= feature.min() <= feature.max() < len(TREE_FEATURES)
        ):
            raise ArtifactError("a trees artifact whose arrays are not two forests")
        return cls(arrays)

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
