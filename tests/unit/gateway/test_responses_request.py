"""Requests of the Responses API as chats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.errors import Refusal
from router.gateway.codecs.responses.request import renamed, responses_to_chat
from router.request import body as bodies
from router.request.prompt import prompt_facts

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "weather", "description": "The weather", "parameters": PARAMETERS}


def messages(given: Any, **more: Any) -> list[dict[str, Any]]:
    return responses_to_chat({"model": "m", "input": given, **more}).body["messages"]


def test_a_text_with_instructions() -> None:
    found = messages("Hi", instructions="Be brief.")
    assert found == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_messages_and_their_parts() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    given = [
        {"role": "developer", "content": "Rules"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "What is it?"}, image],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "A cat", "annotations": []}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
    ]
    url = {"url": "data:image/png;base64,AA==", "detail": "low"}
    assert messages(given) == [
        {"role": "system", "content": "Rules"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": url}],
        },
        {"role": "assistant", "content": "A cat"},
        {"role": "user", "content": "Sure?"},
    ]


def test_one_turn_of_the_model_is_one_message() -> None:
    """Its thoughts, its text and its calls; an answer of a tool begins the next."""
    given = [
        {"role": "user", "content": "Weather?"},
        {
            "type": "reasoning",
            "id": "r",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "Sunny"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "Rain"}]},
        {"type": "reasoning", "id": "q", "summary": [{"type": "summary_text", "text": "Done"}]},
        {"type": "message", "role": "assistant", "content": "Sunny there."},
        {"type": "reasoning", "id": "p", "summary": [], "encrypted_content": "..."},
    ]
    calls = [
        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
        {"id": "b", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
    ]
    assert messages(given) == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "reasoning": "Hm", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "Sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "Rain"},
        {"role": "assistant", "reasoning": "Done", "content": "Sunny there."},
    ]


def test_fields_go_by_their_names_in_a_chat() -> None:
    asked = responses_to_chat(
        {
            "model": "m",
            "input": "Hi",
            "stream": True,
            "max_output_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
            "tools": [{**TOOL, "strict": True}],
            "tool_choice": {"type": "function", "name": "weather"},
            "parallel_tool_calls": False,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS, "strict": True}},
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
            "top_logprobs": 2,
            "metadata": {"a": "b"},
            "store": True,
            "truncation": "auto",
            "user": "u",
            "prompt_cache_key": "k",
            "routing": {"policy": "cost"},
            "previous_response_id": None,
            "stream_options": {"include_obfuscation": False},
            "seed": 3,
            "top_k": 5,
        }
    )
    function = {key: TOOL[key] for key in ("name", "description", "parameters")} | {"strict": True}
    assert asked.stream
    assert asked.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": PARAMETERS, "strict": True},
        },
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 2,
        "user": "u",
        "prompt_cache_key": "k",
        "routing": {"policy": "cost"},
        "seed": 3,
        "top_k": 5,
    }
    echo = asked.echo
    assert (echo["store"], echo["truncation"], echo["max_output_tokens"]) == (False, "disabled", 9)
    assert (echo["metadata"], echo["temperature"]) == ({"a": "b"}, 0.5)
    assert echo["text"]["format"]["type"] == "json_schema"
    assert echo["reasoning"] == {"effort": "low", "summary": "auto"}


def test_what_is_not_asked_for_is_not_sent() -> None:
    body = {"model": "m", "input": "Hi", "tool_choice": "auto", "text": {"format": {"type": "text"}}}
    assert responses_to_chat(body).body == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    shaped = responses_to_chat(body | {"text": {"format": {"type": "json_object"}, "verbosity": "low"}}).body
    assert (shaped["response_format"], shaped["verbosity"]) == ({"type": "json_object"}, "low")


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_tools(mode: str) -> None:
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "time"}]}
    tools = [TOOL, {"type": "function", "name": "time"}]
    asked = responses_to_chat({"model": "m", "input": "Hi", "tools": tools, "tool_choice": choice})
    assert asked.body["tools"] == [{"type": "function", "function": {"name": "time"}}]
    assert asked.body["tool_choice"] == mode
    assert (asked.echo["tools"], asked.echo["tool_choice"]) == (tools, choice)


def namespace(name: str, *tools: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "Some tools", "tools": list(tools)}


def test_functions_in_a_namespace_are_functions_of_the_chat() -> None:
    """As Codex sends its tools: the other kinds are left out, and calls of earlier turns have a chat's names too."""
    tools = [TOOL, namespace("mcp__a", TOOL, {"type": "custom", "name": "patch"}), {"type": "web_search"}]
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    given = [{"role": "user", "content": "Hi"}, call, {**call, "namespace": "mcp__a"}]
    asked = responses_to_chat(
        {"model": "m", "input": given, "tools": tools, "client_metadata": {"turn": "1"}}
    )
    assert asked.body.keys() == {"model", "messages", "tools"}
    names = [tool["function"].pop("name") for tool in asked.body["tools"]]
    assert names == ["weather", "mcp__a__weather"]
    assert asked.body["tools"][0] == asked.body["tools"][1]
    assert [one["function"]["name"] for one in asked.body["messages"][1]["tool_calls"]] == names
    assert asked.namespaces == {"mcp__a__weather": ("mcp__a", "weather")}


