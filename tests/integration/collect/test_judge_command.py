"""`headway judge` as a command, with a judge that follows a script."""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.judging import judge as asking
from tests.commands import Headway
from tests.data_files import put
from tests.integration.collect.conftest import Engines
from tests.servers.judge import judging

#: By model: an answer's worth of 1 to 5 stands in its text, its stored grade beside it.
WORTH = {"good": (5, 0.9), "fair": (3, 0.6), "poor": (1, 0.1)}


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    rows = [
        {"prompt": f"What is {n}?", "answer": f"worth {worth}", "model": model, "quality": grade}
        for n in range(4)
        for model, (worth, grade) in WORTH.items()
    ]
    return put(tmp_path / "answers.jsonl", rows)


def worths(message: str) -> list[int]:
    return [int(each) for each in re.findall(r"worth (\d)", message)]


def judge(url: str, answers: Path) -> list[str]:
    return ["judge", "--url", url, "--model", "flow", "--answers", str(answers)]


def test_scores_agree_with_the_stored_grades(answers: Path, tmp_path: Path, headway: Headway) -> None:
    out = tmp_path / "verdicts.jsonl"
    with judging(lambda message, _: f"<score>{worths(message)[0]}</score>") as server:
        shown = headway.json(*judge(server.url, answers), "--out", out)
    assert (shown["judged"], shown["unreadable"], shown["failed"]) == (12, 0, 0)
    found = {model: each["quality"] for model, each in shown["models"].items()}
    assert found == {"good": 1.0, "fair": 0.5, "poor": 0.0}
    seen = [(each["name"], round(each["value"], 3), each["rows"]) for each in shown["agreement"]]
    assert seen == [("Spearman", 1.0, 12), ("mean absolute difference", 0.1, 12), ("AUC", 1.0, 12)]
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 12
    assert {(row["model"], row["quality"]) for row in rows} == {("good", 1.0), ("fair", 0.5), ("poor", 0.0)}


def test_a_file_that_cannot_be_written_costs_no_call(answers: Path, tmp_path: Path, headway: Headway) -> None:
    asked: list[str] = []
    with judging(lambda message, _: asked.append(message) or "<score>3</score>") as server:
        err = headway.err(*judge(server.url, answers), "--out", tmp_path / "no" / "such" / "file", code=2)
    assert "cannot write" in err
    assert asked == []


def test_the_verdicts_do_not_replace_the_answers(answers: Path, headway: Headway) -> None:
    before = answers.read_bytes()
    assert "this is the file of --answers" in headway.err(
        *judge("http://127.0.0.1:1", answers), "--out", answers, code=2
    )
    assert answers.read_bytes() == before


