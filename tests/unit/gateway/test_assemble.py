"""Whole answers put together from streams."""

from __future__ import annotations

import json
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion

from backends.scanning import Assembler, SseScanner
from router.core.errors import UpstreamError
from tests.unit.gateway.chunks import HEAD, chunk, sse, text_chunk


def collected(*reads: bytes, api: Any = "chat") -> dict[str, Any]:
    """The same answer, from the events as an adapter has parsed them."""
    assembler = Assembler(api)
    scanner = SseScanner("llama", collector=assembler)
    for read in reads:
        batch = scanner.feed(read)
        assert batch is None or batch.data == b""
    assert scanner.failure is None
    return assembler.result()


def assembled(*events: bytes, api: Any = "chat") -> dict[str, Any]:
    assembler = Assembler(api)
    for event in events:
        assembler.feed(event)
    result = assembler.result()
    for reads in (events, (b"".join(events),)):
        assert collected(*reads, api=api) == result
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    # Whatever was put together, the SDK's own types must take it as it went over the wire.
    wire = json.loads(orjson.dumps(result | {"usage": usage}))
    for choice in wire["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"  # many streams here are cut short
    (ChatCompletion if api == "chat" else Completion).model_validate(wire)
    return result


def message(*events: bytes) -> dict[str, Any]:
    return assembled(*events)["choices"][0]["message"]


def test_the_common_case_in_full() -> None:
    answer = assembled(
        chunk({"role": "assistant", "content": ""}),
        *[chunk({"content": piece}) for piece in ("Hel", "lo", ", ", "wör", 'ld "', "quoted", '"\n')],
        chunk({}, "stop"),
    )
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "llama",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": 'Hello, wörld "quoted"\n', "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
    }


def test_completions() -> None:
    answer = assembled(text_chunk("a"), text_chunk("b"), text_chunk("", "length"), api="completions")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}]


def test_nothing_at_all() -> None:
    assert Assembler("chat").result()["choices"] == []


def test_unknown_objects_are_merged_member_by_member() -> None:
    said = message(
        chunk({"citation_map": {"id": "a", "parts": [1]}}),
        chunk({"citation_map": {"parts": [2], "expires_at": 5, "id": None}}),
    )
    assert said["citation_map"] == {"id": "a", "parts": [1, 2], "expires_at": 5}
    call = {"index": 0, "id": "A", "function": {"name": "f", "arguments": {"x": [1]}, "strict": True}}
    said = message(chunk({"tool_calls": [call]}))
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x":[1]}', "strict": True}


def test_several_choices_come_apart_and_in_order() -> None:
    answer = assembled(
        *[chunk({"role": "assistant", "content": ""}, index=index) for index in (1, 0, 2)],
        *[chunk({"content": f"{index}{n}"}, index=index) for n in range(3) for index in (2, 0, 1)],
        *[chunk({}, reason, index=index) for index, reason in ((2, "stop"), (1, "length"), (0, "stop"))],
    )
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["000102", "101112", "202122"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length", "stop"]


def test_several_choices_in_one_event() -> None:
    choices = [{"index": i, "delta": {"content": str(i)}, "finish_reason": None} for i in (0, 1)]
    event = sse({**HEAD, "choices": choices})
    answer = assembled(event, event)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["00", "11"]


def test_a_tool_call_in_pieces_leaves_no_content() -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    said = message(
        chunk({"role": "assistant", "content": ""}),
        chunk({"tool_calls": [call]}),
        *[
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
            for piece in ('{"ci', 'ty": "Pa', 'ris"}')
        ],
        chunk({}, "tool_calls"),
    )
    assert said == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    }


def test_tool_calls_interleave_by_index() -> None:
    def piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        return {"index": index, "function": {"arguments": arguments}, **more}

    said = message(
        chunk({"content": "Let me see."}),
        chunk({"tool_calls": [piece(1, "b1", id="B", type="function"), piece(0, "a1", id="A")]}),
        chunk({"tool_calls": [piece(0, "a2", id="A"), piece(1, "b2", id="B")]}),
    )
    assert said["content"] == "Let me see."
    found = [(call["id"], call["function"]["arguments"]) for call in said["tool_calls"]]
    assert found == [("A", "a1a2"), ("B", "b1b2")]