def allowed(*tools: Any, mode: str = "auto") -> dict[str, Any]:
    return {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (allowed(), "tool_choice.tools"),
        (allowed({"type": "function", "name": "time"}), "tool_choice.tools"),
        (allowed({"type": "mcp"}), "tool_choice.tools[0].type"),
        (allowed({"type": "function", "name": "weather"}, mode="none"), "tool_choice.mode"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [namespace("web", {"type": "custom", "name": "run"})]}, "tools"),
        ({"tools": [namespace("web", {"type": "function"})]}, "tools[0].tools[0].name"),
        ({"tools": [namespace("web", *[TOOL] * 600)] * 2}, "tools"),
        ({"tools": [{"type": "namespace", "name": "web"}]}, "tools[0].tools"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [{**TOOL, "parameters": 1}]}, "tools[0].parameters"),
        ({"tools": [1]}, "tools[0]"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": ["auto"]}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {}}, "response_format"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"instructions": 1}, "instructions"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"include": [1]}, "include[0]"),
        ({"truncation": "middle"}, "truncation"),
        ({"text": {"format": 1}}, "text.format"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"input": {"role": "user"}}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"tools": {}}, "tools"),
        ({"text": []}, "text"),
        ({"reasoning": "low"}, "reasoning"),
        ({"input": ["Hi"]}, "input[0]"),
        ({"input": [{"type": 1}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": ["Hi"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"text": "Hi"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
    ],
)
def test_what_is_refused(bad: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as refused:
        responses_to_chat({"model": "m", "input": "Hi"} | bad)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_request", param)


def test_an_engine_s_param_goes_by_its_name_here() -> None:
    names = ["messages[0].content", "max_completion_tokens", "response_format.json_schema", "seed", None]
    assert [renamed(name) for name in names] == ["input", "max_output_tokens", "text.format", "seed", None]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 99) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def some(known: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with members of these names, right or wrong."""
    fields = {
        name: JSON | (st.just(value) if not isinstance(value, st.SearchStrategy) else value)
        for name, value in known.items()
    }
    return st.fixed_dictionaries({}, optional=fields)


PART = some(
    {
        "type": st.sampled_from(["input_text", "output_text", "input_image", "refusal", "input_file"]),
        "text": "Hi",
        "image_url": "data:,",
        "refusal": "No",
        "detail": "low",
    }
)
ITEM = some(
    {
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]),
        "role": st.sampled_from(["user", "assistant", "developer"]),
        "content": st.lists(PART, max_size=2) | st.text(max_size=5),
        "output": st.lists(PART, max_size=2) | st.text(max_size=5),
        "summary": st.lists(PART, max_size=2),
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
    }
)
BODY = some(
    {
        "input": st.lists(ITEM, max_size=4),
        "instructions": "Be brief",
        "tools": st.lists(some({"type": "function", "name": "f", "parameters": PARAMETERS}), max_size=2),
        "tool_choice": some({"type": "function", "name": "f"}),
        "text": some({"format": some({"type": "json_schema", "name": "x", "schema": PARAMETERS})}),
        "reasoning": some({"effort": "low"}),
        "include": st.lists(JSON, max_size=2),
        "metadata": some({"a": "b"}),
        "top_logprobs": 2,
        "max_output_tokens": 3,
        "n": 1,
        "stop": "x",
        "stream": True,
    }
)


@given(BODY)
@example({"input": [{"type": "reasoning", "content": [{"text": "a"}]}, {"type": "function_call_output"}]})
def test_any_body_is_a_chat_or_a_400_that_names_its_field(body: dict[str, Any]) -> None:
    refused = None
    try:
        asked = responses_to_chat(body)
        bodies.check("chat", asked.body)
    except Refusal as refusal:
        refused = refusal
    if refused is None:
        facts = prompt_facts("chat", asked.body)
        assert 0 < facts.tokens <= facts.tokens_bound
        return
    assert refused.status == 400
    assert refused.param.split("[")[0].split(".")[0] in body or refused.param == "input"
