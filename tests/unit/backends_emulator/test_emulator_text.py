from __future__ import annotations

import json
import math
import statistics

import pytest

from backends.emulator.answers import shaped_answer, stopped_answer
from backends.emulator.ollama_request import go_duration_s, keep_alive_s
from backends.emulator.openai_fields import Rejected
from backends.emulator.text import (
    Answer,
    chat_text,
    count_tokens,
    drawn_output_tokens,
    embedding,
    length_distribution,
    prefix_hashes,
    requested_output_tokens,
)
from backends.ollama import local_name


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 1), ("abc", 1), ("abcd", 1), ("abcde", 2), ("ääää", 2), ("x" * 400, 100)]
)
def test_a_token_is_four_bytes(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


def test_a_chat_is_its_texts_joined() -> None:
    parts = [{"type": "text", "text": "ef"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    messages = [
        {"role": "system", "content": "abc"},
        {"role": "user", "content": parts},
        {"role": "tool", "content": None},
    ]
    assert chat_text(messages) == "abcef"


def test_prefix_hashes_agree_up_to_the_first_difference() -> None:
    one = prefix_hashes("a" * 128 + "b" * 64 + "tail")
    two = prefix_hashes("a" * 128 + "c" * 64)
    assert len(one) == len(two) == 3
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    assert one[0] != one[1]
    assert prefix_hashes("a" * 63) == ()


def test_lengths_follow_the_documented_distribution() -> None:
    median, sigma = length_distribution("llama-3.1-8b")
    drawn = [drawn_output_tokens(f"question {number}", "llama-3.1-8b") for number in range(4000)]
    assert statistics.median(drawn) == pytest.approx(median, rel=0.06)
    assert statistics.stdev([math.log(length) for length in drawn]) == pytest.approx(sigma, rel=0.06)
    assert drawn == [drawn_output_tokens(f"question {number}", "llama-3.1-8b") for number in range(4000)]
    assert length_distribution("qwen2.5-7b") != (median, sigma)


def test_wished_lengths() -> None:
    assert requested_output_tokens(7, []) == 7
    assert requested_output_tokens({"a": 3, "b": 4}, ["x", "b"]) == 4
    assert requested_output_tokens({"a": 3}, ["x"]) is None
    assert requested_output_tokens(None, ["x"]) is None
    for bad in (0, -1, True, 1.5, "7", {"x": "7"}):
        with pytest.raises(ValueError, match="emulate_output_tokens"):
            requested_output_tokens(bad, ["x"])


def test_answers_say_what_they_are_and_split_anywhere() -> None:
    answer = Answer(12345, 200)
    whole = answer.raw(0, 200)
    assert whole.startswith("Emulated text, not a model's answer:")
    assert b"".join(answer.escaped(at, at + 1) for at in range(200)).decode() == whole
    assert json.loads(b'"' + answer.escaped(0, 200) + b'"') == whole


def test_a_stop_string_cuts_the_text_and_the_tokens() -> None:
    plain = Answer(1, 50).raw(0, 50)
    stop = plain[60:66]
    at = plain.index(stop)
    answer, found = stopped_answer(Answer(1, 50), ["never there", stop])
    assert found == stop
    assert answer.raw(0, answer.tokens) == plain[:at]
    assert 0 < answer.tokens < 50
    assert stopped_answer(Answer(1, 50), ["never there"])[1] is None


def test_json_answers_parse() -> None:
    answer = shaped_answer(5, 20, None)
    assert "words" not in json.loads(answer.raw(0, 20))
    assert json.loads(b'"' + answer.escaped(0, 20) + b'"') == answer.raw(0, 20)
    assert json.loads(shaped_answer(5, 2, None).raw(0, 2)) == {"emulated": ""}


def test_embeddings_are_unit_vectors_of_the_text() -> None:
    vector = embedding("hello", 100, "m")
    assert len(vector) == 100
    assert sum(value * value for value in vector) == pytest.approx(1.0)
    assert vector == embedding("hello", 100, "m")
    assert vector != embedding("hello!", 100, "m")
    assert vector != embedding("hello", 100, "n")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (300, 300.0),
        (0, 0.0),
        (-1, math.inf),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("300ms", 0.3),
        ("-1s", math.inf),
        ("0", 0.0),
    ],
)
def test_keep_alive(given: object, seconds: float | None) -> None:
    assert keep_alive_s(given) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("given", ["300", "", "5 m", "abc", "5x", [], True, {}])
def test_keep_alive_refuses_what_go_refuses(given: object) -> None:
    with pytest.raises(Rejected) as caught:
        keep_alive_s(given)
    assert caught.value.status == 400


def test_go_durations_and_names() -> None:
    with pytest.raises(ValueError, match='missing unit in duration "300"'):
        go_duration_s("300")
    assert local_name("Llama3.2") == "llama3.2:latest"
    assert local_name("reg:5000/a/Model:8B") == "reg:5000/a/model:8b"
    assert local_name("reg:5000/a/model") == "reg:5000/a/model:latest"