def test_tool_calls_without_an_index() -> None:
    said = message(
        chunk({"tool_calls": [{"id": "A", "function": {"name": "f", "arguments": "1"}}]}),
        chunk({"tool_calls": [{"function": {"arguments": "2"}}]}),
        chunk({"tool_calls": [{"id": "B", "function": {"name": "g", "arguments": {"x": 1}}}]}),
    )
    found = [call["function"] for call in said["tool_calls"]]
    assert found == [{"name": "f", "arguments": "12"}, {"name": "g", "arguments": '{"x":1}'}]


def test_tool_calls_that_all_have_the_same_index() -> None:
    """A new id and a name begin a call; a new id alone does not."""
    pieces = (("A", "f", "{"), ("other", None, "}"), ("B", "g", "["), (None, None, "]"))
    deltas = [{"index": 0, "id": a, "function": {"name": b, "arguments": c}} for a, b, c in pieces]
    said = message(*[chunk({"tool_calls": [delta]}) for delta in deltas])
    found = [(one["id"], one["function"]) for one in said["tool_calls"]]
    assert found == [("A", {"name": "f", "arguments": "{}"}), ("B", {"name": "g", "arguments": "[]"})]


def test_content_in_parts_keeps_the_text_beside_it() -> None:
    """Mistral's API sends reasoning as parts and the answer as text."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    texts = [chunk({"content": text}) for text in ("b", "c")]
    assembler = Assembler("chat")
    for event in (chunk({"content": "a"}), chunk({"content": [thought]}), *texts):
        assembler.feed(event)
    found = assembler.result()["choices"][0]["message"]["content"]
    assert found == [{"type": "text", "text": "a"}, thought, {"type": "text", "text": "bc"}]


def test_custom_tool_calls_keep_their_type() -> None:
    said = message(
        chunk(
            {"tool_calls": [{"index": 0, "id": "A", "type": "custom", "custom": {"name": "f", "input": "1"}}]}
        ),
        chunk({"tool_calls": [{"index": 0, "custom": {"input": "2"}}]}),
    )
    assert said["tool_calls"] == [{"id": "A", "type": "custom", "custom": {"name": "f", "input": "12"}}]


def test_the_legacy_function_call() -> None:
    said = message(
        chunk({"role": "assistant", "function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": "{}"}}),
        chunk({}, "function_call"),
    )
    assert said["content"] is None
    assert said["function_call"] == {"name": "f", "arguments": "{}"}


def test_reasoning_and_refusal_have_their_own_texts() -> None:
    said = message(
        chunk({"role": "assistant", "content": None}),
        *[chunk({"reasoning_content": piece}) for piece in "abc"],
        *[chunk({"reasoning": piece, "reasoning_content": piece}) for piece in "de"],
        *[chunk({"content": piece}) for piece in "xyz"],
    )
    assert (said["reasoning_content"], said["reasoning"], said["content"]) == ("abcde", "de", "xyz")
    said = message(chunk({"role": "assistant", "refusal": "I can"}), chunk({"refusal": "not."}))
    assert (said["content"], said["refusal"]) == (None, "I cannot.")


def test_reasoning_of_completions() -> None:
    said = assembled(
        text_chunk("", reasoning="Th"), text_chunk("", reasoning="ink"), text_chunk("a"), api="completions"
    )
    assert (said["choices"][0]["reasoning"], said["choices"][0]["text"]) == ("Think", "a")


def test_audio_comes_in_pieces() -> None:
    said = message(
        chunk({"role": "assistant", "audio": {"id": "a1", "transcript": "He", "data": "QUJD"}}),
        chunk({"audio": {"transcript": "llo", "data": "REVG"}}),
        chunk({"audio": {"id": "a1", "expires_at": 5}}),
    )
    assert said["audio"] == {"id": "a1", "transcript": "Hello", "data": "QUJDREVG", "expires_at": 5}


def test_blocks_of_reasoning_details_come_in_pieces() -> None:
    """OpenRouter's. Anthropic checks the signature of a block against its whole text when a client sends it back."""

    def piece(kind: str, index: int | None = 0, **members: Any) -> bytes:
        detail = {"type": f"reasoning.{kind}", "format": "f", "index": index, **members}
        return chunk({"role": "assistant", "content": "", "reasoning_details": [detail]})

    said = message(
        piece("summary", summary="Su"),
        piece("summary", summary="m"),
        piece("text", text="Let", signature=None),
        piece("text", text=" me"),
        piece("text", signature="abc", text=None),
        piece("text", 1, text="Then"),
        piece("encrypted", 2, data="QUJD"),
        piece("encrypted", 2, data="REVG"),
        piece("text", 3, text=5),
        piece("text", 3, text=6),
        chunk({"reasoning_details": ["odd"]}),
    )
    assert said["reasoning_details"] == [
        {"type": "reasoning.summary", "format": "f", "index": 0, "summary": "Sum"},
        {"type": "reasoning.text", "format": "f", "index": 0, "text": "Let me", "signature": "abc"},
        {"type": "reasoning.text", "format": "f", "index": 1, "text": "Then"},
        {"type": "reasoning.encrypted", "format": "f", "index": 2, "data": "QUJD"},
        {"type": "reasoning.encrypted", "format": "f", "index": 2, "data": "REVG"},
        {"type": "reasoning.text", "format": "f", "index": 3, "text": 5},
        {"type": "reasoning.text", "format": "f", "index": 3, "text": 6},
        "odd",
    ]


