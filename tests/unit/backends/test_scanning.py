"""Compiled reading of a stream against Python's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import assemble, scanning, sse, sse_events
from router.core.errors import UpstreamError

compiled = pytest.mark.skipif(scanning.WHY_NOT_NATIVE is not None, reason=scanning.description())

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "engine"}
COUNTS = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def event(payload: Any) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def chunk(delta: Any, finish: Any = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({**HEAD, "choices": [choice], **more})


def text(content: Any) -> bytes:
    return chunk({"content": content})


ROLE = chunk({"role": "assistant", "content": ""})
TOKEN = text("word")
USAGE = event({**HEAD, "choices": [], "usage": COUNTS})
DONE = b"data: [DONE]\n\n"
#: Everything that ends, breaks or imitates a run of events that are alike.
EVENTS = [
    ROLE, TOKEN, TOKEN, TOKEN, text("x"), text("a longer text"), text('with "quotes"'), text("back\\slash"), text("äöü €"),
    text("line\nend"), text(""), text(None), text(5), chunk({}), chunk({"content": "x"}, "stop"), chunk({"content": ""}, "length"),
    chunk({"reasoning": "because"}), chunk({"content": "x", "reasoning": "y"}), chunk({"refusal": "no"}), chunk("odd"), chunk(None),
    chunk({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{"}}]}), chunk({"content": "x"}, 5),
    event({**HEAD, "choices": [{"index": 0, "text": "word", "finish_reason": None}]}),
    event({**HEAD, "choices": [{"index": i, "delta": {"content": "w"}, "finish_reason": None} for i in (0, 1)]}),
    chunk({"content": "x"}, usage=COUNTS), chunk({"content": "y"}, usage=COUNTS), chunk({"content": "x"}, usage=5), USAGE,
    chunk({"content": "x"}, usage=COUNTS).replace(b"}}\n", b",}}\n"), chunk({"content": "x"}, more={"usage": COUNTS}), event({**HEAD, "timings": {"predicted_n": 3}}),
    event({"error": {"message": "no", "code": 500}}), event([1]), event({"choices": 5}), DONE, b"data: {\n\n", b": a comment\n\n",
    b"\n", b"\r\n", b"\n\n", TOKEN.replace(b"\n", b"\r\n"), TOKEN.replace(b'":', b'": '), TOKEN.replace(b"word", b"a\nb"),
    TOKEN.replace(b"word", b'a\n\ndata: {"x":"'), TOKEN.replace(b"word", b"bad \\x escape"), TOKEN[:-1], TOKEN[:-2], TOKEN[:40],
    b"event: x\n" + TOKEN, b"data: " + TOKEN, b"\x00", b"\xff\xfe", b'"', b"data: ",
]  # fmt: skip


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    at = sorted({place % (len(stream) + 1) for place in places})
    return [stream[a:b] for a, b in zip([0, *at], [*at, len(stream)], strict=True) if a < b]


def read(
    scanner_of: Any,
    assembler_of: Any,
    pieces: list[bytes],
    choices: int,
    *,
    collected: bool,
    event_format: Any = None,
) -> Any:
    """All that can be seen of how a stream is read: each batch, the end, the answer."""
    assembler = assembler_of("chat")
    collector = assembler if collected else None
    scanner = scanner_of(
        "fleet", choices=choices, collector=collector, event_format=event_format, max_event_bytes=2000
    )
    seen: list[Any] = []
    try:
        for piece in pieces:
            if scanner.done or scanner.failure is not None:
                break
            batch = scanner.feed(piece)
            seen.append((batch, scanner.started))
            if batch is not None and not collected:
                assembler.feed(batch.data)
        failure = scanner.failure
        seen += [scanner.done, type(failure), str(failure), assembler.result()]
    except UpstreamError as error:
        seen.append((type(error), str(error)))
    except Exception as error:  # noqa: BLE001 (what a wrong type raises differs in its kind; the attempt fails either way)
        seen.append(Exception if isinstance(error, TypeError | AttributeError) else type(error))
    return seen


def assert_alike(stream: bytes, places: Iterable[int], choices: int, *, collected: bool) -> None:
    pieces = cut(stream, places)
    ours = read(scanning.SseScanner, scanning.Assembler, pieces, choices, collected=collected)
    python = read(sse.SseScanner, assemble.Assembler, pieces, choices, collected=collected)
    assert ours == python


PLACES = st.lists(st.integers(0, 1 << 14), max_size=8)


@compiled
@given(st.lists(st.sampled_from(EVENTS), max_size=14), PLACES, st.sampled_from([1, 1, 1, 2]), st.booleans())
def test_streams_are_read_as_python_reads_them(
    events: list[bytes], places: list[int], choices: int, collected: bool
) -> None:
    assert_alike(b"".join([ROLE, TOKEN, *events]), places, choices, collected=collected)


@compiled
@given(st.lists(st.sampled_from(EVENTS) | st.binary(max_size=9), max_size=9), PLACES, st.booleans())
def test_any_bytes_are_read_as_python_reads_them(
    parts: list[bytes], places: list[int], collected: bool
) -> None:
    assert_alike(b"".join(parts), places, 1, collected=collected)


@compiled
@given(
    st.lists(st.text(max_size=6), max_size=12),
    st.integers(0, 4000),
    st.binary(min_size=1, max_size=3),
    PLACES,
)
def test_a_broken_byte_is_read_as_python_reads_it(
    texts: list[str], place: int, broken: bytes, places: list[int]
) -> None:
    stream = b"".join([ROLE, *map(text, texts), chunk({}, "stop"), USAGE, DONE])
    at = place % len(stream)
    for collected in (False, True):
        assert_alike(stream[:at] + broken + stream[at + 1 :], places, 1, collected=collected)


#: First events of answers, texts, and what an engine may write around them.
STARTS = [
    {"role": "assistant", "content": ""},
    {"role": "tool", "content": ""},
    {"content": "x"},
    {"reasoning": "x"},
    {},
]
AROUND: list[dict[str, Any]] = [
    {}, {"created": 2}, {"fingerprint": "g"}, {"usage": None}, {"more": 1}, {"choices_before": []}, {"prompt_logprobs": None},
]  # fmt: skip
IN_CHOICE: list[dict[str, Any]] = [{}, {"stop_reason": None}, {"more": 1}, {"index": 1}, {"matched": ""}]
IN_DELTA: list[dict[str, Any]] = [
    {}, {"role": "assistant"}, {"role": "tool"}, {"reasoning": ""}, {"reasoning": None}, {"tool_calls": []},
]  # fmt: skip


def written(
    identity: str, deltas: list[dict[str, Any]], around: Any, in_choice: Any, in_delta: Any
) -> list[bytes]:
    """The events of an answer."""
    events = [
        event({**HEAD, "id": identity, "fingerprint": "f", "choices": [{"index": 0, "delta": delta, "logprobs": None, **more, "finish_reason": None}], **outside})
        for delta, more, outside in [
            (deltas[0], {}, {}),
            *(({**in_delta, **delta}, in_choice, around) for delta in deltas[1:]),
        ]
    ]  # fmt: skip
    return [*events, chunk({}, "stop").replace(b"c1", identity.encode()), DONE]


ANSWERS = st.tuples(
    st.tuples(st.sampled_from(STARTS), st.lists(st.text(max_size=5), max_size=4)).map(
        lambda drawn: [drawn[0], *({"content": text} for text in drawn[1])]
    ),
    st.sampled_from(AROUND),
    st.sampled_from(IN_CHOICE),
    st.sampled_from(IN_DELTA),
)


@given(st.lists(ANSWERS, min_size=2, max_size=4), PLACES)
def test_what_other_events_tell_of_the_format_changes_nothing(answers: list[Any], places: list[int]) -> None:
    """Neither what is passed on, nor the answer, in which all members of all events are, read or not."""
    for scanner, assembler, format_of in (
        (sse.SseScanner, assemble.Assembler, sse_events.EventFormat),
        (scanning.SseScanner, scanning.Assembler, scanning.EventFormat),
    ):
        formats = {collected: format_of() for collected in (False, True)}
        for number, answer in enumerate(answers):
            events = written(f"c{number}", *answer)
            pieces = cut(b"".join(events), places)
            whole = assembler("chat")
            for each in events[:-1]:
                whole.take_event(orjson.loads(each[6:]), len(each))
            expected = whole.result()
            for collected, known in formats.items():
                alone = read(scanner, assembler, pieces, 1, collected=collected)
                after_others = read(scanner, assembler, pieces, 1, collected=collected, event_format=known)
                assert after_others == alone
                assert {**alone[-1], "model": "engine"} == expected


@pytest.mark.parametrize("collected", [False, True])
def test_a_known_format_spares_parsing(collected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the second answer only the first and the last events are parsed."""
    parsed: list[bytes] = []

    def object_of(data: bytes) -> dict[str, Any]:
        parsed.append(data)
        return sse_events.object_of(data)

    monkeypatch.setattr(sse, "object_of", object_of)
    known = sse_events.EventFormat()
    for number in range(2):
        parsed.clear()
        stream = [ROLE.replace(b"c1", b"c%d" % number), *(each.replace(b"c1", b"c%d" % number) for each in (TOKEN, text('say "x\\"'), TOKEN)), USAGE, DONE]  # fmt: skip
        read(sse.SseScanner, assemble.Assembler, stream, 1, collected=collected, event_format=known)
        assert len(parsed) == 3 - number


@compiled
def test_a_text_of_another_type_is_refused() -> None:
    scanner = scanning.SseScanner("fleet", collector=scanning.Assembler("chat"))
    for wrong in ("text", bytearray(TOKEN), None):
        with pytest.raises(TypeError):
            scanner.feed(wrong)  # type: ignore[arg-type]
