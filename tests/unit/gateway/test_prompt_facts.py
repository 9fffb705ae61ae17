"""What is counted of a chat: every part of the prompt, and bounds that nothing passes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.gateway.prompt import (
    IMAGE_TOKENS,
    IMAGE_TOKENS_BOUND,
    TEMPLATE_TOKENS,
    TEMPLATE_TOKENS_PER_MESSAGE,
    PromptFacts,
    prompt_facts,
)

TEXT = {"role": "user", "content": "Hello"}
TEMPLATE = TEMPLATE_TOKENS + TEMPLATE_TOKENS_PER_MESSAGE
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("aé\n", max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


def facts(*messages: dict[str, Any], **more: Any) -> PromptFacts:
    return prompt_facts("chat", {"messages": list(messages or (TEXT,)), **more})


@given(JSON)
def test_tools_are_bounded_as_templates_print_them(parameters: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    printed = json.dumps(tool, indent=4, ensure_ascii=False).encode()  # Llama 3.1's template
    found = facts(tools=[tool])
    assert found.tokens_bound >= len(b"Hello") + TEMPLATE + len(printed)
    compact = json.dumps(tool, separators=(",", ":"), ensure_ascii=False).encode()
    assert found.tokens >= len(compact) // 4


def test_numbers_in_a_tool_count_too() -> None:
    numbers = {"type": "integer", "enum": list(range(1000))}
    tool = {"type": "function", "function": {"name": "f", "parameters": numbers}}
    assert facts(tools=[tool]).tokens_bound > 3000


def test_a_response_s_schema_stands_in_the_bound_only() -> None:
    plain = facts()
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in "abcdefgh"}}
    shaped = facts(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert shaped.tokens == plain.tokens
    assert shaped.tokens_bound >= plain.tokens_bound + len(json.dumps(schema, indent=4))


def test_images_count_a_usual_and_a_greatest_number_each() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    plain = facts({"role": "user", "content": [{"type": "text", "text": "Hello"}]})
    seen = facts({"role": "user", "content": [{"type": "text", "text": "Hello"}, image, image]})
    assert seen.tokens == plain.tokens + 2 * IMAGE_TOKENS
    assert seen.tokens_bound == plain.tokens_bound + 2 * IMAGE_TOKENS_BOUND
    assert IMAGE_TOKENS_BOUND == 16384


def test_thoughts_and_calls_of_earlier_turns_count() -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a":"' + "x" * 400 + '"}'},
    }
    plain = facts(TEXT, {"role": "assistant", "content": "Yes"})
    for more in ({"tool_calls": [call]}, {"reasoning": "x" * 400}, {"reasoning_content": "x" * 400}):
        seen = facts(TEXT, {"role": "assistant", "content": "Yes", **more})
        assert seen.tokens >= plain.tokens + 100
        assert seen.tokens_bound >= plain.tokens_bound + 400


def test_a_suffix_is_part_of_the_prompt() -> None:
    for prompt in ("Hello", ["Hello", "Hi"]):
        plain = prompt_facts("completions", {"prompt": prompt})
        filled = prompt_facts("completions", {"prompt": prompt, "suffix": "x" * 400})
        assert filled.tokens == plain.tokens + 100 * plain.prompts
        assert filled.tokens_bound == plain.tokens_bound + 400 * plain.prompts