def test_other_objects_of_a_tool_call_stay_objects() -> None:
    signature = {"google": {"thought_signature": "abc"}}
    call = {"index": 0, "id": "A", "function": {"name": "f", "arguments": ""}, "extra_content": signature}
    said = message(
        chunk({"role": "assistant", "tool_calls": [call]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
    )
    assert said["tool_calls"] == [
        {
            "id": "A",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
            "extra_content": signature,
        }
    ]


def test_logprobs_of_chat_and_completions_are_joined() -> None:
    def item(token: str) -> dict[str, Any]:
        return {"token": token, "logprob": -0.1, "bytes": list(token.encode()), "top_logprobs": []}

    answer = assembled(
        *[chunk({"content": t}, logprobs={"content": [item(t)], "refusal": None}) for t in ("a", "a", "b")]
    )
    assert [one["token"] for one in answer["choices"][0]["logprobs"]["content"]] == ["a", "a", "b"]

    answer = assembled(
        *[
            text_chunk(
                t,
                logprobs={
                    "tokens": [t],
                    "token_logprobs": [-1.0],
                    "text_offset": [at],
                    "top_logprobs": [{t: -1.0}],
                },
            )
            for at, t in enumerate("aab")
        ],
        api="completions",
    )
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["a", "a", "b"],
        "token_logprobs": [-1.0, -1.0, -1.0],
        "text_offset": [0, 1, 2],
        "top_logprobs": [{"a": -1.0}, {"a": -1.0}, {"b": -1.0}],
    }


def test_unknown_fields_are_kept() -> None:
    events = [
        sse(
            {
                **HEAD,
                "system_fingerprint": "fp",
                "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [5]}],
            }
        ),
        sse({**HEAD, "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [5]}]}),
        chunk({}, "stop", stop_reason=128009, content_filter={"hate": {"filtered": False}}),
        sse({**HEAD, "choices": [], "service_tier": "default", "usage": {"total_tokens": 9}}),
    ]
    answer = assembled(*events)
    assert (answer["system_fingerprint"], answer["service_tier"]) == ("fp", "default")
    assert "usage" not in answer  # the caller's to add
    choice = answer["choices"][0]
    assert (choice["stop_reason"], choice["token_ids"]) == (128009, [5, 5])
    assert choice["content_filter"] == {"hate": {"filtered": False}}


def test_a_null_after_a_value_does_not_undo_it() -> None:
    answer = assembled(chunk({"content": "a"}, "stop", stop_reason="END"), chunk({"content": None}))
    assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("stop", "END")


def test_the_last_scalar_wins_also_across_alike_events() -> None:
    events = [chunk({"content": "x"}, stop_reason=reason) for reason in ("a", "b", "a")]
    assert assembled(*events)["choices"][0]["stop_reason"] == "a"


def test_a_change_of_time_or_id_splits_a_run_and_the_first_is_kept() -> None:
    events = [
        sse({**HEAD, "created": created, "choices": [{"index": 0, "delta": {"content": "x"}}]})
        for created in (1, 1, 2, 2, 3)
    ]
    answer = assembled(*events)
    assert (answer["created"], answer["choices"][0]["message"]["content"]) == (1, "xxxxx")


def test_other_spellings_of_server_sent_events() -> None:
    value = orjson.dumps({**HEAD, "choices": [{"index": 0, "delta": {"content": "a"}}]})
    assert (
        message(b"data:" + value + b"\n\n", b"data: " + value + b"\r\n\r\n", chunk({"content": "b"}))[
            "content"
        ]
        == "aab"
    )
    assert message(b": ping\n\n", b"event: message\ndata: " + value + b"\nid: 7\n\n")["content"] == "a"
    spaced = json.dumps({**HEAD, "choices": [{"index": 0, "delta": {"content": "c"}}]}, indent=1)
    lines = b"".join(b"data: " + line.encode() + b"\n" for line in spaced.splitlines())
    assert message(lines + b"\n", b"data: [DONE]\n\n")["content"] == "c"


def test_tricky_strings_between_alike_events() -> None:
    pieces = [
        "a", '"', "\\", '\\"', '","reasoning":"x', '"}}]}', "content", '"content":"', "\n\n", "data: ", "🙂",
        "\u2028", "a",
    ]  # fmt: skip
    assert message(*[chunk({"content": piece}) for piece in pieces])["content"] == "".join(pieces)


def test_escaped_surrogates_may_be_split_between_events() -> None:
    template = chunk({"content": "PIECE"})
    halves = [template.replace(b"PIECE", piece) for piece in (b"a", b"\\ud83d", b"\\ude42")]
    assert message(*halves)["content"] == "a🙂"


def test_long_streams_are_folded_on_the_way() -> None:
    event = chunk({"content": "x" * 1000})
    assembler = Assembler("chat")
    for _ in range(300):
        assembler.feed(event)
    assert sum(len(part) for part in assembler._parts) < 1 << 17
    assert assembler.result()["choices"][0]["message"]["content"] == "x" * 300_000


@pytest.mark.parametrize(
    "event",
    [
        b"data: {nope\n\n",
        b"data: 3\n\n",
        b"data: []\n\n",
        sse({"error": {"message": "boom"}}),
        sse({**HEAD, "choices": {"index": 0}}),
        sse({**HEAD, "choices": ["x"]}),
        sse({**HEAD, "choices": [{"index": "0", "delta": {}}]}),
        sse({**HEAD, "choices": [{"index": 0, "delta": "x"}]}),
        sse({**HEAD, "choices": [{"index": 0, "delta": {"tool_calls": ["x"]}}]}),
    ],
)
def test_what_is_no_event_of_ours_is_an_upstream_error(event: bytes) -> None:
    assembler = Assembler("chat")
    assembler.feed(chunk({"content": "a"}))
    assembler.feed(event)
    with pytest.raises(UpstreamError) as caught:
        assembler.result()
    assert "boom" not in str(caught.value)


def test_a_broken_string_in_a_run_is_an_upstream_error() -> None:
    assembler = Assembler("chat")
    assembler.feed(chunk({"content": "a"}))
    assembler.feed(chunk({"content": "PIECE"}).replace(b"PIECE", b"\\x"))
    with pytest.raises(UpstreamError):
        assembler.result()


TEXT = st.text(max_size=8) | st.sampled_from(['"', "\\", '\\"}', "a", "a", "\n\n", "é"])
DELTAS = st.one_of(
    st.builds(lambda text: {"content": text}, TEXT),
    st.builds(lambda text: {"content": text}, TEXT),
    st.builds(lambda text: {"reasoning_content": text}, TEXT),
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXT),
    st.builds(
        lambda index, text: {"tool_calls": [{"index": index, "function": {"arguments": text}}]},
        st.integers(0, 1),
        TEXT,
    ),
)
EVENTS = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1]), DELTAS), max_size=20)


