"""What else OpenAI's API has: passed through to the engine, put together and counted."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.gateway.live import bearer, key
from tests.integration.gateway.staged import DONE, event, final, says, staged, usage

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "Hello"}]
VLLM, OLLAMA = "qwen2.5-7b", "llama-3.1-8b"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["u"]}, "b": {"type": "string"}},
    "required": ["a", "b"],
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def spoken(text):
    """The choices' texts of a stream, its usage and its finish reasons by choice."""
    texts, reasons, used = {}, {}, None
    for line in text.split("\n"):
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            used = chunk.get("usage") or used
            for choice in chunk["choices"]:
                said = choice.get("delta", choice)
                at = choice["index"]
                texts[at] = texts.get(at, "") + (said.get("content") or said.get("text") or "")
                reasons[at] = choice["finish_reason"] or reasons.get(at)
    return texts, reasons, used


async def both(gw, path, **body):
    """The same request, whole and streamed."""
    status, answer = await gw.post(path, body)
    assert status == 200, answer
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with gw.http.post(gw.url + path, json=body | options) as response:
        return answer, spoken(await response.text())


async def test_several_choices(shared):
    answer, (texts, reasons, used) = await both(
        shared, "/v1/chat/completions", model=VLLM, messages=MESSAGES, n=3, max_tokens=20
    )
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert texts == {choice["index"]: choice["message"]["content"] for choice in answer["choices"]}
    assert len(set(texts.values())) == 3
    assert reasons == dict.fromkeys(range(3), "length")
    assert used["completion_tokens"] == answer["usage"]["completion_tokens"] == 60
    assert used["prompt_tokens"] == answer["usage"]["prompt_tokens"] == 2  # once for all choices
    row = await shared.row(answer["headway"]["request_id"])
    assert row["output_tokens"] == 60
    # A token's time is that of all choices together.
    assert row["tpot_s"] == pytest.approx((row["e2e_s"] - row["ttft_s"]) / 59)


async def test_several_prompts(shared):
    answer, (texts, _, used) = await both(
        shared,
        "/v1/completions",
        model=VLLM,
        prompt=["Once upon", "A"],
        n=2,
        max_tokens=3,
        echo=True,
        logprobs=1,
    )
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert texts == {choice["index"]: choice["text"] for choice in answer["choices"]}
    assert [text.split("Emulated")[0] for text in texts.values()] == ["Once upon", "Once upon", "A", "A"]
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [3] * 4
    assert (used["prompt_tokens"], used["completion_tokens"]) == (4, 12)
    assert answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("model", [VLLM, OLLAMA])
async def test_a_schema(shared, model):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answer, (texts, reasons, used) = await both(
        shared, "/v1/chat/completions", model=model, messages=MESSAGES, response_format=wanted
    )
    content = answer["choices"][0]["message"]["content"]
    assert json.loads(content)["a"] == "u"
    assert (texts, reasons) == ({0: content}, {0: "stop"})
    assert used["completion_tokens"] == answer["usage"]["completion_tokens"] > 4


