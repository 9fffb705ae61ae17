"""What no placement exceeds: the GPU time that requests need at least, against the GPU time that there is.

A linear program. Requests of each kind are divided over the kinds of GPU. Each takes the least GPU time that any shape of
that kind needs for it (`engine_rate.least_busy_s`): for its prompt until the last TTFT is due, and for all of it until the
last answer is due. Queues and bursts are left out, so the bound is optimistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class GpuSeconds(NamedTuple):
    """The least GPU time of one request: of its prompt (0 without a TTFT), and of all of it."""

    prompt: float
    total: float


@dataclass(frozen=True, slots=True)
class GpuTime:
    """`requests[r]`: how many of each kind of request. `busy[r][k]`: what one of them takes on kind k of GPU, None where
    none runs it. `gpus[k]` and `usd_per_hour[k]` (of one GPU). `span_s`: from the first arrival to the last; `after`: how
    long after an arrival its first token, and its answer, are due at the latest."""

    requests: Sequence[int]
    busy: Sequence[Sequence[GpuSeconds | None]]
    gpus: Sequence[int]
    usd_per_hour: Sequence[float]
    span_s: float
    after: GpuSeconds

    def attainment(self) -> float:
        """No placement serves a larger share of the requests."""
        total = sum(self.requests)
        served = self._least([-1.0] * len(self._pairs()), 0.0, 0.0, share=0.0, stretch=False, rented=False)
        return 1.0 if not total or served is None else min(1.0, abs(served) / total)

    def multiple(self, share: float) -> float | None:
        """No placement serves this share of requests that come more times as fast; None if nothing bounds it, 0 if none
        serves it at any load."""
        span_s = self._least(None, 1.0, 0.0, share=share, stretch=True, rented=False)
        if span_s is None:
            return 0.0
        return None if not span_s else self.span_s / span_s

    def lasting_multiple(self, share: float) -> float | None:
        """As `multiple`, of requests that come for so long that what is due after the last one does not count."""
        return replace(self, after=GpuSeconds(0.0, 0.0)).multiple(share)

    def usd(self, share: float) -> float | None:
        """No GPUs that serve this share cost less an hour, with parts of a GPU; None if the cluster cannot serve it."""
        return self._least(None, 0.0, 1.0, share=share, stretch=False, rented=True)

    def _pairs(self) -> list[tuple[int, int, GpuSeconds]]:
        """Kind of request, kind of GPU and the GPU time that it takes there, where that runs it."""
        return [
            (request, kind, busy)
            for request, row in enumerate(self.busy)
            for kind, busy in enumerate(row)
            if busy is not None
        ]

    def _least(
        self,
        served_cost: Sequence[float] | None,
        span_cost: float,
        usd_cost: float,
        *,
        share: float,
        stretch: bool,
        rented: bool,
    ) -> float | None:
        """The least cost over the requests of each pair that are served, the span (as it is, or with `stretch` any), and the
        GPUs of each kind (all, or with `rented` as many as are needed). The span is only stretched where all GPUs count, so
        the program stays linear."""
        from scipy.optimize import linprog

        pairs, kinds = self._pairs(), range(len(self.gpus))
        rows, limits = [], []
        for part in range(2):
            for each in kinds:
                work = [busy[part] * (kind == each) for _, kind, busy in pairs]
                whole_s = self.span_s + self.after[part]
                rented_s = [-whole_s * rented * (kind == each) for kind in kinds]
                rows.append([*work, -self.gpus[each] * stretch, *rented_s])
                limits.append(0.0 if rented else self.gpus[each] * (whole_s - stretch * self.span_s))
        for each, count in enumerate(self.requests):
            rows.append([float(request == each) for request, _, _ in pairs] + [0.0] * (1 + len(kinds)))
            limits.append(float(count))
        rows.append([-1.0] * len(pairs) + [0.0] * (1 + len(kinds)))
        limits.append(-share * sum(self.requests))
        found = linprog(
            [*(served_cost or [0.0] * len(pairs)), span_cost, *(usd_cost * usd for usd in self.usd_per_hour)],
            A_ub=rows,
            b_ub=limits,
            bounds=[(0.0, None)] * (len(pairs) + 1) + [(0.0, float(gpus)) for gpus in self.gpus],
        )
        return float(found.fun) if found.success else None
