"""Responses put together from chats: streamed and whole say the same, in OpenAI's own types."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from backends.scanning import Assembler
from router.core.errors import Refusal
from router.core.types import Outcome
from router.gateway.codecs.responses.codec import ResponsesCodec
from router.gateway.codecs.responses.request import responses_to_chat
from tests.unit.gateway.chunks import call, chunk

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
HEADWAY = {"request_id": "req_1", "model": "llama", "outcome": "ok"}
FUNCTION = {"type": "function", "name": "add"}
NAMESPACE = {"type": "namespace", "name": "math", "description": "Sums", "tools": [FUNCTION]}
ASKED = responses_to_chat({"model": "asked", "input": "x", "tools": [NAMESPACE]})
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each named as its type says and of a shape that OpenAI's types take."""
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        name, payload = block.split("\n")
        event = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def streamed(*batches: bytes, reason: str | None = None) -> list[dict[str, Any]]:
    stream = ResponsesCodec(ASKED, "1", clock=lambda: 100.0)
    data = stream.first(batches[0]) + b"".join(map(stream.events, batches[1:]))
    return events_of(data + stream.finish(USAGE, reason, HEADWAY))


def whole(*batches: bytes) -> dict[str, Any]:
    assembler = Assembler("chat")
    for batch in batches:
        assembler.feed(batch)
    answer = assembler.result() | {"usage": USAGE}
    response = json.loads(ResponsesCodec(ASKED, "1", clock=lambda: 100.0).non_streaming(answer, HEADWAY))
    Response.model_validate(response)
    found: dict[str, Any] = response
    return found


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


TEXT_EVENTS = ["output_text.delta", "output_text.done", "content_part.done", "output_item.done"]


def test_the_sequence_of_a_text() -> None:
    batches = [chunk({"role": "assistant", "content": ""}) + chunk({"content": "He"})]
    batches += [chunk({"content": 'l"lo'}), chunk({"content": "ö"}, "stop")]
    events = streamed(*batches)
    opened = ["created", "in_progress", "output_item.added", "content_part.added"]
    assert types(events) == [*opened, "output_text.delta", "output_text.delta", *TEXT_EVENTS, "completed"]
    assert [event["delta"] for event in events[4:7]] == ["He", 'l"lo', "ö"]
    first, last = events[0]["response"], events[-1]["response"]
    assert {"status": "in_progress", "output": [], "usage": None, "model": "llama"}.items() <= first.items()
    assert last == whole(*batches)
    assert last["usage"]["output_tokens"] == 5
    assert last["output"][0]["content"][0]["text"] == 'Hel"loö'
    assert {event["response"]["id"] for event in (events[0], events[1], events[-1])} == {"resp_1"}


def test_annotations_and_the_service_tier_are_the_engine_s() -> None:
    cited = {"start_index": 0, "end_index": 2, "url": "http://a", "title": "A"}
    annotations = [{"type": "url_citation", "url_citation": cited}, {"url": "no type"}]
    first = chunk({"content": "Hi"}).replace(b'"choices"', b'"service_tier":"flex","choices"')
    batches = [first, chunk({"annotations": annotations}), chunk({"content": "!"}, "stop")]
    events = streamed(*batches)
    added = {"output_index": 0, "content_index": 0, "annotation_index": 0}
    (found,) = [event for event in events if event["type"].endswith("annotation.added")]
    assert added.items() <= found.items()
    last = events[-1]["response"]
    assert last == whole(*batches)
    assert last["service_tier"] == "flex"
    assert last["output"][0]["content"][0]["annotations"] == [{"type": "url_citation", **cited}]


def test_thoughts_text_and_calls_are_items_one_after_the_other() -> None:
    batches = [
        chunk({"role": "assistant", "content": ""}) + chunk({"reasoning": "Hm"}),
        chunk({"reasoning": "m"}) + chunk({"content": "I look"}),
        chunk(call(0, "", id="c0", type="function", name="weather")) + chunk(call(0, '{"city":')),
        chunk(call(0, '"Rom"}')),
        chunk(call(1, "{}", id="c1", type="function", name="time")) + chunk({}, "tool_calls"),
    ]
    events = streamed(*batches)
    thought = ["reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done"]
    done = ["content_part.done", "output_item.done"]
    delta, all_of_it = "function_call_arguments.delta", "function_call_arguments.done"
    assert types(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added", *thought, *done),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", *done),
        *("output_item.added", delta, delta, all_of_it, "output_item.done"),
        *("output_item.added", delta, all_of_it, "output_item.done"),
        "completed",
    ]
    response = events[-1]["response"]
    assert response == whole(*batches)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", *["function_call"] * 2]
    assert [item["call_id"] for item in response["output"][2:]] == ["c0", "c1"]
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.done"] == [0, 1, 2, 3]


def test_a_call_in_a_namespace() -> None:
    batches = [
        chunk(call(0, "{}", id="a", name="math__add")),
        chunk(call(1, "{}", id="b", name="other__add")) + chunk({}, "tool_calls"),
    ]
    events = streamed(*batches)
    first, second = events[-1]["response"]["output"]
    assert (first["namespace"], first["name"]) == ("math", "add")
    assert ("namespace" in second, second["name"]) == (False, "other__add")
    assert events[-1]["response"] == whole(*batches)
    items = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item.get("namespace") for item in items] == ["math", None]
    (done, _) = [event for event in events if event["type"].endswith("arguments.done")]
    assert done["name"] == "add"


