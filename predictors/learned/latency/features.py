"""What the latency model sees: one row for each event of an instance, one for each request that may join it.

A `Track` follows one instance, in training as in serving. Everything is relative to the instance's own scale:
times to the corrected estimate of the request or to one engine step, so that an engine a hundred times slower
gives the same rows. Tokens of a prompt are told in quarters of a factor of two, too coarse to tell a prompt by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from math import log, log1p, log2
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from router.core.state import Instance

if TYPE_CHECKING:
    from predictors.learned.latency.model import LatencyModel

#: Two moments closer than this are one: their difference is rounding.
_LEAST_GAP_S = 1e-6
#: Quantiles that the model tells of the log residual.
TAUS = (0.1, 0.5, 0.9, 0.95, 0.99)

EVENT_FEATURES = (
    "event.dispatched",
    "event.first_token",
    "event.ended",
    "event.lost",
    "event.reported",
    "event.gap",  # log steps since the event before
    "event.size",  # log tokens: prompt of a dispatch, answer of an end
    "event.steps",  # log steps: corrected TTFT of a dispatch, TTFT of a first token, TPOT of an end
    "event.cached",  # share of its prompt
    "event.error",  # ln(actual / corrected estimate) of TTFT or TPOT
    "event.in_flight",
    "event.awaiting",
    "event.pending_steps",
    "event.oldest_steps",
    "event.context_tokens",
    "event.running",
    "event.waiting",
    "event.kv_usage",
)
TARGET_FEATURES = (
    "ttft_steps",
    "tpot_steps",
    "ttft_bias",
    "ttft_count",
    "tpot_bias",
    "tpot_count",
    "queue_ahead",
    "seats_taken",
    "batch_middle",
    "batch_large",
    "prompt_tokens",
    "cached_share",
    "output_tokens",
    "in_flight",
    "awaiting",
    "pending_tokens",
    "context_tokens",
    "running",
    "waiting",
    "kv_usage",
    "report_age",
    "oldest_age",
    "middle_age",
    "first_token_age",
    "wait_by_8",
    "wait_by_32",
    "wait_by_ends",
    "arrival_gap",
    "arrivals_by_first_tokens",
    "first_tokens_by_ends",
    "ttft_seen",
    "ttft_last",
    "ttft_median",
    "ttft_low",
    "ttft_high",
    "ttft_other",
    "ttft_error_last",
    "ttft_error_median",
    "ttft_error_low",
    "ttft_error_high",
    "tpot_seen",
    "tpot_last",
    "tpot_median",
    "tpot_low",
    "tpot_high",
    "tpot_error_median",
    "tpot_error_last",
)
LATENCY_FEATURES = EVENT_FEATURES + TARGET_FEATURES

_KINDS = {
    "dispatched": (1.0, 0.0, 0.0, 0.0, 0.0),
    "first_token": (0.0, 1.0, 0.0, 0.0, 0.0),
    "ended": (0.0, 0.0, 1.0, 0.0, 0.0),
    "lost": (0.0, 0.0, 0.0, 1.0, 0.0),
    "reported": (0.0, 0.0, 0.0, 0.0, 1.0),
}


class Estimate(NamedTuple):
    """What is expected of a request at an instance without the model: the physical estimate and the log
    median factors (`_bias`) that its online correction multiplies it with, from `_count` observations.
    Tokens as the engine would count them; `step_s` is one decoding step of the engine as it is now."""

    ttft_s: float
    tpot_s: float
    ttft_stratum: int
    tpot_stratum: int
    ttft_bias: float
    tpot_bias: float
    ttft_count: int
    tpot_count: int
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float
    pending_tokens: float
    step_s: float


@lru_cache(maxsize=4096)
def _coarse(tokens: float) -> float:
    """log2 of tokens, to a quarter."""
    return 0.25 * round(4.0 * log2(tokens + 1.0))


class _Recent:
    """The last few values of one kind: their median, spread and newest, worked out when one is added."""

    __slots__ = ("_recent", "values")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=9)
        #: 1 if there are any, the newest, median, a low and a high one.
        self.values = (0.0, 0.0, 0.0, 0.0, 0.0)

    def add(self, value: float) -> None:
        recent = self._recent
        recent.append(value)
        ordered = sorted(recent)
        size = len(ordered)
        self.values = (1.0, value, ordered[size // 2], ordered[size // 5], ordered[-1 - size // 5])


class Track:
    """The history of one instance, as its events tell it. With a model, `encoding` is its summary as the
    model's head takes it; without one the rows are kept in `events`, for training.

    Each method is told what has happened after the instance's own counters include it; rows take the counters as
    they were when the first row after an event was asked for. What other replicas of the router tell of their attempts
    (`own` false) counts but for how long requests have waited: that is known of our own only.
    """

    __slots__ = (
        "_arrivals", "_cell", "_ended", "_event_at", "_first_8", "_first_32", "_hidden", "_history", "_model",
        "_step_s", "_tpot", "_tpot_error", "_ttft", "_ttft_error", "_waiting", "encoding", "events",
    )  # fmt: skip

    encoding: np.ndarray

    def __init__(self, model: LatencyModel | None) -> None:
        self._model = model
        self.events: list[tuple[float, ...]] = []
        if model is not None:
            self._hidden, self._cell, self.encoding = model.start()
        self._step_s = 0.02
        self._event_at: float | None = None
        self._waiting: list[float] = []  # when those were dispatched that have no first token, in order
        self._first_8: deque[float] = deque(maxlen=8)
        self._first_32: deque[float] = deque(maxlen=32)
        self._arrivals: deque[float] = deque(maxlen=16)
        self._ended: deque[float] = deque(maxlen=16)
        # Logs of seconds, of prompts that the prefix cache should not and should have held, and log errors.
        self._ttft = (_Recent(), _Recent())
        self._ttft_error = _Recent()
        self._tpot = _Recent()
        self._tpot_error = _Recent()
        self._history: np.ndarray | None = None  # `history`, once it was asked for

    # --- events ------------------------------------------------------------------------------------
    def dispatched(self, instance: Instance, estimate: Estimate, now: float, *, own: bool = True) -> None:
        """A request for which `estimate` was made is on its way to the instance."""
        self._step_s = step_s = estimate.step_s
        if own:
            self._waiting.append(now)
        self._arrivals.append(now)
        corrected = log(estimate.ttft_s / step_s) + estimate.ttft_bias
        self._event(
            "dispatched", instance, now, _coarse(estimate.prompt_tokens), corrected, _cached(estimate)
        )

    def first_token(
        self, instance: Instance, estimate: Estimate, waited_s: float, now: float, *, own: bool = True
    ) -> None:
        """The first token came, `waited_s` after the dispatch for which `estimate` was made."""
        if own:
            self._served(now - waited_s)
        self._first_8.append(now)
        self._first_32.append(now)
        ttft = log(waited_s)
        error = _bounded(ttft - log(estimate.ttft_s) - estimate.ttft_bias)
        cached = _cached(estimate)
        self._ttft[cached > 0.5].add(ttft)
        self._ttft_error.add(error)
        self._event(
            "first_token",
            instance,
            now,
            _coarse(estimate.prompt_tokens),
            ttft - log(self._step_s),
            cached,
            error,
        )

    def ended(
        self, instance: Instance, estimate: Estimate, output_tokens: int, tpot_s: float | None, now: float
    ) -> None:
        """A whole answer has come, to a request for which `estimate` was made."""
        self._ended.append(now)
        error = per_token = 0.0
        if tpot_s is not None and tpot_s > 0.0:
            tpot = log(tpot_s)
            per_token = tpot - log(self._step_s)
            error = _bounded(tpot - log(estimate.tpot_s) - estimate.tpot_bias)
            self._tpot.add(tpot)
            self._tpot_error.add(error)
        self._event("ended", instance, now, _coarse(output_tokens), per_token, _cached(estimate), error)

    def lost(
        self, instance: Instance, waited_s: float, decoding: bool, now: float, *, own: bool = True
    ) -> None:
        """An attempt was given up `waited_s` after its dispatch, `decoding` or before its first token."""
        waited = 0.0
        if not decoding:
            if own:
                self._served(now - waited_s)
            waited = log(waited_s / self._step_s + 1.0)
        self._event("lost", instance, now, 0.0, waited)

    def reported(self, instance: Instance, now: float) -> None:
        """The engine has told its load."""
        self._event("reported", instance, now, 0.0, 0.0)

    def _served(self, dispatched_at: float) -> None:
        """Take the one that was dispatched then off those that wait."""
        waiting = self._waiting
        if waiting:
            at = bisect_left(waiting, dispatched_at - 1e-9)
            del waiting[at if at < len(waiting) else -1]

    def _event(
        self,
        kind: str,
        instance: Instance,
        now: float,
        size: float,
        estimate: float,
        cached: float = 0.0,
        error: float = 0.0,
    ) -> None:
        self._history = None
        step_s = self._step_s
        before = self._event_at
        self._event_at = now
        report = instance.report
        waiting = self._waiting
        row = (
            *_KINDS[kind],
            0.0 if before is None else log1p((now - before) / step_s),
            size,
            estimate,
            cached,
            error,
            log1p(instance.in_flight),
            log1p(instance.awaiting_first_token),
            log1p(instance.pending_prefill_tokens),
            log1p((now - waiting[0]) / step_s) if waiting else 0.0,
            log1p(instance.context_tokens),
            0.0 if report.running is None else log1p(report.running),
            0.0 if report.waiting is None else log1p(report.waiting),
            report.kv_usage or 0.0,
        )
        if self._model is None:
            self.events.append(row)
        else:
            self._hidden, self._cell, self.encoding = self._model.step(row, self._hidden, self._cell)

    # --- targets -----------------------------------------------------------------------------------
    def target(self, instance: Instance, estimate: Estimate, now: float) -> tuple[float, ...]:
        """One row of `TARGET_FEATURES` for a request that may join the instance."""
        return tuple(target_rows([self], [instance], [estimate], now)[0].tolist())

    def history(self, instance: Instance) -> np.ndarray:
        """What rows take from the instance's counters and its history: the same until the next event."""
        history = self._history
        if history is None:
            history = self._history = self._summary(instance)
        return history

    def _summary(self, instance: Instance) -> np.ndarray:
        report, waiting, ahead = instance.report, self._waiting, instance.awaiting_first_token + 1.0
        _, tpot_error_last, tpot_error_median, _, _ = self._tpot_error.values
        moments = (
            _once(instance.reported_at),
            _once(waiting[0] if waiting else None),
            _once(waiting[len(waiting) // 2] if waiting else None),
            _once(self._first_8[-1] if self._first_8 else None),
            _since(self._first_8),
            _since(self._first_32),
            _since(self._ended),
            _since(self._arrivals),
        )
        return np.array(
            (
                *(moment for moment, _ in moments),
                *(weight for _, weight in moments),
                ahead,
                log1p(instance.in_flight),
                log(ahead),
                log1p(instance.context_tokens),
                0.0 if report.running is None else log1p(report.running),
                0.0 if report.waiting is None else log1p(report.waiting),
                report.kv_usage or 0.0,
                *self._ttft[False].values,
                *self._ttft[True].values,
                *self._tpot.values,
                *self._ttft_error.values[1:],
                tpot_error_median,
                tpot_error_last,
            )
        )


def target_rows(
    tracks: Sequence[Track], instances: Sequence[Instance], estimates: Sequence[Estimate], now: float
) -> np.ndarray:
    """(N, target features): a row for each of N instances that a request may join, with its estimate there."""
    seen = np.array([track.history(instance) for track, instance in zip(tracks, instances, strict=True)]).T
    moments, weights, ahead, counters = seen[:8], seen[8:16], seen[16], seen[17:23]
    not_cached, is_cached, of_tpot, errors = seen[23:28], seen[28:33], seen[33:38], seen[38:44]
    told = np.array(estimates, float).T
    ttft_stratum, tpot_stratum = told[2], told[3]
    ttft_bias, tpot_bias, step_s = told[4], told[5], told[12]
    prompt_tokens, cached_tokens, pending_tokens = told[8], told[9], told[11]

    log_ttft, log_tpot, log_step = np.log(told[[0, 1, 12]])
    ttft = log_ttft + ttft_bias  # log seconds of the corrected estimate
    by_ttft = np.exp(-ttft)
    # How long ago, and means between the last few, up to now; 0 where there are none.
    gaps_s = np.maximum(now - moments, 0.0) * weights
    relative = np.empty_like(gaps_s)
    np.multiply(gaps_s[:4], by_ttft, out=relative[:4])
    np.multiply(gaps_s[4:7], ahead * by_ttft, out=relative[4:7])
    np.divide(gaps_s[7], step_s, out=relative[7])
    first_ended_arrival_s = gaps_s[5:8]
    known = first_ended_arrival_s > _LEAST_GAP_S
    first, ended, arrival = np.log(np.where(known, first_ended_arrival_s, 1.0))
    cached = cached_tokens / (prompt_tokens + 1.0)
    own = np.where(cached > 0.5, is_cached, not_cached)
    other = np.where(cached > 0.5, not_cached, is_cached)

    rows = np.empty((len(TARGET_FEATURES), len(estimates)))
    rows[0], rows[1] = log_ttft - log_step, log_tpot - log_step
    rows[2], rows[4] = ttft_bias, tpot_bias
    rows[3], rows[5] = np.log1p(told[6:8])
    rows[6], rows[7] = ttft_stratum == 1.0, ttft_stratum == 2.0
    rows[8], rows[9] = tpot_stratum == 1.0, tpot_stratum == 2.0
    rows[10], rows[12] = 0.25 * np.rint(4.0 * np.log2(told[[8, 10]] + 1.0))
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


def _once(moment: float | None) -> tuple[float, float]:
    """(moment, weight) of what may not have been."""
    return (0.0, 0.0) if moment is None else (moment, 1.0)


def _since(times: deque[float]) -> tuple[float, float]:
    """(moment of the first, 1 / how many), which times what has passed since is the mean between them."""
    return (times[0], 1.0 / len(times)) if times else (0.0, 0.0)


def _bounded(error: float) -> float:
    """A log error, cut at a factor of twenty."""
    return 3.0 if error > 3.0 else (-3.0 if error < -3.0 else error)


def _cached(estimate: Estimate) -> float:
    """Share of the prompt that the prefix cache should hold."""
    return estimate.cached_tokens / (estimate.prompt_tokens + 1.0)
