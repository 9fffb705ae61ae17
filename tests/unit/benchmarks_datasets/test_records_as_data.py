"""The gateway's records as training data, from a real SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets import from_store
from benchmarks.datasets.from_store import read_store
from predictors.learned.text import prompt_features
from predictors.training.dataset import DatasetError, State
from router.config import FleetConfig
from router.core.types import Candidate, Considered, Decision, EndedHow, Outcome
from router.store.records import RequestRecord
from tests.records import keep, make_attempt, make_record

NOON = 1_700_000_000.0
ATTEMPT = "req-{:03}"


def record(number: int, at_s: float = 0.0, **fields: Any) -> RequestRecord:
    """A request that `gpu-0` answered in 2 s with 80 tokens; its decision saw a report 0.5 s old."""
    received = NOON + at_s
    loads = ((1, 0, 0, 100, 3, 1, 0.25, 0.5), (0, 0, 0, 0, None, None, None, None))
    considered = tuple(
        Considered(Candidate(f"gpu-{i}", "llama-3.1-8b", "up"), None, None, None) for i in range(2)
    )
    at = {"received_at": received, "arrived_at": 50.0}
    attempt = make_attempt(
        *(1, "gpu-0", "llama-3.1-8b", 50.1),
        first_token_at=50.3,
        ended_at=52.1,
        output_tokens=80,
        ended_how=EndedHow.OK,
    )
    decision = Decision("latency", 50.1, 0, considered, 1.0, loads)
    made = {"attempt_states": [attempt], "decisions": [decision], "prefix": ()}
    names = {"id": ATTEMPT.format(number), "model": "llama-3.1-8b", "instance": "gpu-0"}
    return make_record(number, **(at | made | names | fields))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.sqlite"


def test_attempts_and_states(path: Path) -> None:
    keep(path, [record(0), record(1, 10.0)])
    data = read_store(path)
    (run,) = data.runs
    assert (run.id, run.instance) == ("records/records/gpu-0", "gpu-0")
    assert (run.model, run.family) == ("llama-3.1-8b", "llama")
    assert run.started_at_s == NOON
    first, second = data.attempts
    assert first.dispatched_s == pytest.approx(0.1)
    assert (second.first_token_s, second.ended_s) == (pytest.approx(10.3), pytest.approx(12.1))
    assert (first.prompt_tokens, first.output_tokens) == (120, 80)
    assert (first.ended_how, first.session) == ("ok", "team-a")
    # 0.1 s after the arrival, of a report 0.5 s old.
    assert data.states == (
        State(run.id, pytest.approx(-0.4), 3, 1, 0.25),
        State(run.id, pytest.approx(9.6), 3, 1, 0.25),
    )


def test_a_report_that_many_decisions_saw_is_one_state(path: Path) -> None:
    records = [record(i, 0.2 * i) for i in range(3)]
    for i, each in enumerate(records):
        decision = each.decisions[0]
        seen = (*decision.loads[0][:7], 0.5 + 0.2 * i)
        each.decisions = [decision._replace(loads=(seen, decision.loads[1]))]
    keep(path, records)
    assert [each.at_s for each in read_store(path).states] == [pytest.approx(-0.4)]


def test_losses_stay_as_what_took_longer(path: Path) -> None:
    lost = record(0, outcome=Outcome.EXPIRED_BEFORE_FIRST_TOKEN, output_tokens=0)
    lost.attempt_states = [
        make_attempt(1, "gpu-0", "llama-3.1-8b", 50.0, ended_at=53.0, ended_how=EndedHow.CANCELLED)
    ]
    keep(path, [lost])
    (attempt,) = read_store(path).attempts
    assert (attempt.first_token_s, attempt.ended_s, attempt.output_tokens) == (None, 3.0, None)
    assert attempt.ended_how == "cancelled"


def test_requests_for_several_choices_are_left_out(path: Path) -> None:
    keep(path, [record(0), record(1, 1.0, choices=4)])
    data = read_store(path)
    assert len(data.attempts) == 1
    assert data.about["sources"][0]["skipped"] == {"requests for several choices": 1}


def test_batches_lose_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(path, [record(i, 10.0 * (i // 3)) for i in range(10)], [(ATTEMPT.format(4), 0.5)])
    whole = read_store(path)
    for rows in (1, 2, 5):
        monkeypatch.setattr(from_store, "_BATCH_REQUESTS", rows)
        assert read_store(path) == whole
    assert len(whole.attempts) == 10


def test_a_span_of_time(path: Path) -> None:
    keep(path, [record(i, 10.0 * i) for i in range(5)])
    assert len(read_store(path, since=NOON + 10.0).attempts) == 4
    assert read_store(path, since=NOON + 999.0).attempts == ()


def test_prompts_without_text_and_feedback(path: Path) -> None:
    features = prompt_features("How long is a piece of string?")
    records = [
        record(0),
        record(1, finish_reason="length"),
        record(2, outcome=Outcome.EXPIRED_MID_DECODE),
        record(3, outcome=Outcome.REJECTED_SLO, output_tokens=None, attempt_states=()),
    ]
    for each in records:
        each.features = features
    keep(path, records, judged=[(ATTEMPT.format(0), 0.5), (ATTEMPT.format(0), 1.0)])
    data = read_store(path)
    (prompt,) = data.prompts
    assert (prompt.features, prompt.text, prompt.group) == (features, None, prompt.id)
    found = [(each.output_tokens, each.capped, each.quality) for each in data.answers]
    assert found == [(80, False, 0.75), (80, True, None), (80, True, None)]
    assert data.answers[0].quality_kind == "feedback"
    assert data.answers[0].at_s == NOON
    assert {each.prompt for each in data.attempts} == {prompt.id}


def test_kept_prompts_have_text_and_groups(path: Path) -> None:
    long = " ".join(f"word{i}" for i in range(40))
    texts = [long, long + " please", "Something else"]
    keep(path, [record(i, i, prompt=text) for i, text in enumerate(texts)], keep_prompts=True)
    data = read_store(path)
    assert [each.text for each in data.prompts] == texts
    groups = [each.group for each in data.prompts]
    assert groups[0] == groups[1] == min(data.prompts[0].id, data.prompts[1].id) != groups[2]


def test_prefixes_tell_what_a_cache_should_hold(path: Path) -> None:
    keep(path, [record(0, prefix=(1, 2)), record(1, 1.0, prefix=(1, 2, 3, 4)), record(2, 2.0, prefix=(9,))])
    assert [each.cached_tokens for each in read_store(path).attempts] == [0, 60, 0]


def test_the_fleet_tells_hardware_and_profile(path: Path) -> None:
    keep(path, [record(0)])
    fleet = FleetConfig.model_validate(
        {
            "models": [{"name": "llama-3.1-8b", "family": "my-family"}],
            "instances": [
                {
                    "name": "gpu-0",
                    "kind": "vllm",
                    "url": "http://127.0.0.1:1",
                    "hardware": "a100-80g",
                    "serves": {"llama-3.1-8b": "up"},
                }
            ],
        }
    )
    (run,) = read_store(path, fleet=fleet).runs
    assert (run.hardware, run.profile, run.family, run.kind) == (
        "a100-80g", "llama-3.1-8b@a100-80g", "my-family", "vllm",
    )  # fmt: skip
    assert (run.profile_values or {})["max_seqs"] == 256


def test_rows_that_cannot_be_true_are_counted(path: Path) -> None:
    keep(path, [record(i, i) for i in range(4)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attempts SET started_at = 'soon' WHERE request_id = 'req-000'")
        connection.execute("UPDATE attempts SET ended_at = started_at - 5 WHERE request_id = 'req-001'")
        connection.execute("UPDATE attempts SET first_token_at = 9e999 WHERE request_id = 'req-002'")
        connection.execute("UPDATE explanations SET blob = '{\"v\": 99}' WHERE request_id = 'req-003'")
    connection.close()
    data = read_store(path)
    assert len(data.attempts) == 2
    assert data.about["sources"][0]["skipped"] == {
        "attempts whose times run backwards": 1,
        "attempts without instance, model, time, prompt tokens or end": 1,
        "explanations that cannot be read": 1,
    }
    assert data.attempts[0].first_token_s is None


def test_no_database(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no database"):
        read_store(tmp_path / "nothing.sqlite")
    (tmp_path / "text.sqlite").write_text("this is no database, but it is long enough to look at")
    with pytest.raises(DatasetError):
        read_store(tmp_path / "text.sqlite")
    with pytest.raises(DatasetError, match="unknown database"):
        read_store("mysql://localhost/x")
