"""What the router needs to know of a prompt: token counts and prefix hashes. Text goes no further.

Without the engine's tokenizer the estimate is one token for four UTF-8 bytes (English text in the Llama 3
and Qwen 2.5 vocabularies is at 4.2 to 4.6; the predictors learn the true ratio of each model). A byte-level
BPE token covers at least one byte, so the byte count, plus what a chat template adds, is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import orjson

from predictors.text import prompt_features
from router.core.types import PREFIX_TOKENS, PromptFeatures

BYTES_PER_TOKEN = 4
#: Upper bound of what a chat template adds for one message, and once.
TEMPLATE_TOKENS_PER_MESSAGE = 16
TEMPLATE_TOKENS = 64
#: Tokens of one image. A usual value: Qwen2.5-VL takes one for 28 x 28 pixels, so about 1024 x 768. The upper bound:
#: the 12845056 pixels (`max_pixels` of its preprocessor_config.json) to which it shrinks larger ones. Others take fewer:
#: Llama 3.2 Vision 4 tiles of 1601, LLaVA-NeXT at most 2880, OpenAI's GPT-4o at most 1445.
IMAGE_TOKENS = 1024
IMAGE_TOKENS_BOUND = 12845056 // (28 * 28)
#: Prefix hashes: one for each leading block of this many bytes, at most so many.
PREFIX_BLOCK_BYTES = 1024
MAX_PREFIX_BLOCKS = PREFIX_TOKENS * BYTES_PER_TOKEN // PREFIX_BLOCK_BYTES

#: Members of a message that chat templates print beside its content.
_ALSO_RENDERED = ("tool_calls", "function_call", "reasoning", "reasoning_content")


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """`tokens`: best estimate; `tokens_bound`: upper bound; `prefix`: hashes of the leading blocks, each
    chained to those before it. `longest_tokens`: of several prompts in one request the longest, which is the
    one that must fit a context (None: there is only one), `prompts` how many there are."""

    tokens: int
    tokens_bound: int
    prefix: tuple[int, ...]
    longest_tokens: int | None = None
    prompts: int = 1
    features: PromptFeatures | None = None  # what predictors see of it; None: no text, or several prompts


def prompt_facts(api: str, body: Mapping[str, Any]) -> PromptFacts:
    """Facts of a checked body: a chat's `messages` (and `tools`), a completion's `prompt`, or an embedding's
    `input`."""
    if api == "chat":
        texts, images = chat_texts(body)
        facts = _with_features(
            texts, images, TEMPLATE_TOKENS + TEMPLATE_TOKENS_PER_MESSAGE * len(body["messages"])
        )
        tokens, bound = schema_tokens(body)
        if bound:
            return replace(facts, tokens=facts.tokens + tokens, tokens_bound=facts.tokens_bound + bound)
        return facts
    prompt = body["prompt"] if api == "completions" else body["input"]
    suffix = body.get("suffix")  # what the answer is to lead to is written into the prompt too
    more = [suffix] if api == "completions" and isinstance(suffix, str) else []
    if isinstance(prompt, str):
        if api == "embeddings":
            return _facts([prompt], 0, 8)
        return _with_features([prompt, *more], 0, 8)
    if isinstance(prompt[0], str):
        every = [_facts([text, *more], 0, 8) for text in prompt]
        return PromptFacts(
            sum(facts.tokens for facts in every),
            sum(facts.tokens_bound for facts in every),
            every[0].prefix if len(every) == 1 else (),
            max(facts.tokens for facts in every),
            len(every),
        )
    if isinstance(prompt[0], int):
        return PromptFacts(len(prompt), len(prompt), ())
    lengths = [max(1, len(ids)) for ids in prompt]
    return PromptFacts(sum(lengths), sum(lengths), (), max(lengths), len(lengths))


def prompt_texts(api: str, body: Mapping[str, Any]) -> list[str]:
    """All text of a checked body; empty for token ids."""
    if api == "chat":
        return chat_texts(body)[0]
    prompt = body["prompt"] if api == "completions" else body["input"]
    if isinstance(prompt, str):
        return [prompt]
    return prompt if isinstance(prompt[0], str) else []


def chat_texts(body: Mapping[str, Any]) -> tuple[list[str], int]:
    """The texts of a chat, and how many images (or other media) it holds."""
    messages = body["messages"]
    if len(messages) == 1 and isinstance(content := messages[0].get("content"), str) and "tools" not in body:
        return [content], 0
    texts: list[str] = []
    media = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            for part in content:
                text = part.get("text")
                if isinstance(text, str):
                    texts.append(text)
                elif part.get("type", "text") != "text":
                    media += 1
        for name in _ALSO_RENDERED:
            if name in message:
                texts.extend(_strings(message[name]))
    if "tools" in body:
        texts.extend(_strings(body["tools"]))
    return texts, media


def _with_features(texts: list[str], images: int, template_tokens: int) -> PromptFacts:
    facts = _facts(texts, images, template_tokens)
    features = prompt_features(texts[0] if len(texts) == 1 else "\n".join(texts))
    return replace(facts, features=features)


def schema_tokens(body: Mapping[str, Any]) -> tuple[int, int]:
    """What is written around the strings of a chat's tools (they are counted as texts), and what a `response_format`
    takes: the best estimate and an upper bound.

    Templates print tools as JSON, that of Llama 3.1 with an indent of 4. A response's schema only binds the sampling of
    vLLM and Ollama, but is a part of the prompt of OpenAI's models and of gpt-oss: it stands in the bound only.
    """
    tokens = bound = 0
    tools = body.get("tools")
    if tools:
        strings = sum(len(text.encode("utf-8", "surrogatepass")) for text in _strings(tools))
        plain, printed = _json_bytes(tools)
        tokens += max(0, plain - strings) // BYTES_PER_TOKEN
        bound += max(0, printed - strings)
    wanted = body.get("response_format")
    if wanted:
        bound += _json_bytes(wanted)[1]
    return tokens, bound


def _json_bytes(value: Any) -> tuple[int, int]:
    """Bytes of a value as JSON: without a space, and at most with an indent of 4 (twice as much space as with 2)."""
    plain, indented = len(orjson.dumps(value)), len(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    return plain, 2 * indented - plain


def _facts(texts: list[str], images: int, template_tokens: int) -> PromptFacts:
    size = 0
    for text in texts:
        size += len(text) if text.isascii() else len(text.encode())
    prefix: tuple[int, ...] = ()
    if size >= PREFIX_BLOCK_BYTES:
        prefix = _prefix_hashes("".join(texts))
    tokens = max(1, -(-size // BYTES_PER_TOKEN)) + images * IMAGE_TOKENS
    return PromptFacts(tokens, size + template_tokens + images * IMAGE_TOKENS_BOUND, prefix)


def _prefix_hashes(text: str) -> tuple[int, ...]:
    data = text[: PREFIX_BLOCK_BYTES * MAX_PREFIX_BLOCKS].encode()
    hashes = []
    value = 0
    for end in range(
        PREFIX_BLOCK_BYTES, min(len(data), PREFIX_BLOCK_BYTES * MAX_PREFIX_BLOCKS) + 1, PREFIX_BLOCK_BYTES
    ):
        value = crc32(data[end - PREFIX_BLOCK_BYTES : end], value)
        hashes.append(value)
    return tuple(hashes)


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, names of members included (a template prints them too)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)