def test_a_judge_that_never_ends_its_answer(
    answers: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while not over.wait(0.02):
                    self.wfile.write(b" ")

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(asking, "_CALL_TIMEOUT_S", 0.3)
    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        shown = headway.out(*judge(url, answers), "--limit", "1", code=1)
        over.set()
        server.shutdown()
    assert "failed: no answer in time (3)" in shown


def test_why_calls_failed_is_told(answers: Path, headway: Headway) -> None:
    assert "failed: no connection (12)" in headway.out(*judge("http://127.0.0.1:1", answers), code=1)


@pytest.mark.parametrize(
    "said",
    [
        [{"type": "text", "text": "<score>3</score>"}],
        b'{"choices": {"0": "<score>3</score>"}}',
        b"[" * 99_999,
    ],
    ids=["parts", "choices by name", "deep"],
)
def test_an_answer_of_another_shape_is_a_failed_call(said: Any, answers: Path, headway: Headway) -> None:
    with judging(lambda _, number: said if number % 2 else "<score>3</score>") as server:
        out = headway.out(*judge(server.url, answers))
    assert "failed: no chat completion (6)" in out


def test_the_server_s_first_error_is_told(answers: Path, headway: Headway) -> None:
    with judging(lambda *_: None) as server:
        out = headway.out(*judge(server.url, answers), code=1)
    assert out.splitlines() == [
        "judge: 0 judged, 0 unreadable, 12 failed",
        "failed: status 400 (12)",
        "the judge's first error: no",
    ]


def test_an_error_that_repeats_the_key_is_shown_without_it(
    answers: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-0123456789")
    with judging(lambda *_: ValueError("Incorrect API key provided: sk-0123456789.")) as server:
        out = headway.out(*judge(server.url, answers), "--api-key-env", "JUDGE_KEY", code=1)
    assert "the judge's first error: Incorrect API key provided: ***." in out


@pytest.mark.parametrize("key", ["sk-0123456789\r", "sk-\u0438"])
def test_a_key_that_no_header_can_have_is_refused(
    key: str, answers: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    error = headway.refusal(*judge("http://127.0.0.1:1", answers), "--api-key-env", "JUDGE_KEY")
    assert "--api-key-env JUDGE_KEY: its key has a line break, or a character that is not ASCII" in error


def test_an_error_that_repeats_the_question_is_not_shown(answers: Path, headway: Headway) -> None:
    with judging(lambda message, _: ValueError(f"no messages with this content: {message!r}")) as server:
        shown = headway.out(*judge(server.url, answers), code=1)
    assert "the judge's first error: (not shown: it repeats the question)" in shown.splitlines()
    assert "What is" not in shown


@pytest.mark.parametrize("said", [None, "I cannot."], ids=["errors", "no verdicts"])
@pytest.mark.parametrize("words", [[], ["--pairwise"]], ids=["scores", "pairs"])
def test_a_judge_without_verdicts_is_not_asked_about_all(
    said: str | None, words: list[str], tmp_path: Path, headway: Headway
) -> None:
    rows = [{"prompt": f"{n}?", "answer": "1", "model": model} for n in range(100) for model in "ab"]
    many, out = put(tmp_path / "many.jsonl", rows), tmp_path / "verdicts.jsonl"
    with judging(
        lambda _, number: "<score>5</score><better>tie</better>" if number <= 20 else said
    ) as server:
        shown = headway.out(*judge(server.url, many), "--out", out, *words, code=1)
        asked = len(server.asked)
    assert "stopped: " in shown
    assert " unasked" in shown
    assert asked <= 20 + 32 + 8  # those under way at the end
    assert len(out.read_text(encoding="utf-8").splitlines()) >= (5 if words else 20)


def test_earlier_verdicts_stay_if_there_are_none(answers: Path, tmp_path: Path, headway: Headway) -> None:
    out = tmp_path / "verdicts.jsonl"
    out.write_text("earlier\n", encoding="utf-8")
    headway.out(*judge("http://127.0.0.1:1", answers), "--out", out, code=1)
    assert out.read_text(encoding="utf-8") == "earlier\n"


def test_pairs_are_asked_in_both_orders(answers: Path, headway: Headway) -> None:
    def script(message: str, _: int) -> str:
        first, second = worths(message)
        return f"<better>{'A' if first > second else 'B'}</better>"

    with judging(script) as server:
        shown = headway.json(*judge(server.url, answers), "--pairwise")
    assert (shown["judged"], shown["swayed"]) == (12, 0)
    found = {model: each["wins"] for model, each in shown["models"].items()}
    assert found == {"good": 1.0, "fair": 0.5, "poor": 0.0}
    assert [(each["name"], each["value"]) for each in shown["agreement"]] == [("share that agrees", 1.0)]
    asked = [tuple(worths(body["messages"][0]["content"])) for body in server.asked]
    assert len(asked) == 24
    assert sorted(asked) == sorted(tuple(reversed(each)) for each in asked)


def test_a_judge_that_prefers_a_place_gives_ties(answers: Path, headway: Headway) -> None:
    with judging(lambda *_: "<better>A</better>") as server:
        shown = headway.out(
            *judge(server.url, answers), "--pairwise", "--limit", "2", "--models", "good,poor"
        )
    assert shown.splitlines()[0] == "judge: 2 judged, 0 unreadable, 0 failed, 2 swayed"
    assert "share that agrees, with stored grades: 0.500 [0.500, 0.500] of 2" in shown


@pytest.mark.parametrize("words", [[], ["--pairwise"]], ids=["scores", "pairs"])
def test_an_engine_that_returns_nonsense(
    engines: Engines, answers: Path, words: list[str], headway: Headway
) -> None:
    url = engines.vllm("a").url
    shown = headway.json(*judge(url, answers), "--model", "up/llama-3.1-8b", *words, code=1)
    assert (shown["judged"], shown["unreadable"], shown["failed"]) == (0, 12, 0)
    assert shown["agreement"] == []


def test_a_judge_that_fails(answers: Path, headway: Headway) -> None:
    with judging(lambda _, number: None if number % 2 else "<score>3</score>") as server:
        shown = headway(*judge(server.url, answers))
    assert shown.code == 0
    assert shown.out.startswith("judge: 6 judged, 0 unreadable, 6 failed\n")
    assert "What is" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"--url": "localhost"}, "--url localhost: expected http://HOST[:PORT]"),
        ({"--api-key-env": "HEADWAY_NO_KEY"}, "--api-key-env HEADWAY_NO_KEY: that variable is not set"),
        ({"--models": "good", "--pairwise": None}, "no prompt has two answers"),
        ({"--models": "other"}, "there is no answer in it of these models"),
        ({"--answers": "missing.jsonl"}, "cannot read missing.jsonl"),
    ],
)
def test_bad_input_is_one_line(answers: Path, given: dict[str, Any], error: str, headway: Headway) -> None:
    options = {"--url": "http://127.0.0.1:1", "--model": "flow", "--answers": str(answers)} | given
    words = [word for option, value in options.items() for word in (option, value) if word is not None]
    assert error in headway.refusal("judge", *words)
