"""The record of a request, which the gateway fills, and how it becomes rows.

The hot path builds one `RequestRecord` and passes it to the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from router.core.types import Decision, EndedHow, Outcome, Prediction, PromptFeatures, Slo
from router.store.entries import REQUEST_COLUMNS, Row, clean


@dataclass(slots=True)
class AttemptRecord:
    """One row of `attempts`. Times are seconds since the epoch; `error` holds no prompt text."""

    number: int
    instance: str
    model: str
    started_at: float
    first_token_at: float | None = None
    ended_at: float | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    ended_how: EndedHow | None = None
    error: str | None = None
    # beside the row
    span_id: int | None = None  # in a trace


@dataclass(slots=True)
class RequestRecord:
    """One row of `requests` (fields up to `error_code` are its columns), with its attempts and decisions.

    `received_at` is in seconds since the epoch. `arrived_at` is the same moment on the clock of `Decision.at_s`, so
    that decisions are stored as seconds after the arrival. `prefix` are hashes of the prompt's leading blocks,
    `features` the inputs of predictors from its text. `prompt` is written only by a store that keeps prompts.
    """

    id: str
    received_at: float
    outcome: Outcome = Outcome.OK
    client_request_id: str | None = None
    retry_count: int | None = None
    api: str | None = None
    key_name: str | None = None
    policy: str | None = None
    model_requested: str | None = None
    model: str | None = None
    instance: str | None = None
    attempts: int = 0
    hedged: bool = False
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    decoded: bool = False
    predicted_output_tokens_p50: float | None = None
    predicted_output_tokens_p90: float | None = None
    predicted_ttft_s_p50: float | None = None
    predicted_ttft_s_p95: float | None = None
    predicted_e2e_s_p50: float | None = None
    predicted_e2e_s_p95: float | None = None
    predicted_quality: float | None = None
    predicted_cost_usd: float | None = None
    artifact: str | None = None
    propensity: float | None = None
    queue_wait_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_max_s: float | None = None
    e2e_s: float | None = None
    cost_usd: float | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    slo_met: bool | None = None
    max_cost_usd: float | None = None
    budget_overrun_usd: float | None = None
    error_code: str | None = None
    # beside the row
    arrived_at: float | None = None
    attempt_records: list[AttemptRecord] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    prefix: tuple[int, ...] = ()
    features: PromptFeatures | None = None
    prompt: str | None = None
    trace: Any = None  # its place in a trace, used by the gateway only

    def set_prediction(self, prediction: Prediction) -> None:
        """Copy the prediction of the chosen candidate."""
        self.predicted_output_tokens_p50 = prediction.output_tokens_p50
        self.predicted_output_tokens_p90 = prediction.output_tokens_p90
        self.predicted_ttft_s_p50 = prediction.ttft_s_p50
        self.predicted_ttft_s_p95 = prediction.ttft_s_p95
        self.predicted_e2e_s_p50 = prediction.e2e_s_p50
        self.predicted_e2e_s_p95 = prediction.e2e_s_p95
        self.predicted_quality = prediction.quality
        self.predicted_cost_usd = prediction.cost_usd

    def set_slo(self, slo: Slo) -> None:
        """Copy the targets."""
        self.slo_ttft_s = slo.ttft_s
        self.slo_tpot_s = slo.tpot_s
        self.slo_e2e_s = slo.e2e_s


# Text from outside goes through `clean`. Enumerations become plain strings: drivers are slow with subclasses of str, or refuse
# them. All else is used unchanged.
_CLEANED = {"client_request_id", "model_requested", "finish_reason"}
_request_values: Callable[[RequestRecord], Row] = attrgetter(*REQUEST_COLUMNS)
_CLEANED_AT = tuple(i for i, name in enumerate(REQUEST_COLUMNS) if name in _CLEANED)
_OUTCOME_AT = REQUEST_COLUMNS.index("outcome")
_OUTCOME_TEXT = {outcome: outcome.value for outcome in Outcome}
_HOW_TEXT = {None: None} | {how: how.value for how in EndedHow}


def request_row(record: RequestRecord) -> Row:
    """The values of `REQUEST_COLUMNS`. Raises KeyError for an unknown outcome."""
    values = list(_request_values(record))
    values[_OUTCOME_AT] = _OUTCOME_TEXT[record.outcome]
    for at in _CLEANED_AT:
        text = values[at]
        if text is not None:
            values[at] = clean(text)
    return tuple(values)


def attempt_row(request_id: str, attempt: AttemptRecord) -> Row:
    """The values of `ATTEMPT_COLUMNS`."""
    return (
        request_id,
        attempt.number,
        attempt.instance,
        attempt.model,
        attempt.started_at,
        attempt.first_token_at,
        attempt.ended_at,
        attempt.output_tokens,
        attempt.cost_usd,
        _HOW_TEXT[attempt.ended_how],
        clean(attempt.error),
    )
