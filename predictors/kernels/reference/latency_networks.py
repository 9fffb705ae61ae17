"""The networks that predict from the state of an instance: the latency model's and the memory model's.

    state <- LSTM(state, event row)                       once an event
    encoding = state's share of the head's first layer    once an event
    quantiles = head(encoding, target row)                for each candidate of each request
    memory ratio = sigmoid(logit(closed form) + correction(target row))

The outputs of the head are quantiles of the log residual ln(actual / corrected estimate), of TTFT and of TPOT. They never
cross: the median is one output, and each further quantile is a positive step away from the one before. `widths` stretch
their distances from the median, since on runs outside its training data a network is less sure than it claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

#: Normalised features are cut at this many standard deviations, so that an unseen input stays bounded.
CLIP = 4.0
#: Memory ratios nearer than this to 0 and 1 are not distinguished.
LEAST_RATIO = 0.005
#: Two moments closer than this are the same moment: their difference is rounding.
LEAST_GAP_S = 1e-6
#: The numbers of a request that may join an instance.
TARGETS = 47


def target_rows(
    summaries: Sequence[tuple[float, ...]], estimates: Sequence[tuple[float, ...]], now: float
) -> np.ndarray:
    """(N, TARGETS): a row of `predictors.learned.latency.TARGET_FEATURES` for each of N instances that a request
    may join, from the summary of its history (`predictors.kernels.reference.histories.InstanceHistory.summary`) and the
    request's estimate there (`predictors.kernels.reference.estimates.Estimate`)."""
    if len(summaries) != len(estimates):
        raise ValueError("as many summaries as estimates")
    if not estimates:
        return np.empty((0, TARGETS))
    seen = np.array(summaries).T
    moments, weights, ahead, counters = seen[:8], seen[8:16], seen[16], seen[17:23]
    not_cached, is_cached, of_tpot, errors = seen[23:28], seen[28:33], seen[33:38], seen[38:44]
    expected = np.array(estimates, float).T
    ttft_stratum, tpot_stratum = expected[2], expected[3]
    ttft_bias, tpot_bias, step_s = expected[4], expected[5], expected[12]
    prompt_tokens, cached_tokens, pending_tokens = expected[8], expected[9], expected[11]

    log_ttft, log_tpot, log_step = np.log(expected[[0, 1, 12]])
    ttft = log_ttft + ttft_bias  # log seconds of the corrected estimate
    by_ttft = np.exp(-ttft)
    # How long ago events were, and the mean gaps between the last few; 0 where there are none.
    gaps_s = np.maximum(now - moments, 0.0) * weights
    relative = np.empty_like(gaps_s)
    np.multiply(gaps_s[:4], by_ttft, out=relative[:4])
    np.multiply(gaps_s[4:7], ahead * by_ttft, out=relative[4:7])
    np.divide(gaps_s[7], step_s, out=relative[7])
    first_ended_arrival_s = gaps_s[5:8]
    known = first_ended_arrival_s > LEAST_GAP_S
    first, ended, arrival = np.log(np.where(known, first_ended_arrival_s, 1.0))
    cached = cached_tokens / (prompt_tokens + 1.0)
    own = np.where(cached > 0.5, is_cached, not_cached)
    other = np.where(cached > 0.5, not_cached, is_cached)

    rows = np.empty((TARGETS, len(estimates)))
    rows[0], rows[1] = log_ttft - log_step, log_tpot - log_step
    rows[2], rows[4] = ttft_bias, tpot_bias
    rows[3], rows[5] = np.log1p(expected[6:8])
    rows[6], rows[7] = ttft_stratum == 1.0, ttft_stratum == 2.0
    rows[8], rows[9] = tpot_stratum == 1.0, tpot_stratum == 2.0
    rows[10], rows[12] = 0.25 * np.rint(4.0 * np.log2(expected[[8, 10]] + 1.0))
    rows[11] = cached
    rows[13:15], rows[16:20] = counters[:2], counters[2:]
    rows[15] = np.log1p(pending_tokens)
    rows[20:28] = np.log1p(relative)
    rows[28] = np.where(known[2] & known[0], arrival - first, 0.0)
    rows[29] = np.where(known[0] & known[1], first - ended, 0.0)
    rows[30], rows[31:35] = own[0], (own[1:] - ttft) * own[0]
    rows[35] = (other[2] - ttft) * other[0]
    rows[36:40] = errors[:4]
    rows[40], rows[41:45] = of_tpot[0], (of_tpot[1:] - log_tpot - tpot_bias) * of_tpot[0]
    rows[45:47] = errors[4:]
    return rows.T


