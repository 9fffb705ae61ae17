"""Counts the load between two decisions."""

from __future__ import annotations

from collections.abc import Mapping

from policies.scaling.types import ModelLoad, Observation, PoolLoad


class LoadCounter:
    """Counts arrivals and ends by model, and makes each time's `Observation` of them. A request that may go to several
    models counts for the first one, as it does in the queue."""

    def __init__(self, began_s: float) -> None:
        self._since_s = began_s
        self._counts: dict[str, _Counts] = {}

    def arrived(self, model: str, prompt_tokens: int) -> None:
        """A request for `model` arrived."""
        counts = self._of(model)
        counts.arrivals += 1
        counts.prompt_tokens += prompt_tokens

    def ended(self, model: str, output_tokens: int | None, slo_met: bool | None) -> None:
        """A request for `model` ended: with an answer of `output_tokens` (None: with none). `slo_met` is None without an
        SLO."""
        counts = self._of(model)
        if output_tokens is not None:
            counts.answers += 1
            counts.output_tokens += output_tokens
        counts.slo_misses += slo_met is False

    def observe(self, now_s: float, pools: Mapping[str, PoolLoad], queued: Mapping[str, int]) -> Observation:
        """What a scaler sees now. The counts begin anew. `queued` are the waiting requests by model."""
        models = {
            name: ModelLoad(
                counts.arrivals,
                counts.prompt_tokens,
                counts.answers,
                counts.output_tokens,
                counts.slo_misses,
                queued.get(name, 0),
            )
            for name, counts in self._counts.items()
        }
        found = Observation(now_s, now_s - self._since_s, pools, models)
        self._since_s = now_s
        self._counts = {name: _Counts() for name in self._counts}
        return found

    def _of(self, model: str) -> _Counts:
        counts = self._counts.get(model)
        if counts is None:
            counts = self._counts[model] = _Counts()
        return counts


class _Counts:
    __slots__ = ("answers", "arrivals", "output_tokens", "prompt_tokens", "slo_misses")

    def __init__(self) -> None:
        self.arrivals = self.prompt_tokens = self.answers = self.output_tokens = self.slo_misses = 0