def test_text_inside_a_call_stays_before_text_after_it() -> None:
    batches = [
        chunk(call(0, "{", id="x", name="f")) + chunk({"content": "Wait"}),
        chunk(call(0, '"a":1}')) + chunk({"content": ", done"}),
    ]
    output = streamed(*batches)[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "message"]
    assert (output[0]["arguments"], output[1]["content"][0]["text"]) == ('{"a":1}', "Wait, done")


def test_content_in_parts_is_reasoning_and_text() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    batches = [chunk({"content": [thought]}), chunk({"content": "Hi"})]
    events = streamed(*batches)
    output = events[-1]["response"]["output"]
    assert [part["text"] for item in output for part in item["content"]] == ["Hm", "Hi"]
    assert whole(*batches)["output"] == output


def test_an_answer_that_was_cut() -> None:
    for last, kind in (({"content": "x"}, "message"), (call(0, '{"a', id="x", name="f"), "function_call")):
        batches = [chunk({"reasoning": "Hm"}) + chunk(last), chunk({}, "length")]
        events = streamed(*batches)
        response = events[-1]["response"]
        assert events[-1]["type"] == "response.incomplete"
        assert response == whole(*batches)
        assert (response["status"], response["completed_at"]) == ("incomplete", None)
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        statuses = [(item["type"], item["status"]) for item in response["output"]]
        assert statuses == [("reasoning", "completed"), (kind, "incomplete")]
    filtered = streamed(chunk({"content": "x"}), reason="content_filter")[-1]["response"]
    assert filtered["incomplete_details"] == {"reason": "content_filter"}


def test_an_answer_without_a_token() -> None:
    batch = chunk({"role": "assistant"}) + chunk({}, "stop")
    events = streamed(batch)
    assert types(events) == ["created", "in_progress", "completed"]
    assert events[-1]["response"]["output"] == whole(batch)["output"] == []


def test_log_probabilities_stand_in_deltas_and_in_the_part() -> None:
    def item(token: str) -> dict[str, Any]:
        return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []}

    batches = [
        chunk({"content": "a"}, logprobs={"content": [item("a")]}),
        chunk({"content": "b"}, "stop", logprobs={"content": [{"token": "b", "logprob": -0.5}]}),
    ]
    events = streamed(*batches)
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    assert [event["logprobs"] for event in deltas] == [[item("a")], [item("b")]]
    response = events[-1]["response"]
    assert response == whole(*batches)
    assert response["output"][0]["content"][0]["logprobs"] == [item("a"), item("b")]


def test_a_failure_after_the_start() -> None:
    codec = ResponsesCodec(responses_to_chat({"model": "m", "input": "x"}), "req_abc")
    data = codec.first(chunk({"content": "a"}))
    refusal = Refusal(400, "invalid_request", "no", Outcome.BACKEND_ERROR, param="max_completion_tokens")
    event = events_of(data + codec.stream_error(refusal))[-1]
    error = {"code": "invalid_request", "message": "no", "param": "max_output_tokens"}
    assert event == {"type": "error", "sequence_number": 5, **error, "error": event["error"]}
    assert event["error"] == {**error, "type": "invalid_request_error"}
    assert json.loads(codec.error(refusal)) == {"error": event["error"]}


TEXTS = st.lists(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), max_size=4
)


@st.composite
def chats(draw: st.DrawFn) -> list[bytes]:
    """The events of a chat in the order in which models write: thoughts, text, refusal, calls; calls may interleave."""
    events = [chunk({"role": "assistant", "content": ""})]
    thinking = draw(st.sampled_from(["reasoning", "reasoning_content"]))
    for field in (thinking, "content", "refusal"):
        events += [chunk({field: piece}) for piece in draw(TEXTS)]
    pieces = []
    for index in range(draw(st.integers(0, 3))):
        arguments = json.dumps(draw(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)))
        cut = draw(st.integers(0, len(arguments)))
        first = call(index, arguments[:cut], id=f"c{index}", type="function", name="f")
        pieces += [(index, 0, first), (index, 1, call(index, arguments[cut:]))]
    if draw(st.booleans()):
        pieces.sort(key=lambda piece: (piece[1], piece[0]))
    events += [chunk(delta) for *_, delta in pieces]
    events.append(chunk({}, draw(st.sampled_from(["stop", "length", "tool_calls"]))))
    return events


@given(chats(), st.data())
def test_streamed_and_whole_are_the_same(events: list[bytes], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(1, len(events)), unique=True).map(sorted))
    bounds = [0, *[at for at in cuts if at < len(events)], len(events)]
    batches = [b"".join(events[start:stop]) for start, stop in itertools.pairwise(bounds)]
    if data.draw(st.booleans()):
        batches = [batch.replace(b"\n\n", b"\r\n\r\n") for batch in batches]
    seen = streamed(*batches)
    assert seen[-1]["response"] == whole(*events)
    places = [event["output_index"] for event in seen if "output_index" in event]
    assert places == sorted(places)  # also of calls that interleave
    said: dict[tuple[int, str], str] = {}
    for event in seen:
        what = event["type"].removeprefix("response.").rpartition(".")
        if what[2] == "delta":
            key = (event["output_index"], what[0])
            said[key] = said.get(key, "") + event["delta"]
        elif what[2] == "done" and what[0] in ("output_text", "reasoning_text", "refusal"):
            assert said[event["output_index"], what[0]] == event.get("text", event.get("refusal"))
        elif what[2] == "done" and what[0] == "function_call_arguments":
            assert said.get((event["output_index"], what[0]), "") == event["arguments"]
