"""Records become rows that every database takes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.deciding import Decided
from router.core.interfaces import Choice, Option
from router.core.money.account import OutputBound
from router.core.request_state import AttemptState
from router.core.settlement import Settlement
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, Outcome, Prediction, Request, Slo
from router.store import tables
from router.store.entries import (
    ATTEMPT_COLUMNS,
    MAX_TEXT_CHARS,
    REQUEST_COLUMNS,
    clean,
    clean_prompt,
    corrected_row,
    from_line,
    to_line,
)
from router.store.records import RequestRecord, attempt_row, request_row
from tests.records import entry_of, make_attempt, make_record

# Section 6 of the contract, spelled out.
CONTRACT_COLUMNS = re.findall(
    r"\w+",
    """
    id client_request_id retry_count received_at api key_name policy model_requested model instance attempts
    hedged prompt_tokens max_tokens output_tokens finish_reason decoded predicted_output_tokens_p50
    predicted_output_tokens_p90 predicted_ttft_s_p50 predicted_ttft_s_p95 predicted_e2e_s_p50
    predicted_e2e_s_p95 predicted_quality predicted_cost_usd artifact propensity queue_wait_s ttft_s tpot_s
    itl_max_s e2e_s cost_usd slo_ttft_s slo_tpot_s slo_e2e_s slo_met max_cost_usd budget_overrun_usd outcome
    error_code min_quality on_miss priority
