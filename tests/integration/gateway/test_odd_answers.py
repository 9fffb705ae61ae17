"""Answers with nothing in them, and counts that are missing or wrong: what clients, rows and bills say then."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.integration.gateway.live import live, vllm
from tests.integration.gateway.staged import (
    DONE,
    INPUT_USD,
    MODEL,
    OUTPUT_USD,
    Script,
    chat,
    event,
    final,
    says,
    staged,
    status,
    usage,
)


def whole(answer: dict[str, Any]) -> Script:
    """An answer in one piece."""
    return lambda exchange: exchange.answer(200, json.dumps(answer).encode())


def only(*events: bytes) -> Script:
    """These events and nothing else."""
    return lambda exchange: exchange.events(*events)


def spoken(text: str = "Hi there.", **members: Any) -> dict[str, Any]:
    """A complete chat."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "choices": [choice], **members}


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": None}, {"status": "loading"}])
async def test_an_answer_without_a_choice_goes_to_the_next_instance(tmp_path, answer):
    one = {"upstream_stream": "when_needed", "scheduling": {"streamed_share": 0.0}}
    async with staged(tmp_path, whole(answer), whole(spoken()), **one) as (gw, _):
        code, headers, said = await gw.chat(model="small")
        assert (code, said["choices"][0]["message"]["content"]) == (200, "Hi there.")
        assert (await gw.row(headers["x-request-id"]))["attempts"] == 2


@pytest.mark.parametrize("calls", [{"a": 1}, [None], [{"function": "f"}]])
async def test_calls_of_an_unknown_shape_are_no_answer(tmp_path, calls):
    one = {"upstream_stream": "when_needed", "scheduling": {"streamed_share": 0.0}}
    odd = {"choices": [{"message": {"role": "assistant", "tool_calls": calls}}]}
    async with staged(tmp_path, whole(odd), whole(spoken()), **one) as (gw, _):
        body = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "stream": False}
        code, said = await gw.post("/api/chat", body)
        assert (code, said["message"]["content"], said["headway"]["attempts"]) == (200, "Hi there.", 2)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_end_mark_alone_is_no_answer(tmp_path, stream):
    async with staged(tmp_path, only(DONE), says("Hi.")) as (gw, _):
        text, headers, _ = await chat(gw, stream=stream)
        assert text == "Hi."
        assert (await gw.row(headers["x-request-id"]))["attempts"] == 2


@pytest.mark.parametrize(
    ("vectors", "given"),
    [([], ["a"]), ([[1.0]], ["a", "b"]), ([[1.0], [2.0]], "a"), ([[1.0]], [[1, 2], [3]])],
)
async def test_another_number_of_vectors_than_of_inputs_is_no_answer(tmp_path, vectors, given):
    answer = {"object": "list", "data": [{"object": "embedding", "embedding": each} for each in vectors]}
    async with staged(tmp_path, whole(answer), whole(answer), whole(answer)) as (gw, _):
        code, said = await gw.post("/v1/embeddings", {"model": "small", "input": given})
        assert (code, said["error"]["code"]) == (502, "upstream_error")


async def test_a_refusal_in_a_whole_answer_is_passed_on_once(tmp_path):
    one = {"upstream_stream": "when_needed", "scheduling": {"streamed_share": 0.0}}
    refusal = {"error": {"message": "bad", "type": "BadRequestError", "code": 400}}
    async with staged(tmp_path, whole(refusal), whole(spoken()), **one) as (gw, stage):
        code, _, _ = await gw.chat(model="small")
        assert code == 400
        assert len(stage.engines) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_the_client_is_told_the_counts_that_it_pays(tmp_path, stream):
    partial = b"data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 8}}).encode() + b"\n\n"
    ends = ((final(8, 0), 3), (partial, 3), (final(8, 10**12), 3), (final(8, 12), 12), (b"", 3))
    scripts = [says("One ", "two ", "three.", end=event(finish="stop") + end + DONE) for end, _ in ends]
    async with staged(tmp_path, *scripts, engines="a") as (gw, _):
        for end, output in ends:
            if stream:
                async with gw.stream(model="small", stream_options={"include_usage": True}) as response:
                    lines = (await response.text()).split("\n")
                request_id = response.headers["x-request-id"]
                found = [json.loads(line[6:]).get("usage") for line in lines if line.startswith("data: {")]
                assert [each for each in found if each] == found[-1:]
                told = found[-1]
            else:
                _, headers, said = await gw.chat(model="small")
                told, request_id = said["usage"], headers["x-request-id"]
            row = await gw.row(request_id)
            assert told["completion_tokens"] == row["output_tokens"] == output, end
            assert told["total_tokens"] == told["prompt_tokens"] + output
            assert row["cost_usd"] == pytest.approx(told["prompt_tokens"] * INPUT_USD + output * OUTPUT_USD)


