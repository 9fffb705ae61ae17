"""`headway explain`, and what the API says of a request."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from router import explain
from router.core.types import EndedHow
from router.store.database import location, parse_url, sqlite_path
from router.store.queries import Store
from tests.commands import Headway
from tests.records import make_attempt, make_record


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A store with one request that was tried twice."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'records.db'}"
    store = await Store.open(url)
    record = make_record(7, attempts=2)
    record.attempt_states = [
        make_attempt(
            *(1, "gpu-0", "llama", 15.0), ended_at=15.5, ended_how=EndedHow.FAILED, error="connection reset"
        ),
        make_attempt(
            *(2, "gpu-1", "llama", 16.0),
            first_token_at=16.125,
            ended_at=18.5,
            output_tokens=80,
            ended_how=EndedHow.OK,
        ),
    ]
    store.writer.put(record)
    await store.add_feedback(record.id, 0.75, "team-a")
    await store.close()
    return url


def test_it_is_told_in_plain_lines(url: str, headway: Headway) -> None:
    told = headway.out("explain", "req_00000007", "--store", url).splitlines()
    assert told[0] == "request req_00000007, received 2023-11-14 22:13:27.000+00:00"
    assert "requested auto over chat.completions with key team-a, policy latency" in told
    assert "SLO: TTFT 500 ms: met" in told
    assert "outcome: ok" in told
    assert "decision 1 after 500 ms:" in told
    assert "  sent to gpu-1/llama by latency [TTFT 200 ms, cost $0.001000]" in told
    assert "  drawn with probability 0.75" in told
    assert "  next gpu-0/llama: a higher score [TTFT 100 ms, cost $0.001000]" in told
    assert "  not gpu-2/llama: a higher score" in told
    assert "attempt 1: gpu-0/llama, failed after 500 ms, 0 tokens: connection reset" in told
    assert "attempt 2: gpu-1/llama, first token after 125 ms, ok after 2500 ms, 80 tokens" in told
    assert "feedback: quality 0.75" in told


def test_as_json_it_has_the_contracts_members(url: str, headway: Headway) -> None:
    told = headway.json("explain", "req_00000007", "--store", url)
    assert told["request_id"] == told["id"] == "req_00000007"
    assert [attempt["ended_how"] for attempt in told["attempts"]] == ["failed", "ok"]
    assert [candidate["chosen"] for candidate in told["candidates"]] == [False, True, False]
    assert list(told["candidates"][0]) == ["instance", "model", "score", "chosen", "reason", "predicted"]
    assert list(told["candidates"][0]["predicted"]) == [
        *("output_tokens_p50", "output_tokens_p90", "ttft_s_p50", "ttft_s_p95", "e2e_s_p50", "e2e_s_p95"),
        *("quality", "cost_usd", "p_miss"),
    ]
    assert told["decisions"][0]["propensity"] == 0.75


def test_an_explanation_that_cannot_be_read_hides_nothing_else(
    url: str, headway: Headway, caplog: pytest.LogCaptureFixture
) -> None:
    path = sqlite_path(parse_url(url))
    assert path is not None
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE explanations SET blob = substr(blob, 1, 40)")
        connection.commit()
    told = headway.out("explain", "req_00000007", "--store", url).splitlines()
    assert "outcome: ok" in told
    assert "decision 1 after 500 ms:" not in told
    assert caplog.messages == ["the explanation of req_00000007 cannot be read"]


def test_an_unknown_id_is_one_line(url: str, headway: Headway) -> None:
    told = headway.refusal("explain", "req_nothing", "--store", url)
    assert told == f"headway explain: no request 'req_nothing' in {location(parse_url(url))}\n"


def candidate(
    instance: str, score: float | None, reason: str | None, **predicted: float
) -> dict[str, object]:
    return {
        "instance": instance,
        "model": "llama",
        "score": score,
        "chosen": reason is None,
        "reason": reason,
        "predicted": predicted or None,
        "load": None,
    }


def test_why_this_one_and_not_the_next_in_a_few_lines() -> None:
    decision = {
        "policy": "slo",
        "decided_after_s": 0.1,
        "propensity": 1.0,
        "candidates_left_out": 2,
        "candidates": [
            candidate("a100-0", 0.02, None, ttft_s_p50=0.1, e2e_s_p50=1.2, p_miss=0.02, quality=0.6),
            candidate("l4-0", 0.4, "would miss its SLO with probability 0.40"),
            candidate("h100-0", 0.0, "faster than needed", p_miss=0.0),
            *(candidate(f"v100-{n}", None, "unhealthy") for n in range(4)),
        ],
    }
    assert explain.why(decision) == [  # type: ignore[arg-type]
        "sent to a100-0/llama by slo [TTFT 100 ms, E2E 1200 ms, P(miss) 0.02, quality 0.60]",
        "next h100-0/llama: faster than needed [P(miss) 0.00]",
        "not l4-0/llama: would miss its SLO with probability 0.40",
        "not v100-0/llama, v100-1/llama and 2 more: unhealthy",
        "and 2 more",
    ]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (None, "?"),
        (0.0, "$0.000000"),
        (4e-7, "$0.00000040"),
        (1.234e-9, "$0.0000000012"),
        (9.99e-6, "$0.0000100"),
        (0.000012, "$0.000012"),
        (1.5, "$1.500000"),
    ],
)
def test_small_amounts_keep_two_digits(amount: float | None, shown: str) -> None:
    assert explain._usd(amount) == shown