class LatencyNetwork:
    """The network with its weights, by the names of `predictors.learned.latency.SHAPES`. The state of an instance
    is an array of its own: hidden state, cell and encoding."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        hidden = len(arrays["join_encoding"])
        self.event_mean, self.event_by = arrays["event_mean"], 1.0 / arrays["event_scale"]
        self.target_mean, self.target_by = arrays["target_mean"], 1.0 / arrays["target_scale"]
        # sigmoid(x) = (1 + tanh(x / 2)) / 2: with the halves in the weights all four gates are one tanh.
        half = np.full(4 * hidden, 0.5, np.float32)
        half[2 * hidden : 3 * hidden] = 1.0
        self.by_event = np.ascontiguousarray(arrays["lstm"][: len(self.event_mean)] * half)
        self.by_hidden = np.ascontiguousarray(arrays["lstm"][len(self.event_mean) :] * half)
        self.gate_bias = arrays["lstm_bias"] * half
        self.join_encoding, self.join_bias = arrays["join_encoding"], arrays["join_bias"]
        # The first layer and the skip to the last one read the same row, so they share one product.
        self.by_target = np.ascontiguousarray(np.hstack([arrays["join_target"], arrays["skip"]]))
        self.middle, self.middle_bias = arrays["middle"], arrays["middle_bias"]
        self.last, self.last_bias = arrays["last"], arrays["last_bias"]
        self.widths = arrays["widths"]

    def start(self) -> np.ndarray:
        """The state of an instance without events."""
        return np.concatenate((np.zeros(2 * len(self.by_hidden), np.float32), self.join_bias))

    def step(self, row: tuple[float, ...], state: np.ndarray) -> None:
        """Change a state by one more event, given its row of `EVENT_FEATURES`."""
        hidden = len(self.by_hidden)
        event = np.array(row, np.float32)
        event -= self.event_mean
        event *= self.event_by
        np.minimum(np.maximum(event, -CLIP, out=event), CLIP, out=event)
        gates = event @ self.by_event
        gates += state[:hidden] @ self.by_hidden
        gates += self.gate_bias
        np.tanh(gates, out=gates)
        candidate = gates[2 * hidden : 3 * hidden].copy()
        gates += 1.0
        gates *= 0.5
        cell = state[hidden : 2 * hidden]
        cell *= gates[hidden : 2 * hidden]
        cell += gates[:hidden] * candidate
        np.multiply(gates[3 * hidden :], np.tanh(cell), out=state[:hidden])
        np.matmul(state[:hidden], self.join_encoding, out=state[2 * hidden :])
        state[2 * hidden :] += self.join_bias

    def quantiles(self, states: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
        """(N, 2, 5): log residuals of TTFT and TPOT to the corrected estimate at `TAUS`, not decreasing, for the states of
        the candidates' instances and target rows (N, TARGETS)."""
        if len(states) != len(rows):
            raise ValueError("states and rows that do not fit")
        outputs, width = self.widths.shape[1], len(self.middle)
        if not len(rows):
            return np.empty((0, 2, outputs), np.float32)
        rows = np.asarray(rows, np.float32) - self.target_mean
        rows *= self.target_by
        np.minimum(np.maximum(rows, -CLIP, out=rows), CLIP, out=rows)
        by_target = rows @ self.by_target
        first = by_target[:, :width]
        first += np.array(states)[:, 2 * len(self.by_hidden) :]
        np.maximum(first, 0.0, out=first)
        middle = first @ self.middle
        middle += self.middle_bias
        np.maximum(middle, 0.0, out=middle)
        out = middle @ self.last
        out += by_target[:, width:]
        out += self.last_bias
        found = out.reshape(-1, 2, outputs)
        steps = np.logaddexp(0.0, found[:, :, 1:])  # softplus
        quantiles: np.ndarray = np.empty_like(found)
        median = found[:, :, 0]
        quantiles[:, :, 1] = median
        quantiles[:, :, 0] = median - steps[:, :, 0] * self.widths[:, 0]
        np.cumsum(steps[:, :, 1:], axis=2, out=steps[:, :, 1:])
        np.multiply(steps[:, :, 1:], self.widths[:, 2:], out=quantiles[:, :, 2:])
        quantiles[:, :, 2:] += median[:, :, None]
        return quantiles


def memory_rows(held: Sequence[float], kv_usage: Sequence[float | None], targets: np.ndarray) -> np.ndarray:
    """(N, 3 + TARGETS) rows of N candidates, from the closed forms in [0, 1], what their engines last reported
    (`LoadReport.kv_usage`, None where an engine reports none) and their rows of `TARGET_FEATURES`."""
    rows = np.empty((len(targets), 3 + targets.shape[1]), np.float32)
    rows[:, 3:] = targets
    rows[:, 0] = held
    rows[:, 1] = kv_usage  # None becomes NaN
    known = rows[:, 1] == rows[:, 1]
    rows[:, 1] = np.where(known, rows[:, 1], rows[:, 0])
    rows[:, 2] = known
    ratios = rows[:, :2]
    np.minimum(np.maximum(ratios, LEAST_RATIO, out=ratios), 1.0 - LEAST_RATIO, out=ratios)
    np.log(ratios / (1.0 - ratios), out=ratios)
    return rows


class MemoryNetwork:
    """The network with its weights, by the names of `predictors.learned.memory.SHAPES`."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.mean, self.by = arrays["mean"], 1.0 / arrays["scale"]
        # The hidden layer and the skip read the same row, so they share one product.
        self.first = np.ascontiguousarray(np.column_stack([arrays["hidden"], arrays["skip"]]))
        self.first_bias = np.concatenate([arrays["hidden_bias"], arrays["bias"]])
        self.last = arrays["last"]

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """(N,) mean shares of KV memory in use over the requests' lives, for `memory_rows` (N, memory features)."""
        normal = rows - self.mean
        normal *= self.by
        np.minimum(np.maximum(normal, -CLIP, out=normal), CLIP, out=normal)
        first = normal @ self.first
        first += self.first_bias
        logits = np.maximum(first[:, :-1], 0.0) @ self.last
        logits += first[:, -1]
        logits += rows[:, 0]
        # sigmoid(x) = (1 + tanh(x / 2)) / 2, which overflows nowhere.
        ratio: np.ndarray = 0.5 * np.tanh(0.5 * logits) + 0.5
        return ratio

    def predict_one(self, rows: np.ndarray, at: int) -> float:
        """`predict` for one of the rows."""
        return float(self.predict(rows[at : at + 1])[0])
