"""The scanner of Ollama's JSON lines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.ndjson import NdjsonScanner
from router.core.errors import UpstreamRejected
from router.core.interfaces import Call
from router.core.types import Candidate


def line(**payload: Any) -> bytes:
    return orjson.dumps({"model": "engine", **payload}) + b"\n"


def message(**fields: Any) -> bytes:
    return line(message={"role": "assistant", "content": "", **fields}, done=False)


def done(reason: str | None = "stop", **fields: Any) -> bytes:
    ended = {} if reason is None else {"done_reason": reason}
    return line(message={"role": "assistant", "content": ""}, done=True, **ended, **fields)


def scan(
    pieces: list[bytes], api: str = "chat"
) -> tuple[list[dict[str, Any]], int, Any, str | None, NdjsonScanner]:
    """Choices, tokens, usage and finish reason of a whole stream."""
    scanner = NdjsonScanner(Call(api, {}, Candidate("i", "fleet", "engine"), "r1"), 5)
    data, tokens, usage, finish = b"", 0, None, None
    for piece in pieces:
        if scanner.done or scanner.failure is not None:
            break
        batch = scanner.feed(piece)
        if batch is not None:
            data += batch.data
            tokens += batch.tokens
            usage = batch.usage or usage
            finish = batch.finish_reason or finish
    events = [orjson.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]
    assert all((event["model"], event["created"]) == ("fleet", 5) for event in events)
    return [event["choices"][0] for event in events], tokens, usage, finish, scanner


def test_a_chat() -> None:
    pieces = [message(thinking="hm"), message(content="a"), done(prompt_eval_count=4, eval_count=2)]
    choices, tokens, usage, finish, scanner = scan(pieces)
    found = [choice["delta"] for choice in choices]
    assert found == [{"role": "assistant", "reasoning": "hm"}, {"content": "a"}, {}]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert (tokens, finish, scanner.done) == (2, "stop", True)
    assert usage == {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}


def test_tool_calls() -> None:
    made = {"function": {"name": "f", "arguments": {"a": [1]}}}
    choices, tokens, _, finish, _ = scan([message(tool_calls=[made]), message(tool_calls=[made]), done()])
    first, second = (choice["delta"]["tool_calls"][0] for choice in choices[:2])
    assert first["function"] == {"name": "f", "arguments": '{"a":[1]}'}
    assert (first["index"], second["index"]) == (0, 1)
    assert first["id"] != second["id"]
    assert (tokens, finish) == (2, "tool_calls")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "stop"), ("length", "length"), ("load", "stop"), ("unload", "stop"), (None, "stop")],
)
def test_an_empty_answer(reason: str | None, expected: str) -> None:
    choices, tokens, usage, finish, _ = scan([done(reason)])
    assert choices[0]["delta"] == {"role": "assistant"}
    assert (tokens, finish, usage["completion_tokens"]) == (0, expected, 0)


def test_a_last_line_with_text() -> None:
    choices, tokens, _, _, _ = scan([line(response="x", done=True, done_reason="length")], "completions")
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [("x", None), ("", "length")]
    assert tokens == 1


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    choices, _, _, _, scanner = scan([message(content="ODD").replace(b"ODD", b"a\xff\xe4\xbd"), done()])
    assert (choices[0]["delta"]["content"], scanner.done) == ("a\ufffd\ufffd", True)


def test_logprobs() -> None:
    made = [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.0}]}]
    (chat, _), *_ = scan([line(message={"content": "a"}, logprobs=made, done=False), done()])
    assert chat["logprobs"] == {"content": [{"bytes": None} | made[0]], "refusal": None}
    (text, _), *_ = scan([line(response="a", logprobs=made, done=False), line(done=True)], "completions")
    assert text["logprobs"] == {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"b": -1.0}]}


def test_log_probabilities_have_the_members_that_clients_read() -> None:
    made = [{"token": "a", "logprob": 0.0}]
    (chat, _), *_ = scan([line(message={"content": "a"}, logprobs=made, done=False), done()])
    assert chat["logprobs"]["content"] == [{"token": "a", "logprob": 0.0, "bytes": None, "top_logprobs": []}]


def test_errors() -> None:
    refused = scan([b'{"error":"the input exceeds the context length"}\n'])[-1].failure
    assert str(refused) == "the engine reported an error"
    assert not isinstance(refused, UpstreamRejected)
    assert scan([message(content="a"), b"oops\n"])[-1].failure is not None
    assert scan([b"3\n"])[-1].failure is not None
    giant = scan([b"x" * 5_000_000, b"x" * 5_000_000])[-1].failure
    assert str(giant) == "the engine sent a line that is too large"


LINES = st.one_of(
    st.text(max_size=8).map(lambda s: message(content=s)),
    st.text(max_size=8).map(lambda s: message(thinking=s, content=s)),
    st.sampled_from([message(tool_calls=[{"function": {"name": "f"}}]), b"\n", b"  \r\n", line(done=False)]),
)
ENDS = st.sampled_from(
    [b"", done(), done("length", eval_count=3), b'{"error":"x"}\n', b"{bad\n", b'{"done":tr']
)


@given(lines=st.lists(LINES, max_size=8), end=ENDS, cuts=st.data())
def test_the_outcome_does_not_depend_on_the_reads(
    lines: list[bytes], end: bytes, cuts: st.DataObject
) -> None:
    stream = b"".join(lines) + end
    places = cuts.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    pieces = [stream[a:b] for a, b in pairwise([0, *places, len(stream)]) if a < b]
    whole = scan([stream])
    for cut in (pieces, [stream[i : i + 1] for i in range(len(stream))]):
        result = scan(cut)
        assert result[:-1] == whole[:-1]
        assert (result[-1].done, str(result[-1].failure)) == (whole[-1].done, str(whole[-1].failure))
