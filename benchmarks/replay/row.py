"""What is recorded of one replayed request, and the judgement over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.core.types import Outcome, Slo

#: What an answer's status says of the outcome, where the answer does not carry it itself.
_OUTCOME_OF_STATUS: Mapping[int | None, Outcome] = {
    **dict.fromkeys((400, 404, 413, 422), Outcome.REJECTED_INVALID),
    **dict.fromkeys((401, 403), Outcome.REJECTED_AUTH),
    429: Outcome.REJECTED_RATE,
    503: Outcome.REJECTED_OVERLOAD,
}
#: The contract's error codes that say more than their status.
_OUTCOME_OF_CODE: Mapping[str | None, Outcome] = {
    "budget_unattainable": Outcome.REJECTED_BUDGET,
    "insufficient_quota": Outcome.REJECTED_BUDGET,
    "slo_unattainable": Outcome.REJECTED_SLO,
    "no_instance": Outcome.REJECTED_NO_INSTANCE,
    "ttft_timeout": Outcome.EXPIRED_BEFORE_FIRST_TOKEN,
    "deadline_exceeded": Outcome.EXPIRED_MID_DECODE,
}


@dataclass(slots=True)
class Row:
    """One request as the client saw it; None is unknown. Times are in seconds of the workload's clock: `scheduled_s` and
    `sent_s` from the start of the run, `ttft_s` and `e2e_s` from the scheduled instant, so that a late send counts. `tpot_s`
    is (E2E - TTFT) / (output tokens - 1). `outcome` is the client's own measure in the contract's words, `gateway_outcome`
    the one that the gateway reported, `quality` its judge's rating."""

    id: str
    scheduled_s: float
    sent_s: float
    slo: dict[str, float] | None = None  # ttft_ms, tpot_ms, e2e_ms as the workload has them
    status: int | None = None
    complete: bool = False
    ttft_s: float | None = None
    itl_mean_s: float | None = None
    itl_p99_s: float | None = None
    itl_max_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    events: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    headway: dict[str, Any] | None = None
    error: str | None = None
    error_code: str | None = None
    outcome: str = ""
    gateway_outcome: str | None = None
    met: bool | None = None  # None without an SLO
    quality: float | None = None

    @property
    def lag_s(self) -> float:
        """How late the client sent it."""
        return self.sent_s - self.scheduled_s

    @property
    def cost_usd(self) -> float | None:
        cost = (self.headway or {}).get("cost_usd")
        return float(cost) if isinstance(cost, int | float) else None

    @property
    def instance(self) -> str | None:
        named = self.headers.get("x-headway-instance") or (self.headway or {}).get("instance")
        return str(named) if named else None

    @property
    def request_id(self) -> str | None:
        """The gateway's own id of it."""
        return self.headers.get("x-request-id") or (self.headway or {}).get("request_id")

    def judge(self) -> None:
        """Set `outcome`, `gateway_outcome` and `met` from what was measured."""
        outcome = (self.headway or {}).get("outcome")
        if isinstance(outcome, str):
            self.gateway_outcome = outcome
        slo = to_slo(self.slo)
        if slo is not None:
            self.met = self.complete and slo.met(self.ttft_s, self.tpot_s, self.e2e_s)
        elif isinstance((self.headway or {}).get("slo_met"), bool):
            # The gateway's own default SLO: the client does not know its targets.
            self.met = self.complete and bool((self.headway or {})["slo_met"])
        if not self.complete:
            self.outcome = self._failure().value
        elif self.gateway_outcome == Outcome.BUDGET_EXHAUSTED_MID_DECODE:
            self.outcome = Outcome.BUDGET_EXHAUSTED_MID_DECODE.value
        else:
            self.outcome = (Outcome.LATE if self.met is False else Outcome.OK).value

    def _failure(self) -> Outcome:
        of_status = _OUTCOME_OF_STATUS.get(self.status, Outcome.BACKEND_ERROR)
        return _OUTCOME_OF_CODE.get(self.error_code, of_status)


def to_slo(targets: Mapping[str, float] | None) -> Slo | None:
    """Targets in milliseconds as the core's SLO in seconds."""
    if not targets:
        return None
    values = (targets.get(name) for name in ("ttft_ms", "tpot_ms", "e2e_ms"))
    return Slo(*(None if value is None else value / 1000 for value in values))