@given(EVENTS, st.data())
def test_the_result_is_that_of_plain_merging_however_the_stream_is_cut(
    events: list[tuple[int, dict[str, Any]]], data: st.DataObject
) -> None:
    raw = b"".join(chunk(delta, index=index) for index, delta in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    reads = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assembler = Assembler("chat")
    for read in reads:
        assembler.feed(read)
    answer = assembler.result()
    assert collected(*reads) == answer

    for choice in answer["choices"]:
        deltas = [delta for index, delta in events if index == choice["index"]]
        said = choice["message"]
        for field in ("content", "reasoning_content"):
            expected = "".join(delta.get(field, "") for delta in deltas)
            assert (said.get(field) or "") == expected
        calls: dict[int, str] = {}
        for delta in deltas:
            for call in delta.get("tool_calls", []):
                calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
        found = [call["function"]["arguments"] for call in said.get("tool_calls", [])]
        assert found == [calls[index] for index in sorted(calls)]
    assert [choice["index"] for choice in answer["choices"]] == sorted({index for index, _ in events})


@given(st.lists(TEXT, max_size=20), st.integers(1, 400))
def test_folding_early_changes_nothing(pieces: list[str], fold_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[Assembler.__module__], "_FOLD_BYTES", fold_bytes)
        answer = assembled(
            *[text_chunk(piece) for piece in pieces], text_chunk("", "stop"), api="completions"
        )
    assert answer["choices"][0]["text"] == "".join(pieces)
