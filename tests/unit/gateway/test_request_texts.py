"""The texts of requests and answers."""

from __future__ import annotations

from typing import Any

import pytest

from router.gateway.judge import answer_text, asked_text

TEXT = {"type": "text", "text": "b"}


@pytest.mark.parametrize(
    ("api", "body", "text"),
    [
        ("chat", {"messages": [{"role": "user", "content": "a"}]}, "a"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, TEXT]}]}, "ab"),
        (
            "chat",
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "assistant", "content": None},
                    {"role": "user", "content": "u"},
                ]
            },
            "system: s\n\nassistant: \n\nuser: u",
        ),
        ("chat", {"messages": [{"role": "user", "content": [TEXT, {"type": "image_url"}]}]}, ""),
        ("completions", {"prompt": "p"}, "p"),
        ("completions", {"prompt": ["p"]}, ""),
        ("completions", {"prompt": [1, 2]}, ""),
    ],
)
def test_what_is_asked(api: str, body: dict[str, Any], text: str) -> None:
    assert asked_text(api, body) == text


@pytest.mark.parametrize(
    ("api", "answer", "text"),
    [
        ("chat", {"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}, "a"),
        ("chat", {"choices": [{"message": {"content": None, "tool_calls": []}}]}, ""),
        ("completions", {"choices": [{"text": "a"}]}, "a"),
        ("chat", {"choices": []}, ""),
        ("chat", {"choices": [None]}, ""),
        ("completions", {}, ""),
        ("completions", {"choices": [{"text": 3}]}, ""),
    ],
)
def test_the_answer(api: str, answer: dict[str, Any], text: str) -> None:
    assert answer_text(api, answer) == text
