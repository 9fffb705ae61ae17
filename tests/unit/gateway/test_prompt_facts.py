"""What is counted of a chat: every part of the prompt, and bounds that nothing passes."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import bounded_json
from router.core.interfaces import COUNTED_FIELDS
from router.core.raw_json import LongText
from router.request.prompt import (
    IMAGE_TOKENS,
    IMAGE_TOKENS_BOUND,
    TEMPLATE_TOKENS,
    PromptFacts,
    leading_chars,
    prompt_facts,
    unseen_bytes,
)

TEXT = {"role": "user", "content": "Hello"}
MESSAGE_TOKENS = 16  # that a template adds for one, at most
TEMPLATE = TEMPLATE_TOKENS + MESSAGE_TOKENS
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
    found = facts(tools=[tool])
    indented = json.dumps(tool, indent=4, ensure_ascii=False).encode()  # Llama 3.1's template
    escaped = json.dumps(tool, ensure_ascii=False).encode()  # Go's JSON
    for sign in (b"<", b">", b"&"):
        escaped = escaped.replace(sign, b"\\u0000")
    for printed in (indented, escaped):  # a run of spaces is a token for each 16 at most
        assert found.tokens_bound >= len(b"Hello") + TEMPLATE + len(re.sub(rb" {1,16}", b" ", printed))
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
    parts = len(json.dumps([image, image], separators=(",", ":")))
    assert 2 * IMAGE_TOKENS_BOUND < seen.tokens_bound - plain.tokens_bound < 2 * IMAGE_TOKENS_BOUND + parts
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
        assert filled.tokens_bound >= plain.tokens_bound + 400 * plain.prompts


HIDDEN = "x" * 40_000
LONG_URL = {"type": "image_url", "image_url": {"url": "https://example.org/" + HIDDEN}}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("chat", {"messages": [{"role": HIDDEN, "content": "Hello"}]}),
        ("chat", {"messages": [TEXT | {"name": HIDDEN}]}),
        ("chat", {"messages": [TEXT | {"made_up": {"deep": [HIDDEN]}}]}),
        ("chat", {"messages": [TEXT], "documents": [{"title": "a", "text": HIDDEN}]}),
        ("chat", {"messages": [TEXT], "chat_template_kwargs": {"note": HIDDEN}}),
        ("chat", {"messages": [TEXT], "made_up": HIDDEN}),
        ("chat", {"messages": [TEXT], "user": HIDDEN}),
        ("chat", {"messages": [TEXT], "metadata": {"a": HIDDEN}}),
        ("chat", {"messages": [TEXT], "stop": [HIDDEN]}),
        ("chat", {"messages": [{"role": "user", "content": [LONG_URL]}]}),
        ("chat", {"messages": [{"role": "user", "content": [LONG_URL | {"text": HIDDEN}]}]}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "made_up", "data": HIDDEN}]}]}),
        ("chat", {"messages": [TEXT], "tools": [{"type": "function", "function": {"name": HIDDEN}}]}),
        ("completions", {"prompt": "Hello", "system": HIDDEN}),
        ("completions", {"prompt": ["Hello", "Hi"], "suffix": HIDDEN}),
        ("completions", {"prompt": [1, 2], "suffix": HIDDEN}),
        ("embeddings", {"input": "Hello", "instruction": HIDDEN}),
    ],
)
def test_nothing_that_is_sent_is_left_out_of_the_bound(api: str, body: dict[str, Any]) -> None:
    assert prompt_facts(api, body).tokens_bound >= len(HIDDEN)


@given(st.dictionaries(st.text("abc", min_size=1), JSON, max_size=3), JSON)
def test_the_bound_is_no_less_than_the_json_that_is_sent(more: dict[str, Any], member: Any) -> None:
    """Whatever stands where, images' data apart."""
    body = {"messages": [TEXT | {"x": member}], **more}
    assert prompt_facts("chat", body).tokens_bound >= len(orjson.dumps(body)) + MESSAGE_TOKENS


def test_of_images_alone_the_data_does_not_count() -> None:
    url = "data:image/png;base64," + HIDDEN
    image = {"type": "image_url", "image_url": {"url": url}}
    assert facts({"role": "user", "content": [image]}).tokens_bound < IMAGE_TOKENS_BOUND + 1000
    for other in (
        {"type": "input_audio", "input_audio": {"data": HIDDEN}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "image_url", "image_url": {"url": url + "é"}},
    ):
        assert facts({"role": "user", "content": [other]}).tokens_bound > IMAGE_TOKENS_BOUND + len(HIDDEN)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + HIDDEN}},
        {"type": "image_url", "image_url": {"url": "data:application/octet-stream;base64," + HIDDEN}},
        {"type": "input_audio", "input_audio": {"data": HIDDEN, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + HIDDEN}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + HIDDEN}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + HIDDEN}},
        {"type": "video", "video": ["data:image/jpeg;base64," + HIDDEN] * 2},
    ],
)
def test_the_estimate_counts_no_data_of_media_as_text(part: dict[str, Any]) -> None:
    words = {"type": "text", "text": "word " * 1000}
    seen = facts({"role": "user", "content": [words, part]})
    assert seen.tokens == facts({"role": "user", "content": [words]}).tokens + IMAGE_TOKENS