@pytest.mark.parametrize("at", range(3))
async def test_half_a_surrogate_pair_fails_no_answer(tmp_path, at):
    """What is passed on keeps the engine's escape, as JSON's readers know it. What is put together has U+FFFD."""
    pieces = [b"a", b"b", b"c"]
    pieces[at] = b"\\ud83d"
    events = [event("PIECE").replace(b"PIECE", piece) for piece in pieces]
    script = only(event(), *events, event(finish="stop"), DONE)
    wanted = b"".join(pieces).decode("unicode_escape")
    messages = [{"role": "user", "content": "Hello"}]
    async with staged(tmp_path, *[script] * 9, engines="a") as (gw, _):

        async def lines(path: str, **body: Any) -> list[Any]:
            async with gw.http.post(gw.url + path, json={"model": "small", **body}) as response:
                assert response.status == 200
                raw = [line.removeprefix("data: ") for line in (await response.text()).split("\n")]
            return [json.loads(line) for line in raw if line.startswith("{")]

        for routing in ({}, {"max_cost_usd": 1}):
            found = await lines("/v1/chat/completions", messages=messages, stream=True, routing=routing)
            said = "".join(each["choices"][0]["delta"].get("content", "") for each in found)
            assert said == wanted
        found = await lines("/api/chat", messages=messages)
        assert "".join(each["message"]["content"] for each in found) == wanted
        found = await lines("/api/generate", prompt="Hello")
        assert "".join(each["response"] for each in found) == wanted
        found = await lines("/v1/responses", input="Hello", stream=True)
        assert "".join(each["delta"] for each in found if each["type"].endswith("text.delta")) == wanted
        whole_text = wanted.replace("\ud83d", "\ufffd")
        assert found[-1]["response"]["output"][0]["content"][0]["text"] == whole_text
        (found,) = await lines("/v1/chat/completions", messages=messages)
        assert found["choices"][0]["message"]["content"] == whole_text
        (found,) = await lines("/api/generate", prompt="Hello", stream=False)
        assert found["response"] == whole_text


@pytest.mark.parametrize("size", [1, 50_000])
async def test_half_a_surrogate_pair_in_a_whole_answer_is_replaced(tmp_path, size):
    one = {"upstream_stream": "when_needed", "scheduling": {"streamed_share": 0.0}}
    async with staged(tmp_path, whole(spoken("\ud83d" + "x" * size)), engines="a", **one) as (gw, _):
        code, _, said = await gw.chat(model="small")
        assert (code, said["choices"][0]["message"]["content"]) == (200, "\ufffd" + "x" * size)