""",
)


def test_the_columns_are_those_of_the_contract() -> None:
    assert list(REQUEST_COLUMNS) == CONTRACT_COLUMNS
    assert " ".join(ATTEMPT_COLUMNS) == (
        "request_id number instance model started_at first_token_at ended_at output_tokens cost_usd ended_how error"
    )


def test_a_row_holds_each_field_at_its_column() -> None:
    record = make_record(7)
    row = dict(zip(REQUEST_COLUMNS, request_row(record), strict=True))
    for column in set(CONTRACT_COLUMNS) - {"outcome"}:
        assert row[column] == getattr(record, column), column
    assert row["outcome"] == "ok"
    assert type(row["outcome"]) is str  # drivers are slower, or refuse, on a subclass


def test_every_outcome_makes_a_row() -> None:
    at = REQUEST_COLUMNS.index("outcome")
    rows = [request_row(make_record(outcome=outcome))[at] for outcome in Outcome]
    assert rows == [outcome.value for outcome in Outcome]


def test_an_outcome_that_is_none_makes_no_row() -> None:
    with pytest.raises(KeyError):
        request_row(make_record(outcome="fine"))


def test_an_attempt_row_holds_each_field_at_its_column() -> None:
    attempt = make_attempt(2, "gpu-0", "llama", 11.0, ended_at=12.5, error="connection reset")
    row = dict(
        zip(ATTEMPT_COLUMNS, attempt_row(RequestRecord("req", 1000.0, arrived_at=10.0), attempt), strict=True)
    )
    assert row == {
        **{"request_id": "req", "number": 2, "instance": "gpu-0", "model": "llama"},
        **{"started_at": 1001.0, "first_token_at": None, "ended_at": 1002.5},
        **{"output_tokens": 0, "cost_usd": 0.0, "ended_how": None, "error": "connection reset"},
    }


def test_predictions_and_targets_are_copied() -> None:
    record = make_record()
    record.set_prediction(Prediction(1.0, 2.0, None, 3.0, 4.0, None, None, 5.0, 6.0, 0.7, 0.8))
    record.set_slo(Slo(0.1, 0.2, 0.3))
    row = dict(zip(REQUEST_COLUMNS, request_row(record), strict=True))
    predicted = [row[name] for name in CONTRACT_COLUMNS if name.startswith("predicted_")]
    assert predicted == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.7, 0.8]
    assert (row["slo_ttft_s"], row["slo_tpot_s"], row["slo_e2e_s"]) == (0.1, 0.2, 0.3)


@given(st.text(st.characters(codec=None), max_size=2 * MAX_TEXT_CHARS))
def test_cleaned_text_can_be_stored(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned) <= MAX_TEXT_CHARS
    assert "\0" not in cleaned
    cleaned.encode()  # no lone surrogate
    assert clean(cleaned) == cleaned


def test_plain_text_is_left_as_it_is() -> None:
    assert clean("Meta-Llama-3.1-8B: größer 模型") == "Meta-Llama-3.1-8B: größer 模型"
    assert clean(None) is None


def test_a_prompt_keeps_its_lines() -> None:
    assert clean_prompt("a\nb\0c\ud800") == "a\nb\ufffdc?"


def test_a_refused_row_is_brought_into_bounds() -> None:
    row = corrected_row((2**70, -(2**70), math.nan, math.inf, 1.5, True, None, b"x", "a\0b", [1]))
    assert row == (2**63 - 1, 1 - 2**63, None, None, 1.5, True, None, b"x", "a\ufffdb", None)
    assert row[5] is True


def test_ids_are_compared_by_bytes_in_postgresql() -> None:
    from sqlalchemy.dialects import postgresql

    for table in (tables.requests, tables.attempts, tables.explanations):
        column = next(iter(table.primary_key.columns))
        assert column.type.dialect_impl(postgresql.dialect()).collation == "C"


def settled(reasons: Sequence[str | None] = (None,)) -> tuple[RequestRecord, Decided]:
    """A record of one attempt, and the decision for it."""
    instance = Instance("a", "vllm", {})
    candidate = Candidate("a", "m", "m")
    prediction = Prediction(ttft_s_p50=0.5)
    choice = Choice(0, (1.0,), reasons, 0.25)
    decided = Decided("slo", 10.5, (Option(candidate, instance, prediction),), choice, (), ())
    attempt = AttemptState(
        Request("req", 10.0, "slo", ("m",), prompt_tokens=5),
        candidate,
        instance,
        prediction,
        1,
        decided,
        OutputBound(),
        False,
        10.5,
        20,
    )
    attempt.first_token_at, attempt.ended_at, attempt.ended_how = 11.0, 12.0, EndedHow.OK
    attempt.output_tokens, attempt.cost_usd = 7, 0.25
    record = RequestRecord("req", 1000.0, arrived_at=10.0, prompt_tokens=5)
    record.settlement = Settlement(
        Outcome.LATE, None, None, False, attempt, (attempt,), 2.0, 1.0, 0.1, 0.5, True, 0.25, None, 0.0, 12
    )
    return record, decided


def test_a_settlement_is_copied_once() -> None:
    record, decided = settled()
    for _ in range(2):
        record.complete()
    assert (record.outcome, record.attempts, record.e2e_s, record.ttft_s) == (Outcome.LATE, 1, 2.0, 1.0)
    assert (record.model, record.instance, record.prompt_tokens, record.output_tokens) == ("m", "a", 5, 7)
    assert (record.predicted_ttft_s_p50, record.propensity, record.decisions) == (0.5, 0.25, [decided])
    assert [attempt_row(record, attempt) for attempt in record.attempt_states] == [
        ("req", 1, "a", "m", 1000.5, 1001.0, 1002.0, 7, 0.25, "ok", None)
    ]


def test_a_line_of_an_older_version_lacks_the_newest_columns() -> None:
    row = request_row(make_record(3))
    older = REQUEST_COLUMNS.index("error_code") + 1
    entry = from_line(to_line(row[:older], [], None, None))
    assert entry.request == (*row[:older], None, None, None)
    assert len(entry.request) == len(REQUEST_COLUMNS)


def test_a_line_of_a_newer_version_loses_the_columns_that_are_unknown() -> None:
    """PostgreSQL would refuse it in words that do not tell it from a server that is away."""
    record = make_record(3)
    row, attempt = request_row(record), attempt_row(record, record.attempt_states[0])
    entry = from_line(to_line((*row, "new"), [(*attempt, 1, 2)], None, None))
    assert (entry.request, entry.attempts) == (row, [attempt])


def test_reasons_that_fail_cost_an_explanation_and_no_row() -> None:
    def reasons() -> Iterator[str]:
        raise ZeroDivisionError
        yield ""

    record, _ = settled(cast(Any, reasons()))
    entry = entry_of(record)
    assert entry.request[REQUEST_COLUMNS.index("outcome")] == "late"
    assert (len(entry.attempts), entry.explanation) == (1, None)
