"""`oracle`: a scaler that knows all arrivals, and so starts each instance just in time. No gateway can have it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.workloads.format import WorkloadRequest
from policies.scaling.capacity import slo_capacity
from policies.scaling.types import Observation, Scaler, ScalingPool

#: The work of the arrivals is averaged over this time: shorter bursts wait.
_WINDOW_S = 15.0


class OracleScaler(Scaler):
    """One pool, whose requests and their lengths are known. A request's work is its share of an instance that has the
    largest load that keeps the SLO. `scale` multiplies the work to provide for."""

    def __init__(
        self, pool: ScalingPool, requests: Sequence[WorkloadRequest], epoch_s: float, scale: float = 1.0
    ) -> None:
        self._pool = pool
        self._epoch_s = epoch_s
        prompts = np.array([each.prompt_tokens for each in requests], float)
        outputs = np.array([each.longest_output_tokens() or 1 for each in requests], float)
        one = slo_capacity(pool, float(prompts.mean()), float(outputs.mean()))
        # Prefill and decode by their shares of the work of the mean request.
        prefill = np.array([pool.profile.prefill_s(round(each)) for each in prompts])
        share = min(1.0, one.rate_per_s * float(prefill.mean()))
        work = share * prefill / prefill.mean() + (1 - share) * outputs / outputs.mean()
        # An answer's work is done while it decodes, from its arrival on.
        times = np.array([each.arrival_s for each in requests])
        ends = times + outputs / outputs.mean() * one.service_s
        length = int(ends.max() / _WINDOW_S) + 2
        load = np.zeros(length)
        for begin, end, each in zip(times, ends, work, strict=True):
            first, last = int(begin / _WINDOW_S), int(end / _WINDOW_S)
            load[first : last + 1] += each / (last + 1 - first)
        self._needed = np.ceil(scale * load / _WINDOW_S / one.rate_per_s - 1e-9).astype(int)

    def desired(self, observation: Observation) -> Mapping[str, int]:
        now_s = observation.now_s - self._epoch_s
        start_s = self._pool.cold_start_s + observation.seconds
        window = self._needed[int(now_s / _WINDOW_S) : math.floor((now_s + start_s) / _WINDOW_S) + 1]
        return {self._pool.name: int(window.max(initial=0))}
