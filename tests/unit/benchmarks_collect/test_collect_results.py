"""From what was seen to the tables of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.collect.clients import Reply
from benchmarks.collect.drive import Collection, Level, Run, Sent
from benchmarks.collect.engines import Engine
from benchmarks.collect.prompts import Question
from benchmarks.collect.results import summary, to_dataset
from predictors.learned.text import prompt_features
from predictors.training import dataset
from predictors.training.dataset import Dataset
from router.core.types import Candidate, EndedHow, LoadReport

A, B = Question("a").id, Question("b").id
LONG = "A tale of two words. " * 200  # four blocks of 1,024 bytes


def engine(name: str = "e") -> Engine:
    unused: Any = None
    candidates = (Candidate(name, "m", "up/m", family="llama"),)
    return Engine(name, "vllm", candidates, unused, unused, "l4", 2.0, {"m": "m@l4"})


def sent(text: str, at: float, **members: Any) -> Sent:
    values = {
        "first_token_at": at + 0.25,
        "ended_at": at + 1.0,
        "prompt_tokens": 11,
        "output_tokens": 5,
        "finish_reason": "stop",
        "ended_how": EndedHow.OK,
    }
    return Sent(Question(text), 64, at, Reply(**values | members))


def run(*sents: Sent, start: float = 100.0, level: Level | None = None, of: Engine | None = None) -> Run:
    of = of or engine()
    found = Run(of, of.candidates[0], level or Level(rate_per_s=2.0), 1e9 + start, start)
    found.sent = list(sents)
    return found


def made(*runs: Run, **options: Any) -> Dataset:
    settings: dict[str, Any] = {"source": "s", "keep_texts": True, "quality": {}} | options
    return to_dataset(Collection(list(runs)), {"seed": 7}, **settings)


def test_times_are_of_the_run_and_attempts_in_order_of_dispatch() -> None:
    one = run(sent("b", 103.0), sent("a", 101.5))
    one.reports = [(100.5, LoadReport(running=1, waiting=0, kv_usage=0.25))]
    data = made(one)
    seen = [(a.dispatched_s, a.first_token_s, a.ended_s) for a in data.attempts]
    assert seen == [(1.5, 1.75, 2.5), (3.0, 3.25, 4.0)]
    (found,) = data.runs
    assert (found.instance, found.model, found.level) == ("e", "m", "2/s")
    assert (found.hardware, found.speed, found.profile, found.family) == ("l4", 2.0, "m@l4", "llama")
    assert [(s.run, s.at_s, s.running, s.waiting, s.kv_usage) for s in data.states] == [
        (found.id, 0.5, 1, 0, 0.25)
    ]
    assert data.about["sources"] == [{"name": "s", "rows": 2, "seed": 7}]


def test_a_model_answers_a_prompt_once_with_its_first_whole_answer() -> None:
    first = run(
        sent("a", 101.0, ended_how=EndedHow.FAILED, first_token_at=None, output_tokens=None),
        sent("b", 102.0, finish_reason="length", output_tokens=64),
    )
    again = run(sent("a", 201.0, output_tokens=8), sent("b", 202.0), start=200.0)
    other = run(sent("a", 150.0, output_tokens=9), start=150.0, of=engine("f"))
    answers = {each.prompt: each for each in made(again, first, other).answers}
    assert len(answers) == 2
    assert (answers[A].output_tokens, answers[A].capped) == (9, False)
    assert (answers[B].output_tokens, answers[B].capped) == (64, True)
    assert answers[A].at_s == pytest.approx(1e9 + 150.0)


def test_failures_are_kept_with_an_estimate_of_the_prompt() -> None:
    lost = sent(
        "x" * 40,
        101.0,
        ended_how=EndedHow.CANCELLED,
        first_token_at=None,
        prompt_tokens=None,
        output_tokens=None,
    )
    data = made(run(lost))
    (attempt,) = data.attempts
    assert (attempt.ended_how, attempt.first_token_s, attempt.prompt_tokens) == ("cancelled", None, 10)
    assert data.answers == ()


def test_the_prefix_that_a_gateway_would_believe_cached() -> None:
    early, late = sent(LONG, 101.0), sent(LONG, 101.1)  # the second before the first one's first token
    repeated, elsewhere = sent(LONG, 105.0), run(sent(LONG, 106.0), of=engine("f"))
    data = made(run(early, late, repeated), elsewhere)
    tokens = len(LONG) // 4
    assert [each.cached_tokens for each in data.attempts] == [0, 0, tokens, 0]


def test_near_copies_share_a_group() -> None:
    words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    data = made(run(sent(words, 1.0), sent(f"{words} fifteen", 2.0), sent("something else", 3.0)))
    first, second, third = (each.group for each in data.prompts)
    assert first == second != third


def test_texts_can_be_left_out_and_features_stay() -> None:
    (prompt,) = made(run(sent("secret words", 1.0)), keep_texts=False).prompts
    assert prompt.text is None
    assert prompt.features == prompt_features("secret words")


def test_scores_stand_at_the_answers_they_are_of() -> None:
    data = made(run(sent("a", 1.0), sent("b", 2.0)), quality={(A, "m"): 0.75})
    told = {each.prompt: (each.quality, each.quality_kind) for each in data.answers}
    assert told == {A: (0.75, "judged"), B: (None, None)}


def test_what_is_written_can_be_read_and_two_collections_joined(tmp_path: Path) -> None:
    data = made(run(sent("a", 101.0)), run(), run(sent("a", 201.0), start=200.0))
    assert len(data.runs) == 2  # a run in which nothing was sent is none
    dataset.write(data, tmp_path)
    assert dataset.read(tmp_path) == data
    later = made(run(sent("a", 901.0), start=900.0))
    assert len(dataset.joined([data, later]).runs) == 3


def test_the_summary_counts_how_requests_ended() -> None:
    one = run(sent("a", 1.0), sent("b", 2.0, ended_how=EndedHow.FAILED, first_token_at=None))
    (row,) = summary(Collection([one]))
    assert (row["requests"], row["ok"], row["failed"], row["cancelled"]) == (2, 1, 1, 0)
    assert (row["ttft_s_p50"], row["e2e_s_p50"]) == (0.25, 1.0)