async def test_calls_of_every_choice(shared):
    answer, (_, reasons, used) = await both(
        shared,
        "/v1/chat/completions",
        model=VLLM,
        messages=MESSAGES,
        n=2,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    for choice in answer["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "weather")
        assert json.loads(call["function"]["arguments"]) == {"a": "u", "b": "emulated"}
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    assert reasons == {0: "tool_calls", 1: "tool_calls"}
    assert used["completion_tokens"] == answer["usage"]["completion_tokens"]


async def test_stop_and_seed_and_bias(shared):
    answer, (texts, reasons, used) = await both(
        shared,
        "/v1/chat/completions",
        model=VLLM,
        messages=MESSAGES,
        stop=[" model"],
        seed=1,
        logit_bias={"5": 1},
        user="u",
    )
    assert texts == {0: answer["choices"][0]["message"]["content"]} == {0: "Emulated text, not a"}
    assert (reasons, used["completion_tokens"]) == ({0: "stop"}, answer["usage"]["completion_tokens"])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"model": VLLM, "prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"model": OLLAMA, "prompt": ["a", "b"]}, "prompt"),
        ("/v1/completions", {"model": OLLAMA, "prompt": "a", "echo": True}, "echo"),
        ("/v1/completions", {"model": VLLM, "prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"model": VLLM, "prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens"),
        ("/v1/completions", {"model": VLLM, "prompt": "a", "best_of": 0}, "best_of"),
        ("/v1/completions", {"model": VLLM, "prompt": "a", "best_of": 1000}, "best_of"),
        ("/v1/chat/completions", {"model": OLLAMA, "messages": MESSAGES, "n": 2}, "n"),
        ("/v1/chat/completions", {"model": VLLM, "messages": MESSAGES, "top_logprobs": 3}, "top_logprobs"),
        (
            "/v1/chat/completions",
            {
                "model": OLLAMA,
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}],
                    }
                ],
            },
            "messages",
        ),
    ],
)
async def test_what_an_engine_cannot_do(shared, path, body, param):
    """A 400 that names the field, by the engine or by its backend; nothing is tried again."""
    status, answer = await shared.post(path, {"max_tokens": 4} | body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_interleaved_choices_with_all_they_may_say(tmp_path):
    """Whatever an engine streams is put together by choice and by call; usage and times are of all of them."""

    def choice(index, finish=None, logprobs=None, **delta):
        return {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}

    def call(index, arguments, **first):
        name = {"name": first.pop("name")} if "name" in first else {}
        return [{"index": index, **first, "function": {**name, "arguments": arguments}}]

    def logprob(token):
        return {
            "content": [{"token": token, "logprob": -1.0, "bytes": None, "top_logprobs": []}],
            "refusal": None,
        }

    steps = [
        [choice(0, role="assistant"), choice(1, role="assistant")],
        [choice(1, reasoning="H"), choice(0, content="a", logprobs=logprob("a"))],
        [choice(1, reasoning="m"), choice(0, content="b", logprobs=logprob("b"))],
        [choice(1, tool_calls=call(0, "", id="x", type="function", name="f"))],
        [choice(1, tool_calls=call(1, "[", id="y", type="function", name="g")), choice(0, refusal="N")],
        [choice(1, tool_calls=call(0, "{}")), choice(0, "stop", refusal="o")],
        [choice(1, "tool_calls", tool_calls=call(1, "]"))],
    ]

    async def script(exchange):
        await exchange.head()
        for choices in steps:
            await exchange.chunk(event(choices=choices))
        await exchange.chunk(final(30, 12) + DONE)
        await exchange.end()

    body = {"model": "small", "messages": MESSAGES, "n": 2, "logprobs": True}
    async with staged(tmp_path, script) as (gw, _):
        status, answer = await gw.post("/v1/chat/completions", body)
        row = await gw.row(answer["headway"]["request_id"])
    assert status == 200
    first, second = answer["choices"]
    assert (first["message"]["content"], first["message"]["refusal"]) == ("ab", "No")
    assert [one["token"] for one in first["logprobs"]["content"]] == ["a", "b"]
    assert (first["finish_reason"], second["finish_reason"]) == ("stop", "tool_calls")
    assert second["message"]["reasoning"] == "Hm"
    assert second["message"]["tool_calls"] == [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "y", "type": "function", "function": {"name": "g", "arguments": "[]"}},
    ]
    assert answer["usage"] == usage(30, 12)["usage"]
    assert (row["prompt_tokens"], row["output_tokens"], row["finish_reason"]) == (30, 12, "tool_calls")


