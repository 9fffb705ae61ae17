"""The scanner of OpenAI-shaped event streams."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.scanning import SseScanner
from backends.sse_events import objects
from router.core.errors import UpstreamError, UpstreamRejected
from router.core.interfaces import Batch

DONE = b"data: [DONE]\n\n"


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return data(
        {"id": "c1", "object": "chat.completion.chunk", "model": "engine", "choices": [choice], **more}
    )


def data(payload: Any) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def text(content: str, finish: str | None = None) -> bytes:
    return event({"content": content}, finish)


ROLE = event({"role": "assistant", "content": ""})
COUNTS = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
USAGE = data({"id": "c1", "model": "engine", "choices": [], "usage": COUNTS})


class Result:
    """What a whole stream gave, however it was cut."""

    def __init__(self, pieces: Iterable[bytes], **settings: Any) -> None:
        self.scanner = SseScanner("fleet", **settings)
        self.data = b""
        self.tokens = 0
        self.usage: Any = None
        self.finish: str | None = None
        self.batches: list[Batch] = []
        for piece in pieces:
            if self.scanner.done or self.scanner.failure is not None:
                break
            batch = self.scanner.feed(piece)
            if batch is not None:
                self.batches.append(batch)
                self.data += batch.data
                self.tokens += batch.tokens
                self.usage = batch.usage or self.usage
                self.finish = batch.finish_reason or self.finish
        self.error = None if self.scanner.failure is None else str(self.scanner.failure)

    def summary(self) -> tuple[object, ...]:
        done = self.scanner.done
        return self.data, self.tokens, self.usage, self.finish, done, self.error


STREAM = [ROLE, text("Hel"), text('"lo"\n\ndata: [DONE]\n\n'), text("", "stop"), USAGE, DONE]


def test_ordinary_stream() -> None:
    result = Result(STREAM)
    assert result.data == b"".join(STREAM[:4]).replace(b'"model":"engine"', b'"model":"fleet"')
    assert (result.tokens, result.finish, result.usage) == (2, "stop", COUNTS)
    assert result.scanner.done
    assert result.error is None


@pytest.mark.parametrize("blank", [b"\n", b"\n\n", b"\n\n\n", b"\r\n", b"\n\r\n\n"])
def test_blank_lines_between_events_say_nothing(blank: bytes) -> None:
    """An odd number of line ends too, wherever the read ends."""
    stream = text("a") + blank + text("a") + text("b") + blank + text("c") + blank
    for cut in range(len(stream) + 1):
        result = Result([text("a"), stream[:cut], stream[cut:], DONE])
        assert (result.tokens, result.error, result.scanner.done) == (5, None, True)
        assert all(batch.data.endswith(b"}\n\n") for batch in result.batches)  # and no line end more


@pytest.mark.parametrize("stream", [STREAM, [text("all", "stop"), DONE]])
def test_a_byte_order_mark_before_the_first_event_says_nothing(stream: list[bytes]) -> None:
    marked = b"\xef\xbb\xbf" + b"".join(stream)
    for pieces in ([marked], [marked[at : at + 1] for at in range(len(marked))]):
        assert Result(pieces).summary() == Result(stream).summary()


def test_the_role_chunk_is_no_token() -> None:
    scanner = SseScanner("fleet")
    assert (scanner.feed(ROLE).tokens, scanner.started) == (0, False)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning": "x"},
        {"reasoning_content": "x", "content": None},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
    ],
)
def test_first_tokens(delta: dict[str, Any]) -> None:
    result = Result([ROLE, event(delta), DONE])
    assert result.tokens == 1
    assert result.scanner.started


def test_a_completion_s_text_is_a_token() -> None:
    first = data({"model": "engine", "choices": [{"index": 0, "text": "", "finish_reason": None}]})
    second = data({"model": "engine", "choices": [{"index": 0, "text": "x", "finish_reason": None}]})
    result = Result([first, second, second, second + second, DONE])
    assert [batch.tokens for batch in result.batches] == [0, 1, 1, 2]


def test_the_model_s_name_in_content_stays() -> None:
    tricky = text('"model":"engine"')
    result = Result([text("a"), tricky, tricky + tricky, DONE])
    inside = b'\\"model\\":\\"engine\\"'
    assert result.data.count(inside) == 3
    assert result.data.count(b'"model":"fleet"') == 4


def test_a_model_name_with_spaces_in_the_json() -> None:
    spaced = text("a").replace(b'":', b'": ').replace(b',"', b', "')
    result = Result([spaced, spaced, spaced + spaced, DONE])
    assert result.data.count(b'"model":"fleet"') == 4
    assert b"engine" not in result.data
    assert result.tokens == 4


def test_json_written_in_two_ways() -> None:
    spaced = text("a").replace(b'":', b'": ')
    result = Result([spaced, spaced, text(""), spaced, text("b"), text("c"), spaced + spaced, DONE])
    assert result.data.count(b'"model":"fleet"') == 8
    assert result.tokens == 7


def test_usage_on_every_chunk_is_passed_on_and_kept() -> None:
    def counted(n: int, finish: str | None = None) -> bytes:
        return event({"content": "x"}, finish, usage={"prompt_tokens": 5, "completion_tokens": n})

    result = Result([counted(1), counted(2), counted(3, "stop"), DONE])
    assert result.usage == {"prompt_tokens": 5, "completion_tokens": 3}
    assert result.data.count(b'"usage"') == 3
    assert result.tokens == 3


def test_the_model_s_name_is_changed_also_after_an_event_without_its_usage() -> None:
    counted = event({"content": "x"}, usage=COUNTS)
    result = Result([counted, text("a"), text("b"), DONE], hides_usage=True)
    assert [json["model"] for json in objects(result.data)] == ["fleet"] * 3
    assert b"usage" not in result.data


def test_usage_of_zeros_is_unknown() -> None:
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    result = Result([event({"content": "x"}, None, usage=zero), event({}, "stop", usage=zero), DONE])
    assert result.usage is None


@pytest.mark.parametrize("counts", [dict.fromkeys(COUNTS, 0), {"prompt_tokens": "many"}, {}, []])
def test_usage_only_event_is_not_passed_on_whatever_it_counts(counts: Any) -> None:
    wrong = data({"id": "c1", "model": "fleet", "choices": [], "usage": counts})
    unknown = data({"id": "c1", "model": "fleet", "choices": [], "usage": None})
    result = Result([unknown, text("a"), wrong, DONE])
    assert list(objects(result.data)) == list(objects(unknown + text("a").replace(b"engine", b"fleet")))
    assert result.usage is None


def test_usage_from_llama_server_s_timings() -> None:
    last = event({}, "stop", timings={"cache_n": 4, "prompt_n": 6, "predicted_n": 2})
    result = Result([text("a"), text("b"), last, DONE])
    assert result.usage == {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}


#: As llama-server ends each of two choices of a chat, and of a completion of two prompts (shortened).
OF_EACH_CHAT = [
    (
        b'data: {"choices":[{"finish_reason":"length","index":%d,"delta":{}}],"model":"engine"}\n\n'
        b'data: {"choices":[],"model":"engine","object":"chat.completion.chunk","usage":{"completion_tokens":%d,'
        b'"prompt_tokens":25,"total_tokens":%d},"timings":{"cache_n":0,"prompt_n":25,"predicted_n":%d}}\n\n'
    )
    % (choice, made, 25 + made, made)
    for choice, made in ((0, 3), (1, 2))
]
OF_EACH_PROMPT = [
    (
        b'data: {"choices":[{"text":"","index":%d,"logprobs":null,"finish_reason":"length"}],"model":"engine",'
        b'"object":"text_completion","usage":{"completion_tokens":3,"prompt_tokens":%d,"total_tokens":%d},'
        b'"timings":{"cache_n":3,"prompt_n":%d,"predicted_n":3}}\n\n'
    )
    % (choice, prompt, prompt + 3, prompt - 3)
    for choice, prompt in ((0, 4), (1, 5))
]


@pytest.mark.parametrize(
    ("ends", "prompts", "usage"),
    [
        (OF_EACH_CHAT, 1, {"prompt_tokens": 25, "completion_tokens": 5, "total_tokens": 30}),
        (OF_EACH_PROMPT, 2, {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}),
    ],
)
def test_llama_server_s_usage_of_each_choice_is_added_up(
    ends: list[bytes], prompts: int, usage: dict[str, int]
) -> None:
    first = event({"content": "x"}, timings={"prompt_n": 6, "predicted_n": 1})
    result = Result([first, *ends, DONE], choices=2, prompts=prompts)
    assert (result.usage, result.finish) == (usage, "length")
    assert [batch.usage for batch in result.batches[:-1]] == [None, None]


def test_timings_in_every_event_are_all_read() -> None:
    """A client may leave at any of them."""
    told = [event({"content": "x"}, timings={"prompt_n": 6, "predicted_n": n}) for n in range(1, 5)]
    assert Result(told).usage == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}


def test_comments_are_left_out() -> None:
    result = Result([b": ping\n\n", text("a"), b": ping\n\n", text("b") + b":\n\n" + text("c"), DONE])
    assert result.data == (text("a") + text("b") + text("c")).replace(b"engine", b"fleet")
    assert result.tokens == 3


@pytest.mark.parametrize(
    "nothing",
    [b"data:\n\n", b"data: \n\n", b"event: ping\ndata:\n\n", b"retry: 1000\n\n", b"data: null\n\n"],
)
def test_events_without_data_are_left_out(nothing: bytes) -> None:
    result = Result([nothing + text("a"), nothing, text("b") + nothing + text("c", "stop"), nothing + DONE])
    assert result.data == (text("a") + text("b") + text("c", "stop")).replace(b"engine", b"fleet")
    assert (result.tokens, result.scanner.done) == (3, True)


def test_several_choices_are_counted_one_by_one() -> None:
    both = data(
        {
            "model": "fleet",
            "choices": [
                {"index": 0, "delta": {"content": "a"}, "finish_reason": None},
                {"index": 1, "delta": {"content": "b"}, "finish_reason": None},
            ],
        }
    )
    error = data({"error": {"message": "m", "code": 500}})
    result = Result([both, both + error], choices=2)
    assert result.tokens == 2
    assert result.error == "the engine answered 500"


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "secret prompt", "type": "InternalServerError", "code": 500}},
        {"error": "secret prompt"},
        {"error": {"message": "secret prompt", "code": "server_error"}},
    ],
)
def test_an_error_event_fails_after_what_came_before(error: Any) -> None:
    result = Result([text("a") + text("b") + data(error) + DONE])
    assert result.tokens == 2
    assert isinstance(result.scanner.failure, UpstreamError)
    assert not isinstance(result.scanner.failure, UpstreamRejected)
    assert not result.scanner.done
    assert "secret" not in str(result.scanner.failure)


def test_an_answer_that_its_engine_stopped_fails_after_what_came_before() -> None:
    result = Result([text("a") + text("b", "abort") + USAGE + DONE])
    assert (result.tokens, result.error) == (1, "the engine stopped in the middle of its answer")
    assert b"abort" not in result.data
    assert not result.scanner.done


def test_a_request_error_before_the_first_token_is_a_refusal() -> None:
    error = {"error": {"message": "bad top_k", "type": "BadRequestError", "param": "top_k", "code": 400}}
    refused = Result([ROLE, data(error), DONE]).scanner.failure
    assert isinstance(refused, UpstreamRejected)
    assert (str(refused), refused.param, refused.status) == ("bad top_k", "top_k", 400)
    assert not isinstance(Result([text("a"), data(error)]).scanner.failure, UpstreamRejected)


def test_llama_server_s_error_field() -> None:
    result = Result([b'error: {"code":503,"message":"secret","type":"unavailable_error"}\n\n'])
    assert result.error == "the engine answered 503 (unavailable_error)"


@pytest.mark.parametrize("junk", [b"data: {oops\n\n", b"data: 3\n\n", b"data: <html>\n\n"])
def test_an_event_that_is_no_object_fails(junk: bytes) -> None:
    assert Result([ROLE, junk]).error == "the engine sent an event that is not a JSON object"


def test_a_giant_event_fails() -> None:
    pieces = [b"data: " + b"x" * 600, b"x" * 600]
    assert Result(pieces, max_event_bytes=1000).error == "the engine sent an event that is too large"


def test_nothing_is_passed_on_before_it_is_whole() -> None:
    scanner = SseScanner("fleet")
    whole = text("abc")
    for i in range(len(whole) - 1):
        assert scanner.feed(whole[i : i + 1]) is None
    batch = scanner.feed(whole[-1:])
    assert batch is not None


CONTENTS = st.text(max_size=12) | st.sampled_from(
    ['"finish_reason":null', "\n\n", "\r\n\r\n", '"usage":{', '{"error":1}', "data: [DONE]", '"":""']
)
#: Events that end with their usage, and some that only seem to.
COUNTED = [
    event({"content": "u"}, None, usage=COUNTS),
    event({"content": 'ü, "quoted"'}, None, usage=COUNTS | {"completion_tokens": 4}),
    event({"content": "u"}, None, usage=COUNTS | {"completion_tokens": 5, "details": {"cached": 1}}),
    event({"content": "u"}, None, usage={"prompt_tokens": 0, "completion_tokens": 0}),
    event({"content": "u"}, None, usage=COUNTS, more={}),
    event({"content": "u"}, None, more={"usage": COUNTS}),
    event({"content": ""}, None, usage=COUNTS),
    event({"content": "u"}, "stop", usage=COUNTS),
]
EVENTS = st.one_of(
    CONTENTS.map(text),
    CONTENTS.map(lambda s: event({"reasoning": s})),
    st.sampled_from(
        [
            ROLE,
            USAGE,
            event({}),
            event({"content": None}),
            text("end", "stop"),
            event({}, "length"),
            b": ping\n\n",
            b"event: message\n" + text("named"),
            text("x").replace(b'":', b'": '),
            *COUNTED,
            *COUNTED[:3],
            text("zürich").replace(b"c1", b"c2"),
        ]
    ),
)
ENDS = st.sampled_from(
    [b"", DONE, data({"error": {"message": "m", "code": 503}}), b"data: {bad\n\n", text("cut")[:-9]]
)


@given(events=st.lists(EVENTS, max_size=8), end=ENDS, crlf=st.booleans(), cuts=st.data())
def test_the_outcome_does_not_depend_on_the_reads(
    events: list[bytes], end: bytes, crlf: bool, cuts: st.DataObject
) -> None:
    stream = b"".join(events) + end
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    places = cuts.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    edges = [0, *places, len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges) if a < b]
    one_by_one = [stream[i : i + 1] for i in range(len(stream))]
    whole = Result([stream] if stream else []).summary()
    assert Result(pieces).summary() == whole
    assert Result(one_by_one).summary() == whole
    assert Result([e.replace(b"\n", b"\r\n") if crlf else e for e in [*events, end] if e]).summary() == whole


def test_an_event_written_in_another_way_between_two_alike() -> None:
    spaced = text("x").replace(b'":', b'": ')
    told = Result([spaced + event({}) + spaced]).summary()
    assert told == Result([spaced, event({}), spaced]).summary()
    assert b"engine" not in told[0]


@given(events=st.lists(EVENTS, max_size=8))
def test_the_text_arrives_unchanged(events: list[bytes]) -> None:
    def texts(stream: bytes) -> list[Any]:
        payloads = [orjson.loads(e.partition(b"data: ")[2]) for e in stream.split(b"\n\n") if b"data: {" in e]
        return [payload["choices"] for payload in payloads if payload["choices"] != []]

    result = Result([*events, DONE])
    assert texts(result.data) == texts(b"".join(events))
    assert b'"model":"engine"' not in result.data.replace(b": ", b":")


@pytest.mark.parametrize("reasons", [("length", "stop"), ("stop", "length"), ("length", "tool_calls")])
@pytest.mark.parametrize("one_event", [True, False])
def test_of_choices_that_end_in_any_order_a_cut_one_is_told(
    reasons: tuple[str, str], one_event: bool
) -> None:
    ends = [{"index": at, "delta": {}, "finish_reason": reason} for at, reason in enumerate(reasons)]
    parts = [ends] if one_event else [[end] for end in ends]
    events = [data({"model": "m", "choices": part}) for part in parts]
    batch = SseScanner("m", choices=2).feed(b"".join(events))
    assert batch.finish_reason == "length"
    assert batch.data == b"".join(events)
    scanner = SseScanner("m", choices=2)
    told = [found.finish_reason for found in map(scanner.feed, events) if found is not None]
    assert told[-1] == "length"


def test_bytes_that_are_not_utf_8_are_replaced_however_the_stream_was_cut() -> None:
    events = [text(each).replace(b"ODD", b"\xff\xe4\xbd") for each in ("你", "ODD", "aODDb", "好", "ODD")]
    stream = b"".join([ROLE, *events, DONE])
    wanted = stream.removesuffix(DONE).decode("utf-8", "replace").replace('"engine"', '"fleet"').encode()
    assert b"\xef\xbf\xbd" in wanted
    for cut in range(len(stream) + 1):
        result = Result([stream[:cut], stream[cut:]])
        assert (result.data, result.tokens, result.scanner.failure) == (wanted, 5, None)
    assert Result([bytes([byte]) for byte in stream]).data == wanted
