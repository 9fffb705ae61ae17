"""The record of a request, which the gateway fills, and how it becomes rows.

The hot path builds one `RequestRecord` and passes it to the writer. What the scheduler says about the request's end is
copied into it later (`RequestRecord.complete`), for many records together: code and data then stay in the processor's
caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter, itemgetter
from typing import Any

from router.compiled import compiled_init, reader
from router.core.deciding import Decided
from router.core.request_state import AttemptState
from router.core.settlement import Settlement
from router.core.types import Decision, EndedHow, Outcome, Prediction, PromptFeatures, Slo
from router.store.entries import MAX_TEXT_CHARS, REQUEST_COLUMNS, Row, clean

#: The stored fields of a prediction, in order. Old explanations have the same order.
PREDICTION_FIELDS = tuple(each.name for each in fields(Prediction))
PredictionValues = tuple[float | None, ...]
prediction_values: Callable[[Prediction], PredictionValues] = reader(Prediction, *PREDICTION_FIELDS)


def prediction_picker(*names: str) -> Callable[[PredictionValues], PredictionValues]:
    """A function that selects the values of these fields, two or more, from all values."""
    return itemgetter(*map(PREDICTION_FIELDS.index, names))


#: The values that have a column of their own (`predicted_...`), in this order.
PREDICTED_COLUMNS = tuple(
    name.removeprefix("predicted_") for name in REQUEST_COLUMNS if name.startswith("predicted_")
)
_predicted_columns = prediction_picker(*PREDICTED_COLUMNS)
_decided = attrgetter("decided")


@compiled_init
@dataclass(slots=True)
class RequestRecord:
    """One row of `requests` (fields up to `priority` are its columns), with its attempts and decisions.

    `received_at` is in seconds since the epoch. `arrived_at` is the same moment on the clock of `Decision.at_s` and of
    `attempt_states`. Decisions are stored as seconds after the arrival. `prefix` are hashes of the prompt's leading blocks,
    `features` the inputs of predictors from its text, `choices` the number of texts that are asked for. `prompt` is written
    only by a store that keeps prompts.
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
    min_quality: float | None = None
    on_miss: str | None = None
    priority: int | None = None
    # beside the row
    arrived_at: float | None = None
    attempt_states: Sequence[AttemptState] = ()
    decisions: list[Decided | Decision] = field(default_factory=list)
    prefix: tuple[int, ...] = ()
    features: PromptFeatures | None = None
    choices: int = 1
    prompt: str | None = None
    trace: Any = None  # its place in a trace, used by the gateway only
    span_ids: dict[int, int | None] | None = None  # of attempts, by number, if it is traced
    settlement: Settlement | None = None  # what `complete` copies
    prediction: Prediction | None = None  # of the chosen candidate
    predicted: PredictionValues = ()  # its values

    def complete(self) -> None:
        """Copy what `settlement` says into the columns, attempts and decisions, once."""
        settlement = self.settlement
        if settlement is None:
            return
        self.settlement = None
        (
            self.outcome,
            self.error_code,
            refusal,
            self.slo_met,
            answer,
            attempts,
            self.e2e_s,
            self.ttft_s,
            self.tpot_s,
            self.queue_wait_s,
            self.decoded,
            self.cost_usd,
            self.budget_overrun_usd,
            _,
            _,
        ) = settlement
        self.attempt_states = attempts
        self.decisions += map(_decided, attempts)
        if refusal is not None and refusal.decision is not None:  # no candidate could take the request
            self.decisions.append(refusal.decision)
        self.attempts = len(attempts)
        self.hedged = len(attempts) > 1 and settlement.hedged
        if answer is None:
            return
        self.model, self.instance = answer.candidate.model, answer.candidate.instance
        self.prompt_tokens = answer.prompt_tokens or self.prompt_tokens
        self.output_tokens = answer.output_tokens
        if self.prediction is not answer.prediction:
            self.set_prediction(answer.prediction)
        if len(attempts) == 1:  # of several attempts no single draw explains the result
            self.propensity = answer.propensity

    def set_prediction(self, prediction: Prediction) -> PredictionValues:
        """Copy the prediction of the chosen candidate; its values."""
        self.prediction = prediction
        self.predicted = values = prediction_values(prediction)
        (
            self.predicted_output_tokens_p50,
            self.predicted_output_tokens_p90,
            self.predicted_ttft_s_p50,
            self.predicted_ttft_s_p95,
            self.predicted_e2e_s_p50,
            self.predicted_e2e_s_p95,
            self.predicted_quality,
            self.predicted_cost_usd,
        ) = _predicted_columns(values)
        return values

    def set_slo(self, slo: Slo) -> None:
        """Copy the targets."""
        self.slo_ttft_s = slo.ttft_s
        self.slo_tpot_s = slo.tpot_s
        self.slo_e2e_s = slo.e2e_s


# Text from outside goes through `clean`. Enumerations become plain strings, because drivers are slow with subclasses of
# str, or refuse them. All else is used unchanged.
_CLEANED = "client_request_id", "model_requested", "finish_reason"
_texts = reader(RequestRecord, *_CLEANED)
_request_values = reader(RequestRecord, *REQUEST_COLUMNS)
_CLEANED_AT = tuple(map(REQUEST_COLUMNS.index, _CLEANED))
_OUTCOME_AT = REQUEST_COLUMNS.index("outcome")
OUTCOME_TEXT = {outcome: outcome.value for outcome in Outcome}
_HOW_TEXT = {None: None} | {how: how.value for how in EndedHow}


def request_row(record: RequestRecord) -> Row:
    """The values of `REQUEST_COLUMNS`. Raises KeyError for an unknown outcome."""
    values = list(_request_values(record))
    values[_OUTCOME_AT] = OUTCOME_TEXT[record.outcome]
    texts = "".join(filter(None, _texts(record)))
    if len(texts) > MAX_TEXT_CHARS or not texts.isprintable():
        for at in _CLEANED_AT:
            values[at] = clean(values[at])
    return tuple(values)


def attempt_row(record: RequestRecord, attempt: AttemptState) -> Row:
    """The values of `ATTEMPT_COLUMNS` for one of the record's attempts."""
    since = record.received_at - (record.arrived_at or 0.0)
    candidate, first_at, ended_at = attempt.candidate, attempt.first_token_at, attempt.ended_at
    error = attempt.error
    return (
        record.id,
        attempt.number,
        candidate.instance,
        candidate.model,
        since + attempt.dispatched_at,
        None if first_at is None else since + first_at,
        None if ended_at is None else since + ended_at,
        attempt.output_tokens,
        attempt.cost_usd,
        _HOW_TEXT[attempt.ended_how],
        None if error is None else clean(error),
    )
