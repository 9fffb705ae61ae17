"""The history of one instance, from its events: the latency model's input.

The same class follows an instance in training and in serving.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from functools import lru_cache
from math import log, log1p, log2
from typing import Any

import numpy as np

from predictors.kernels.reference.estimates import Estimate
from predictors.kernels.reference.latency_networks import LatencyNetwork, target_rows
from router.core.state import Instance

_KINDS = {
    "dispatched": (1.0, 0.0, 0.0, 0.0, 0.0),
    "first_token": (0.0, 1.0, 0.0, 0.0, 0.0),
    "ended": (0.0, 0.0, 1.0, 0.0, 0.0),
    "lost": (0.0, 0.0, 0.0, 1.0, 0.0),
    "reported": (0.0, 0.0, 0.0, 0.0, 1.0),
}


@lru_cache(maxsize=4096)
def _coarse(tokens: float) -> float:
    """log2 of tokens, rounded to a quarter."""
    return 0.25 * round(4.0 * log2(tokens + 1.0))


class _Recent:
    """The last few values of one kind: newest, median and spread, computed when a value is added."""

    __slots__ = ("_recent", "values")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=9)
        #: (1 if there are any, newest, median, low, high).
        self.values = (0.0, 0.0, 0.0, 0.0, 0.0)

    def add(self, value: float) -> None:
        recent = self._recent
        recent.append(value)
        ordered = sorted(recent)
        size = len(ordered)
        self.values = (1.0, value, ordered[size // 2], ordered[size // 5], ordered[-1 - size // 5])


class InstanceHistory:
    """The events of one instance. With a network, `state` is the network's state after them. Without one the rows
    are kept in `events`, for training.

    Call a method after the instance's own counters include the event. `summary` reads the counters at its first call
    after an event. Events of this router and those received from other replicas count alike. The waiting times of
    requests are known only for this router's own attempts: `waits` and `stops_waiting` keep them. An `estimate` may be
    anything with those fields of an `Estimate` that a method reads.
    """

    __slots__ = (
        "_arrivals", "_ended", "_event_at", "_first_8", "_first_32", "_network", "_step_s", "_summary", "_tpot", "_tpot_error", "_ttft",
        "_ttft_error", "_waiting", "events", "state",
    )  # fmt: skip

    state: np.ndarray

    def __init__(self, network: LatencyNetwork | None) -> None:
        self._network = network
        self.events: list[tuple[float, ...]] = []
        if network is not None:
            self.state = network.start()
        self._step_s = 0.02
        self._event_at: float | None = None
        self._waiting: list[float] = []  # dispatch times of own attempts without a first token, in order
        self._first_8: deque[float] = deque(maxlen=8)
        self._first_32: deque[float] = deque(maxlen=32)
        self._arrivals: deque[float] = deque(maxlen=16)
        self._ended: deque[float] = deque(maxlen=16)
        # Log seconds: TTFT of prompts outside and inside the prefix cache, TPOT; and their log errors.
        self._ttft = (_Recent(), _Recent())
        self._ttft_error = _Recent()
        self._tpot = _Recent()
        self._tpot_error = _Recent()
        self._summary: tuple[float, ...] | None = None  # `summary`, until the next event

    # --- own attempts that wait for their first token ------------------------------------------------
    def waits(self, dispatched_at: float) -> None:
        """An attempt of this router was dispatched."""
        self._waiting.append(dispatched_at)

    def stops_waiting(self, dispatched_at: float) -> None:
        """Its first token arrived, or it ended before that."""
        waiting = self._waiting
        if waiting:
            at = bisect_left(waiting, dispatched_at - 1e-9)
            del waiting[at if at < len(waiting) else -1]

    # --- events ------------------------------------------------------------------------------------
    def dispatched(self, instance: Instance, estimate: Any, step_s: float, now: float) -> None:
        """A request with this estimate was sent to the instance, whose engine needs `step_s` for a step."""
        self._step_s = step_s
        self._arrivals.append(now)
        corrected = log(estimate.ttft_s / step_s) + estimate.ttft_bias
        self._event(
            "dispatched", instance, now, _coarse(estimate.prompt_tokens), corrected, _cached(estimate)
        )

    def first_token(self, instance: Instance, estimate: Any, waited_s: float, now: float) -> None:
        """The first token came `waited_s` after the dispatch with this estimate."""
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
        self, instance: Instance, estimate: Any, output_tokens: int, tpot_s: float | None, now: float
    ) -> None:
        """A request with this estimate got a complete answer, at `tpot_s` seconds a token (None: one token)."""
        self._ended.append(now)
        error = per_token = 0.0
        if tpot_s is not None and tpot_s > 0.0:
            tpot = log(tpot_s)
            per_token = tpot - log(self._step_s)
            error = _bounded(tpot - log(estimate.tpot_s) - estimate.tpot_bias)
            self._tpot.add(tpot)
            self._tpot_error.add(error)
        self._event("ended", instance, now, _coarse(output_tokens), per_token, _cached(estimate), error)

    def lost(self, instance: Instance, waited_s: float, decoding: bool, now: float) -> None:
        """An attempt ended without a complete answer, `waited_s` after its dispatch. `decoding`: after its first
        token."""
        waited = 0.0 if decoding else log(waited_s / self._step_s + 1.0)
        self._event("lost", instance, now, 0.0, waited)

    def reported(self, instance: Instance, now: float) -> None:
        """The engine sent a load report (`instance.report`)."""
        self._event("reported", instance, now, 0.0, 0.0)

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
        self._summary = None
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
        if self._network is None:
            self.events.append(row)
        else:
            self._network.step(row, self.state)

    # --- targets ------------------------------------------------------------------------------------
    def target(self, instance: Instance, estimate: Estimate, now: float) -> tuple[float, ...]:
        """One row of `TARGET_FEATURES` for a request that may join the instance."""
        return tuple(target_rows([self.summary(instance)], [estimate], now)[0].tolist())

    def summary(self, instance: Instance) -> tuple[float, ...]:
        """The inputs from the instance's counters and its history. They stay the same until the next event."""
        summary = self._summary
        if summary is None:
            summary = self._summary = self._summarise(instance)
        return summary

    def _summarise(self, instance: Instance) -> tuple[float, ...]:
        report, waiting, ahead = instance.report, self._waiting, instance.awaiting_first_token + 1.0
        _, tpot_error_last, tpot_error_median, _, _ = self._tpot_error.values
        reported_at = instance.reported_at
        first_8, first_32, ended, arrivals = self._first_8, self._first_32, self._ended, self._arrivals
        waits = 1.0 if waiting else 0.0
        return (
            # Moments, 0 where there is none.
            0.0 if reported_at is None else reported_at,
            waiting[0] if waiting else 0.0,
            waiting[len(waiting) // 2] if waiting else 0.0,
            first_8[-1] if first_8 else 0.0,
            first_8[0] if first_8 else 0.0,
            first_32[0] if first_32 else 0.0,
            ended[0] if ended else 0.0,
            arrivals[0] if arrivals else 0.0,
            # What the time since each is multiplied with: 1, or 0 without one; the first of several events gives the mean gap.
            0.0 if reported_at is None else 1.0,
            waits,
            waits,
            1.0 if first_8 else 0.0,
            1.0 / len(first_8) if first_8 else 0.0,
            1.0 / len(first_32) if first_32 else 0.0,
            1.0 / len(ended) if ended else 0.0,
            1.0 / len(arrivals) if arrivals else 0.0,
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


def _bounded(error: float) -> float:
    """A log error, cut at a factor of 20."""
    return 3.0 if error > 3.0 else (-3.0 if error < -3.0 else error)


def _cached(estimate: Any) -> float:
    """The share of the prompt that is probably in the prefix cache."""
    share: float = estimate.cached_tokens / (estimate.prompt_tokens + 1.0)
    return share
