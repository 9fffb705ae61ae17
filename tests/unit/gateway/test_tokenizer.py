"""Counts by a configured tokenizer: all that stands in the prompt, and a bound that nothing passes."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

import pytest

from router.request.prompt import prompt_facts
from router.request.tokenizer import PromptTokenizer
from tests.waiting import until

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "enum": list(range(200))}},
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a" * 300]}}}
HI = {"messages": [{"role": "user", "content": "Hello"}]}


class Bytes:
    """The vocabulary of single bytes: no other byte-level one counts more."""

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes]:
        assert not add_special_tokens
        return [text.encode() for text in texts]


async def counted(api: str, **body: Any) -> tuple[int, int]:
    return await PromptTokenizer(Bytes()).count(api, body, prompt_facts(api, body))


async def test_tools_are_counted_with_what_is_written_around_their_strings() -> None:
    tokens, bound = await counted("chat", **HI)
    with_tool, tool_bound = await counted("chat", **HI, tools=[TOOL])
    printed = json.dumps(TOOL, indent=4)  # as Llama 3.1's template does
    assert tool_bound - bound >= len(re.sub(" {1,16}", " ", printed))  # vocabularies have runs of spaces
    assert with_tool - tokens >= len(json.dumps(TOOL, separators=(",", ":"))) // 4
    assert with_tool < tool_bound


async def test_a_response_s_schema_stands_in_the_bound_only() -> None:
    tokens, bound = await counted("chat", **HI)
    with_schema, schema_bound = await counted("chat", **HI, response_format=SCHEMA)
    assert with_schema == tokens
    assert schema_bound - bound >= len(json.dumps(SCHEMA, indent=4))


async def test_a_client_that_leaves_frees_no_thread_that_still_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.request.tokenizer._PATIENCE_S", 60.0)

    class Slow(Bytes):
        begun = 0
        may_end = threading.Event()

        def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes]:
            self.begun += 1
            assert self.may_end.wait(60)
            return super().encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    slow = Slow()
    tokenizer = PromptTokenizer(slow)
    body = {"prompt": "x" * 10_000}
    facts = prompt_facts("completions", body)
    for begun in (1, 2, 2, 2):
        counting = asyncio.create_task(tokenizer.count("completions", body, facts))
        await until(lambda begun=begun: slow.begun == begun)
        for _ in range(5):  # one that no thread is free for begins to wait
            await asyncio.sleep(0)
        counting.cancel()
    assert slow.begun == 2
    slow.may_end.set()
    assert (await tokenizer.count("completions", body, facts))[0] > 10_000  # the threads are free again


async def test_a_suffix_counts_once_for_each_prompt() -> None:
    for prompt in ("Hello", ["Hello", "Hi"]):
        plain = await counted("completions", prompt=prompt)
        filled = await counted("completions", prompt=prompt, suffix="x" * 400)
        times = 1 if isinstance(prompt, str) else len(prompt)
        assert filled[0] - plain[0] == 400 * times
        assert filled[1] - plain[1] >= 400 * times


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}, {"tools": [TOOL], "response_format": SCHEMA}])
async def test_the_bound_of_single_bytes_is_the_bound_without_a_tokenizer(more: dict[str, Any]) -> None:
    assert (await counted("chat", **HI, **more))[1] == prompt_facts("chat", HI | more).tokens_bound
