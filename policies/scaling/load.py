"""Counts the load between two decisions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from policies.scaling.types import ModelLoad, Observation, PoolLoad


class LoadCounter:
    """Counts arrivals and ends by model, and makes each time's `Observation` of them. A request that may go to several
    models counts for the first one, as it does in the queue."""

    def __init__(self, began_s: float) -> None:
        self._since_s = began_s
        self._counts: defaultdict[str, Counter[str]] = defaultdict(
            Counter
        )  # by model, then field of `ModelLoad`

    def arrived(self, model: str, prompt_tokens: int) -> None:
        """A request for `model` arrived."""
        self._counts[model].update(arrivals=1, prompt_tokens=prompt_tokens)

    def ended(self, model: str, output_tokens: int | None, slo_met: bool | None) -> None:
        """A request for `model` ended: with an answer of `output_tokens` (None: with none). `slo_met` is None without an
        SLO."""
        counts = self._counts[model]
        if output_tokens is not None:
            counts.update(answers=1, output_tokens=output_tokens)
        counts["slo_misses"] += slo_met is False

    def observe(self, now_s: float, pools: Mapping[str, PoolLoad], queued: Mapping[str, int]) -> Observation:
        """What a scaler sees now. The counts begin anew. `queued` are the waiting requests by model."""
        models = {
            name: ModelLoad(**counts, queued=queued.get(name, 0)) for name, counts in self._counts.items()
        }
        found = Observation(now_s, now_s - self._since_s, pools, models)
        self._since_s = now_s
        for counts in self._counts.values():
            counts.clear()
        return found