@pytest.mark.parametrize("at", range(3))
async def test_bytes_that_are_not_utf_8_are_the_same_on_all_paths(tmp_path, at):
    pieces = [b"a", b"b", b"c"]
    pieces[at] = b"\xff\xe4\xbd"
    wanted = b"".join(pieces).decode("utf-8", "replace")
    events = [event("PIECE").replace(b"PIECE", piece) for piece in pieces]
    script = only(event(), *events, event(finish="stop"), DONE)
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    async with staged(tmp_path, *[script] * 9, engines="a") as (gw, _):

        async def said(path: str, **body: Any) -> list[Any]:
            async with gw.http.post(gw.url + path, json={"model": "small", **body}) as response:
                raw = (await response.read()).decode()  # UTF-8
            return [json.loads(line.removeprefix("data: ")) for line in raw.split("\n") if "{" in line]

        for routing in ({}, {"max_cost_usd": 1}):
            found = await said("/v1/chat/completions", **chat, stream=True, routing=routing)
            assert "".join(each["choices"][0]["delta"].get("content", "") for each in found) == wanted
            (found,) = await said("/v1/chat/completions", **chat, routing=routing)
            assert found["choices"][0]["message"]["content"] == wanted
        found = await said("/api/chat", **chat)
        assert "".join(each["message"]["content"] for each in found) == wanted
        found = await said("/v1/responses", input="Hello", stream=True)
        assert "".join(each["delta"] for each in found if each["type"].endswith("text.delta")) == wanted
        assert found[-1]["response"]["output"][0]["content"][0]["text"] == wanted


@pytest.mark.parametrize("size", [1, 50_000])
async def test_bytes_that_are_not_utf_8_in_a_whole_answer_are_replaced(tmp_path, size):
    one = {"upstream_stream": "when_needed", "scheduling": {"streamed_share": 0.0}}
    odd = json.dumps(spoken("PIECE" + "x" * size)).encode().replace(b"PIECE", b"\xff")
    async with staged(tmp_path, lambda exchange: exchange.answer(200, odd), engines="a", **one) as (gw, _):
        code, _, said = await gw.chat(model="small")
        assert (code, said["choices"][0]["message"]["content"]) == (200, "\ufffd" + "x" * size)


@pytest.mark.parametrize("text", ["One two three.", "人人生而自由，在尊严和权利上一律平等。" * 20])
async def test_a_whole_answer_without_usage_gets_one(tmp_path, text):
    one = {"upstream_stream": "when_needed", "scheduling": {"streamed_share": 0.0}}
    async with staged(tmp_path, whole(spoken(text)), engines="a", **one) as (gw, _):
        _, headers, said = await gw.chat(model="small")
        assert said["usage"]["completion_tokens"] == (await gw.row(headers["x-request-id"]))["output_tokens"]
        assert said["usage"]["completion_tokens"] == -(-len(text.encode()) // 4)


async def test_usage_that_a_client_did_not_ask_for_stays_here(tmp_path):
    script = only(
        event(),
        event("One ", **usage(8, 1)),
        event("two.", **usage(8, 2)),
        event(finish="stop", **usage(8, 2)),
        DONE,
    )
    async with staged(tmp_path, script, script, engines="a") as (gw, _):
        for options in ({}, {"stream_options": {"continuous_usage_stats": True, "include_usage": True}}):
            async with gw.stream(model="small", **options) as response:
                raw = await response.text()
            assert ('"usage"' in raw) is bool(options)
            text = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: {")]
            said = [each["choices"][0]["delta"].get("content") for each in text if each["choices"]]
            assert "".join(filter(None, said)) == "One two."
            assert {each["model"] for each in text if each["choices"]} == {MODEL}
            assert (await gw.row(response.headers["x-request-id"]))["output_tokens"] == 2


async def test_only_answers_are_rated_and_the_first_rating_is_learned(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        _, headers, _ = await gw.chat(model="small")
        rating = {"request_id": headers["x-request-id"], "quality": 0.0}
        ratings = [rating | {"quality": number / 20} for number in range(20)]
        codes = await asyncio.gather(*[gw.post("/v1/feedback", each) for each in ratings])
        assert sorted(code for code, _ in codes) == [200] * 8 + [409] * 12
        assert len(await gw.gateway.store.feedback(rating["request_id"])) == 8
        assert gw.gateway.predictor.feedback_counts() == {MODEL: 1}
    (tmp_path / "failing").mkdir()
    async with staged(tmp_path / "failing", *[status(500)] * 9, engines="a") as (gw, _):
        code, headers, _ = await gw.chat(model="small")
        assert code == 502
        code, said = await gw.post("/v1/feedback", {"request_id": headers["x-request-id"], "quality": 0.0})
        assert (code, said["error"]["code"]) == (409, "not_answered")
        assert await gw.gateway.store.feedback(headers["x-request-id"]) == []
