"""Any JSON to any route: never a 500, nothing in the log, no error that repeats what was sent.

Each member of a right body, at every depth, takes each odd value: other types, bools for numbers, numbers beyond all
measure, halves of surrogate pairs. HEADWAY_ODD_BODIES sets how many of them are sent (0: all), drawn by a fixed seed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.integration.stalls.held import held

COUNT = int(os.environ.get("HEADWAY_ODD_BODIES", "1000"))
ODD = [
    *("null", "true", "false", "0", "-1", "1.5", "1e308", "-1e308", "1e999", "NaN", "Infinity", "-Infinity"),
    *("9" * 400, "18446744073709551616", "9223372036854775807", "-9223372036854775809", '"9"', '""', '"x"'),
    *(
        '"\\ud800"',
        '"\\udc00x"',
        '"\\u0000"',
        f'"{"y" * 100_000}"',
        "[]",
        "[null]",
        "[true]",
        "[[]]",
        '[1,"a"]',
    ),
    *('["\\ud800"]', "[-1]", "[{}]", "{}", '{"":null}', '{"a":{"a":[]}}', '{"\\ud800":1}', '{"type":1}'),
]
ROUTING = {
    "policy": "cost",
    "slo": {"ttft_ms": 800, "tpot_ms": 50, "e2e_ms": 20000},
    "on_miss": "best_effort",
    "max_cost_usd": 1,
    "min_quality": 0.1,
    "models": ["m"],
    "priority": 0,
    "seed": 1,
}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "call1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "r"},
        {"role": "tool", "tool_call_id": "call1", "content": "y"},
    ],
    "max_tokens": 2,
    "max_completion_tokens": 2,
    "n": 1,
    "temperature": 0.5,
    "top_p": 1,
    "seed": 1,
    "stop": ["z"],
    "stream": False,
    "stream_options": {"include_usage": True},
    "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "logit_bias": {"1": 1},
    "logprobs": True,
    "top_logprobs": 1,
    "user": "u",
    "prompt_cache_key": "k",
    "metadata": {"a": "b"},
    "routing": ROUTING,
}
OPTIONS = {"num_predict": 2, "seed": 1, "temperature": 0.5, "top_k": 3, "stop": ["z"], "num_ctx": 2048}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/chat/completions"): CHAT,
    ("POST", "/v1/routing/predict"): CHAT,
    ("POST", "/v1/completions"): {
        "model": "m",
        "prompt": ["x", "y"],
        "suffix": "s",
        "max_tokens": 2,
        "best_of": 1,
        "echo": False,
        "logprobs": 1,
        "routing": ROUTING,
    },
    ("POST", "/v1/embeddings"): {
        "model": "m",
        "input": ["x"],
        "dimensions": 8,
        "encoding_format": "float",
        "user": "u",
    },
    ("POST", "/v1/responses"): {
        "model": "m",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
        ],
        "instructions": "i",
        "max_output_tokens": 2,
        "tools": [{"type": "function", "name": "f", "parameters": {}, "description": "d", "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
        "metadata": {"a": "b"},
        "truncation": "disabled",
        "stream": False,
    },
    ("POST", "/api/chat"): {
        "model": "m",
        "messages": [
            {"role": "user", "content": "x", "images": ["QUJD"]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "tool_name": "f", "content": "y", "tool_call_id": "c"},
        ],
        "stream": False,
        "keep_alive": "5m",
        "format": "json",
        "options": OPTIONS,
        "think": False,
        "logprobs": True,
        "top_logprobs": 1,
        "tools": [TOOL],
        "routing": ROUTING,
    },
    ("POST", "/api/generate"): {
        "model": "m",
        "prompt": "x",
        "system": "s",
        "suffix": "",
        "images": [],
        "raw": False,
        "context": [],
        "template": "",
        "keep_alive": 1,
        "stream": False,
        "options": OPTIONS,
    },
    ("POST", "/api/embed"): {
        "model": "m",
        "input": ["x"],
        "dimensions": 8,
        "truncate": True,
        "options": OPTIONS,
    },
    ("POST", "/api/embeddings"): {"model": "m", "prompt": "x", "keep_alive": 0},
    ("POST", "/api/show"): {"model": "m", "name": "m", "verbose": True},
    ("POST", "/v1/feedback"): {"request_id": "r", "quality": 0.5},
    ("PATCH", "/admin/targets"): {"key": None, "quality": 0.5, "attainment": 0.9},
    ("POST", "/admin/instances"): {
        "name": " ",
        "kind": "vllm",
        "url": "http://127.0.0.1:1",
        "serves": {"m": {"name": "m", "price": {"input_usd_per_mtok": 1}, "context_tokens": 10}},
        "max_concurrency": 2,
    },
}
_HERE = "@here@"


def changed(value: Any) -> Iterator[Any]:
    """The value with each of its parts, itself included, replaced by a mark."""
    yield _HERE
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, part in list(parts):
        for other in changed(part):
            copy = value.copy()
            copy[place] = other
            yield copy
    if isinstance(value, dict):
        yield value | {_HERE: 1}
        yield value | {"another": _HERE}


async def test_odd_bodies_are_answered_and_never_a_500(tmp_path: Path) -> None:
    every = [
        (method, path, json.dumps(other).replace(f'"{_HERE}"', odd))
        for (method, path), value in BODIES.items()
        for other in changed(value)
        for odd in ODD
        if not (f'"{_HERE}":' in json.dumps(other) and not odd.startswith('"'))
    ]
    chosen = Random(1).sample(every, COUNT) if COUNT else every
    faults: list[str] = []
    async with held(tmp_path) as gateway:

        async def send(part: list[tuple[str, str, str]]) -> None:
            for method, path, text in part:
                status, answer = await gateway.post(path, text.encode("utf-8", "surrogatepass"), method)
                where = f"{method} {path} {text[:1500]}: {status} {answer[:200]!r}"
                if status >= 500 and status not in (502, 503, 504):
                    faults.append(where)
                if status >= 400 and len(answer) > 4000:
                    faults.append(f"a long error: {where}")

        await asyncio.gather(*(send(chosen[start::8]) for start in range(8)))
        told = await gateway.told()
        assert not told["errors"], told["errors"][:3]
    assert not faults, "\n".join(faults[:20])