@pytest.mark.parametrize(
    "part", [{"image_url": {"url": "a"}}, {"type": "text", "text": "a", "image_url": "b"}]
)
def test_what_an_engine_may_take_for_an_image_counts_as_one(part: dict[str, Any]) -> None:
    assert facts({"role": "user", "content": [part]}).media == 1


def test_what_hides_in_a_message_counts_against_limits_too() -> None:
    assert facts(TEXT | {"name": HIDDEN}).tokens > len(HIDDEN) // 5
    assert facts(documents=[{"text": HIDDEN}]).tokens > len(HIDDEN) // 5


def test_what_a_tokenizer_endpoint_does_not_take_is_counted_beside_it() -> None:
    body = {"messages": [TEXT], "model": "m", "stop": [HIDDEN], "temperature": 1, "documents": [HIDDEN]}
    assert len(HIDDEN) < unseen_bytes(body, COUNTED_FIELDS) < len(HIDDEN) + 20


@given(st.lists(st.text(max_size=6), max_size=5), st.integers(1, 20), st.sampled_from(["", "\n"]))
def test_the_first_characters_of_joined_texts(texts: list[str], chars: int, between: str) -> None:
    assert leading_chars(texts, chars, between)[:chars] == between.join(texts)[:chars]


@pytest.mark.parametrize("prompts", [["Hello"] * 10, [[1, 2]] * 10])
@pytest.mark.parametrize(("api", "name"), [("completions", "prompt"), ("embeddings", "input")])
def test_what_may_be_written_into_each_prompt_counts_for_each(api, name, prompts):
    one = prompt_facts(api, {name: prompts[:1], "written": "word " * 1000})
    ten = prompt_facts(api, {name: prompts, "written": "word " * 1000})
    assert one.tokens > 1000
    assert one.tokens_bound > 5000
    assert ten.tokens == 10 * one.tokens
    assert ten.tokens_bound >= 10 * 5000


URL = {"url": "HTTPS://example.org/x"}


@pytest.mark.parametrize(
    ("part", "least", "most"),
    [
        ({"type": "image_url", "image_url": URL}, 12_845, 17_000),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9999}}, 12_845, 17_000),
        ({"type": "video_url", "video_url": URL}, 115_200, 140_000),
        ({"type": "video_url", "video_url": URL | {"url": "http://x/?" + "x" * 20_000}}, 115_200, 140_000),
        ({"type": "video_url", "image_url": URL, "video_url": URL}, 115_200, 140_000),
        ({"type": "video_url", "image_url": URL}, 115_200, 140_000),
        ({"type": "audio_url", "audio_url": "https://example.org/x"}, 115_200, 140_000),
        ({"type": "video", "video": "https://example.org/x"}, 115_200, 140_000),
        ({"type": "input_audio", "input_audio": {"data": "A" * 50_000}}, 50_000, 60_000),
        (
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + "A" * 10**6}},
            115_200,
            140_000,
        ),
    ],
)
def test_media_are_bounded_where_only_the_text_was_counted(part, least, most):
    """A vLLM's /tokenize counts one place for each."""
    found = facts({"role": "user", "content": [part]})
    assert least <= found.media_bound <= most
    assert found.tokens_bound >= found.media_bound


@pytest.mark.parametrize("text", ["字" * 800_000, "é字" * 500_000, "naïve \\u " * 300_000, "\\u字" * 600_000])
async def test_a_long_text_counts_alike_however_it_is_escaped(text: str) -> None:
    chats = [
        await bounded_json.read(
            json.dumps({"messages": [TEXT | {"content": text}]}, ensure_ascii=escaped).encode()
        )
        for escaped in (True, False)
    ]
    assert isinstance(chats[0]["messages"][0]["content"], LongText)
    exact = len(text.encode()) / 4
    for chat in chats:
        found = prompt_facts("chat", chat)
        assert 0.5 * exact < found.tokens < 1.25 * exact
        assert found.tokens_bound >= 4 * exact


def test_a_prefix_ends_where_another_image_stands() -> None:
    def prefix(*data: str) -> tuple[int, ...]:
        urls = [f"data:image/png;base64,{each}" for each in data]
        images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        long = {"type": "text", "text": "word " * 500}
        return facts(
            {"role": "system", "content": "be brief " * 200}, TEXT | {"content": [*images, long]}
        ).prefix

    one, other = prefix("A" * 999), prefix("A" * 998 + "B")
    assert one == prefix("A" * 999)
    assert one[0] == other[0]  # the block of the system's message alone
    assert one[1] != other[1]
    assert one[1] != prefix("A" * 999, "C")[1]
