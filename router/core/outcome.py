"""The one place that says how a finished answer counts."""

from __future__ import annotations

from router.core.types import Outcome, Slo


def tpot_s(ttft_s: float | None, e2e_s: float | None, output_tokens: int | None) -> float | None:
    """(E2E - TTFT) / (output tokens - 1); None for fewer than two tokens."""
    if ttft_s is None or e2e_s is None or output_tokens is None or output_tokens < 2:
        return None
    return (e2e_s - ttft_s) / (output_tokens - 1)


def answered(
    slo: Slo | None,
    ttft_s: float | None,
    e2e_s: float,
    output_tokens: int | None,
    *,
    cut_by_budget: bool,
) -> tuple[Outcome, bool | None]:
    """Outcome and `slo_met` (None without an SLO) of an answer that was delivered to its end."""
    met = None if slo is None else slo.met(ttft_s, tpot_s(ttft_s, e2e_s, output_tokens), e2e_s)
    if cut_by_budget:
        return Outcome.BUDGET_EXHAUSTED_MID_DECODE, met
    return (Outcome.LATE if met is False else Outcome.OK), met