async def test_several_choices_in_one_event(tmp_path):
    """Prompts in a list have a choice each, which an engine may put into one event."""

    def step(*texts, finish=None):
        choices = [{"index": at, "text": text, "finish_reason": finish} for at, text in enumerate(texts)]
        chunk = {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": choices}
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"

    seen, ended = asyncio.Event(), asyncio.Event()

    async def script(exchange):
        await exchange.begin(step("a", "b"))
        await seen.wait()
        await exchange.chunk(step("c", "d") + step("e", "f", finish="length"))
        await ended.wait()
        await exchange.chunk(DONE)
        await exchange.end()

    body = {"model": "small", "prompt": ["x", "y"], "max_tokens": 3, "stream": True}
    async with staged(tmp_path, script, kind="openai") as (gw, _):
        async with gw.http.post(f"{gw.url}/v1/completions", json=body) as response:
            first = await response.content.readuntil(b"\n\n")
            seen.set()
            last = await response.content.readuntil(b'"length"')
            ended.set()
            texts, reasons, _ = spoken((first + last + await response.read()).decode())
        row = await gw.row(response.headers["x-request-id"])
    assert (texts, reasons) == ({0: "ace", 1: "bdf"}, {0: "length", 1: "length"})
    assert row["finish_reason"] == "length"


@pytest.mark.parametrize("metered", [False, True])
async def test_timings_are_in_a_stream_without_usage(tmp_path, metered):
    last = event(choices=[], object="chat.completion.chunk", timings={"predicted_n": 1}, **usage(3, 1))
    keys = {"keys": [key("a", budget_usd_per_day=1 if metered else None)]}
    script = says("Hi", end=event(finish="stop") + last + DONE)
    body = {"model": "small", "messages": MESSAGES, "stream": True}
    told = {}
    async with staged(tmp_path, script, script, script, auth=keys) as (gw, _):
        for path in ("/v1/chat/completions", "/api/chat", "/v1/responses"):
            asked = {"model": "small", "input": "Hello", "stream": True} if path == "/v1/responses" else body
            async with gw.http.post(gw.url + path, json=asked, headers=bearer("a")) as response:
                told[path] = await response.text()
    *_, finish, answer, end = told["/v1/chat/completions"].removesuffix("\n\n").split("\n\n")
    assert json.loads(finish.removeprefix("data: "))["choices"][0]["finish_reason"] == "stop"
    found = json.loads(answer.removeprefix("data: "))
    assert (found["timings"], found["model"], "usage" in found) == ({"predicted_n": 1}, "llama-3.1-8b", False)
    assert found["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
    assert end == "data: [DONE]"
    assert told["/api/chat"].count('"done":true') == 1
    assert told["/v1/responses"].count("event: response.completed") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("metered", [False, True])
async def test_what_comes_with_the_usage_is_in_the_answer(tmp_path, metered, stream):
    last = event(choices=[], service_tier="flex", timings={"predicted_n": 1}, **usage(3, 1))
    keys = {"keys": [key("a", budget_usd_per_day=1 if metered else None)]}
    script = says("Hi", end=event(finish="stop") + last + DONE)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    body = {"model": "small", "messages": MESSAGES} | options
    async with (
        staged(tmp_path, script, auth=keys) as (gw, _),
        gw.http.post(f"{gw.url}/v1/chat/completions", json=body, headers=bearer("a")) as response,
    ):
        text = await response.text()
    answer = json.loads(text.split("\n\n")[-3].removeprefix("data: ") if stream else text)
    assert (answer["service_tier"], answer["timings"]) == ("flex", {"predicted_n": 1})
    assert (answer["model"], answer["usage"]["prompt_tokens"]) == ("llama-3.1-8b", 3)


async def test_a_prompt_is_scored_without_a_token(tmp_path):
    """`max_tokens: 0` with `echo`: no token is streamed, predicted or billed, and no echoed text is counted as one."""

    async def script(exchange):
        logprobs = {"tokens": ["Once", " upon"], "token_logprobs": [None, -1.5]}
        choice = {"index": 0, "text": "Once upon", "logprobs": logprobs, "finish_reason": "length"}
        counts = {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
        answer = {"id": "x", "object": "text_completion", "created": 1, "choices": [choice], "usage": counts}
        await exchange.answer(200, json.dumps(answer).encode())

    body = {"model": "small", "prompt": "Once upon", "max_tokens": 0, "echo": True, "logprobs": 1}
    keys = {"keys": [key("a", budget_usd_per_day=1, max_cost_usd=0.01)]}
    async with staged(tmp_path, script, auth=keys) as (gw, stage):
        status, answer = await gw.post("/v1/completions", body, headers=bearer("a"))
        row = await gw.row(answer["headway"]["request_id"])
        refused, _ = await gw.post("/v1/completions", body | {"stream": True}, headers=bearer("a"))
    assert (status, refused) == (200, 400)
    assert stage.bodies == [body | {"model": "m", "stream": False}]
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, -1.5]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
    assert (row["outcome"], row["max_tokens"], row["output_tokens"]) == ("ok", 0, 0)
    assert row["cost_usd"] == pytest.approx(2 * 0.05e-6)
