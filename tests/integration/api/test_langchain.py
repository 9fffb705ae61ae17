"""LangChain's `ChatOpenAI`, unchanged, over both of OpenAI's APIs and both kinds of engine."""

from __future__ import annotations

from typing import Literal

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOTH = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
MODELS = pytest.mark.parametrize("model", ["qwen2.5-7b", "llama-3.1-8b"])


class Animal(BaseModel):
    """An animal."""

    name: str
    kind: Literal["cat", "dog"]


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}"


def chat(gw, model, responses, **settings):
    return ChatOpenAI(
        model=model,
        base_url=f"{gw.url}/v1",
        api_key="none",
        max_retries=0,
        use_responses_api=responses,
        **settings,
    )


@BOTH
@MODELS
async def test_invoke_and_stream(shared, model, responses):
    llm = chat(shared, model, responses, max_tokens=6, stream_usage=True)
    said = [("system", "Be brief."), ("user", "Tell me a joke")]
    answer = await llm.ainvoke(said)
    chunks = [chunk async for chunk in llm.astream(said)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert answer.text
    assert whole.text == answer.text
    assert answer.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] == 6
    assert answer.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"] > 0
    assert answer.response_metadata["model_name"] == model


@BOTH
async def test_tools(shared, responses):
    """A call, streamed and not, and the turn after it."""
    llm = chat(shared, "qwen2.5-7b", responses).bind_tools([weather], tool_choice="weather")
    history = [HumanMessage("What is the weather?")]
    answer = await llm.ainvoke(history)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "emulated"})
    whole = None
    async for chunk in llm.astream(history):
        whole = chunk if whole is None else whole + chunk
    (streamed,) = whole.tool_calls
    assert (streamed["name"], streamed["args"]) == (call["name"], call["args"])
    for said in (answer, whole):
        (made,) = said.tool_calls
        result = ToolMessage(weather.invoke(made["args"]), tool_call_id=made["id"])
        after = await chat(shared, "qwen2.5-7b", responses, max_tokens=4).ainvoke([*history, said, result])
        assert after.text


@BOTH
@MODELS
async def test_structured_output(shared, model, responses):
    llm = chat(shared, model, responses).with_structured_output(Animal)  # by response_format, or text.format
    found = await llm.ainvoke("A cat")
    assert (type(found), found.kind) == (Animal, "cat")
    assert found.name


async def test_structured_output_by_a_tool(shared):
    llm = chat(shared, "qwen2.5-7b", False).with_structured_output(Animal, method="function_calling")
    assert await llm.ainvoke("A cat") == Animal(name="emulated", kind="cat")


@BOTH
async def test_routing_in_extra_body(shared, responses):
    llm = chat(shared, "auto", responses, max_tokens=3, extra_body={"routing": {"policy": "price"}})
    answer = await llm.ainvoke("Hi")
    assert answer.response_metadata["model_name"] == "qwen2.5-7b"  # the cheaper
