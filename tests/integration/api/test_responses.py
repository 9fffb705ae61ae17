"""POST /v1/responses, by the unchanged `openai` client and by hand."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from tests.integration.gateway.live import fault, live, vllm
from tests.integration.gateway.staged import DONE, event, final, says, staged

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: A model of each kind of engine.
VLLM = "qwen2.5-7b"
MODELS = pytest.mark.parametrize("model", [VLLM, "llama-3.1-8b"])
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


@asynccontextmanager
async def client(gw):
    async with openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def blocks(text):
    """The events of a stream."""
    return [json.loads(block.split("\ndata: ", 1)[1]) for block in text.split("\n\n")[:-1]]


@MODELS
async def test_create(shared, model):
    async with client(shared) as api:
        raw = await api.responses.with_raw_response.create(
            model=model,
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Tell me a joke"},
                        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
                    ],
                }
            ],
            instructions="Be brief.",
            max_output_tokens=5,
            metadata={"a": "b"},
            extra_body={"routing": {"policy": "round_robin"}},
        )
        answer = raw.parse()
    assert raw.headers["x-headway-policy"] == "round_robin"
    assert raw.headers["x-headway-model"] == answer.model == model
    assert answer.id == "resp_" + raw.headers["x-request-id"].removeprefix("req_")
    assert answer.output_text.startswith("Emulated text")
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.output_tokens, answer.usage.total_tokens) == (5, answer.usage.input_tokens + 5)
    assert (answer.metadata, answer.instructions, answer.store) == ({"a": "b"}, "Be brief.", False)
    row = await shared.row(answer.headway["request_id"])
    assert (row["api"], row["outcome"], row["output_tokens"]) == ("responses", "ok", 5)
    assert (row["finish_reason"], row["max_tokens"]) == ("length", 5)
    assert row["prompt_tokens"] == answer.usage.input_tokens
    assert row["ttft_s"] is not None


@MODELS
async def test_stream(shared, model):
    async with client(shared) as api:
        whole = await api.responses.create(model=model, input="Tell me a joke")
        async with api.responses.stream(model=model, input="Tell me a joke") as stream:
            kinds = [event.type async for event in stream]
            final_response = await stream.get_final_response()
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert final_response.output_text == whole.output_text
    assert final_response.usage == whole.usage
    assert final_response.headway["outcome"] == "ok"


@MODELS
async def test_a_shape_for_the_text(shared, model):
    class Inner(BaseModel):
        kind: Literal["cat", "dog"]
        age: int

    class Animal(BaseModel):
        name: str
        what: Inner

    async with client(shared) as api:
        answer = await api.responses.parse(model=model, input="A cat", text_format=Animal)
        assert answer.output_parsed.what == Inner(kind="cat", age=1)
        async with api.responses.stream(model=model, input="A cat", text_format=Animal) as stream:
            streamed = await stream.get_final_response()
        assert streamed.output_parsed == answer.output_parsed


async def test_tools(shared):
    """Forced at a vLLM; what an Ollama calls by itself goes the same way (`test_thoughts_and_calls`)."""
    history = [{"role": "user", "content": "Weather?"}]
    request = {"model": "qwen2.5-7b", "tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}}
    async with client(shared) as api:
        answer = await api.responses.create(input=history, **request)
        (call,) = answer.output
        assert (call.type, call.name) == ("function_call", "weather")
        assert json.loads(call.arguments) == {"city": "emulated"}
        async with api.responses.stream(input=history, **request) as stream:
            kinds = [event.type.removeprefix("response.") async for event in stream]
            (streamed,) = (await stream.get_final_response()).output
        assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
        deltas = kinds.count("function_call_arguments.delta")
        assert deltas >= 1
        assert kinds == [
            *("created", "in_progress", "output_item.added"),
            *["function_call_arguments.delta"] * deltas,
            *("function_call_arguments.done", "output_item.done", "completed"),
        ]
        history += [
            *[item.model_dump(exclude_none=True) for item in answer.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"},
        ]
        after = await api.responses.create(
            model="qwen2.5-7b", tools=[TOOL], input=history, max_output_tokens=4
        )
        assert after.output_text


async def test_log_probabilities(shared):
    async with client(shared) as api:
        answer = await api.responses.create(
            model="qwen2.5-7b",
            input="Hi",
            max_output_tokens=4,
            top_logprobs=2,
            include=["message.output_text.logprobs"],
        )
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(one.token for one in logprobs) == answer.output_text
    assert [len(one.top_logprobs) for one in logprobs] == [2] * 4


async def test_thoughts_and_calls(tmp_path):
    """What comes of an engine that thinks, says something and calls two tools; streamed and whole."""

    def delta(**said):
        return event(**{"choices": [{"index": 0, "delta": said, "finish_reason": None}]})

    def call(index, arguments, **first):
        function = ({"name": first.pop("name")} if "name" in first else {}) | {"arguments": arguments}
        return delta(tool_calls=[{"index": index, **first, "function": function}])

    said = [
        *(delta(reasoning="Let me "), delta(reasoning="see."), delta(content="I look.")),
        *(
            call(0, "", id="a", name="weather"),
            call(0, '{"city":"Rome"}'),
            call(1, "{}", id="b", name="time"),
        ),
        event(finish="tool_calls"),
        final(20, 9),
        DONE,
    ]
    script = says(end=b"".join(said))
    async with staged(tmp_path, script, script) as (gw, _), client(gw) as api:
        answer = await api.responses.create(model="small", input="Weather?", tools=[TOOL])
        async with api.responses.stream(model="small", input="Weather?", tools=[TOOL]) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_response()
    for one in (answer, streamed):
        thought, message, first, second = one.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "Let me see.")
        assert message.content[0].text == one.output_text == "I look."
        assert (first.call_id, first.name, first.arguments) == ("a", "weather", '{"city":"Rome"}')
        assert (second.call_id, second.name, second.arguments) == ("b", "time", "{}")
        assert (one.status, one.usage.input_tokens, one.usage.output_tokens) == ("completed", 20, 9)


async def test_what_an_engine_is_asked_for(tmp_path):
    async with staged(tmp_path, says("Hi"), kind="openai") as (gw, stage):
        body = {"model": "small", "input": "Hi", "max_output_tokens": 7, "reasoning": {"effort": "low"}}
        assert (await gw.post("/v1/responses", body | {"store": True, "seed": 3}))[0] == 200
    assert stage.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_completion_tokens": 7,
            "reasoning_effort": "low",
            "seed": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_a_dry_run(shared):
    chat = {"model": VLLM, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    _, as_chat = await shared.post("/v1/routing/predict", chat)
    for body in ({"input": "Hi", "max_output_tokens": 9}, {"input": [{"role": "user", "content": "Hi"}]}):
        status, found = await shared.post("/v1/routing/predict", {"model": VLLM} | body)
        assert (status, found["instance"], found["prompt_tokens"]) == (200, "b", as_chat["prompt_tokens"])
        assert found["candidates"][0]["predicted"]["output_tokens_p50"] > 0
    _, embedding = await shared.post("/v1/routing/predict", {"model": VLLM, "input": "Hi"})
    assert not embedding["candidates"][0]["predicted"]["output_tokens_p50"]


async def test_its_errors(shared):
    async with client(shared) as api:

        async def refused(**body):
            with pytest.raises(openai.APIStatusError) as error:
                await api.responses.create(**({"model": "auto", "input": "Hi"} | body))
            return error.value.status_code, error.value.code, error.value.param

        found = await refused(previous_response_id="resp_1")
        assert found == (400, "invalid_request", "previous_response_id")
        assert await refused(tools=[{"type": "web_search"}]) == (400, "invalid_request", "tools")
        assert await refused(model="gpt-9") == (404, "model_not_found", "model")
        seen = await refused(extra_body={"routing": {"policy": "x"}})
        assert seen == (400, "invalid_request", "routing.policy")
    status, body = await shared.post("/v1/responses", [])
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    async with shared.http.get(shared.url + "/v1/responses") as response:
        assert (response.status, response.headers["allow"]) == (405, "POST")


async def test_an_engine_s_refusal_names_the_field_as_it_is_called_here(tmp_path):
    async def refuses(exchange):
        error = {
            "message": "too many",
            "type": "BadRequestError",
            "param": "max_completion_tokens",
            "code": 400,
        }
        await exchange.answer(400, json.dumps({"error": error}).encode())

    async with staged(tmp_path, refuses) as (gw, _):
        body = {"model": "small", "input": "Hi", "max_output_tokens": 9, "stream": True}
        status, answer = await gw.post("/v1/responses", body)
        assert (status, answer["error"]["param"]) == (400, "max_output_tokens")


async def test_a_stream_that_breaks(tmp_path):
    async with live(tmp_path, vllm("a")) as gw, client(gw) as api:
        gw.engines["a"].arm(fault("error_mid_stream", after_tokens=3))
        stream = await api.responses.create(model="small", input="Hi", stream=True)
        with pytest.raises(openai.APIError) as broken:
            assert "response.completed" not in [one.type async for one in stream]
        assert broken.value.code == "upstream_error"
        gw.engines["a"].arm(fault("error_mid_stream", after_tokens=3))
        async with gw.http.post(
            f"{gw.url}/v1/responses", json={"model": "small", "input": "Hi", "stream": True}
        ) as response:
            last = blocks(await response.text())[-1]
        assert (last["type"], last["code"], last["error"]["type"]) == ("error", "upstream_error", "api_error")


async def test_an_answer_cut_by_its_money(tmp_path):
    """The engine keeps to no bound: the router ends the answer where the cap ends."""
    words = says(*[" word"] * 30)
    cap = {"routing": {"max_cost_usd": 6.7e-6}}  # the bound of the prompt and seven tokens
    async with staged(tmp_path, words, words, engines="a") as (gw, _):
        status, answer = await gw.post("/v1/responses", {"model": "small", "input": "Hi", **cap})
        assert status == 200
        async with gw.http.post(
            f"{gw.url}/v1/responses", json={"model": "small", "input": "Hi", "stream": True, **cap}
        ) as response:
            last = blocks(await response.text())[-1]
    assert last["type"] == "response.incomplete"
    for one in (answer, last["response"]):
        assert (one["status"], one["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert one["headway"]["outcome"] == "budget_exhausted_mid_decode"
        assert one["output"][0]["content"][0]["text"] == " word" * 7
        assert one["usage"]["output_tokens"] == 8  # the one more that showed it
