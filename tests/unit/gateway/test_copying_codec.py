"""The codec that keeps a copy of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from router.core.errors import UpstreamError
from router.gateway.codecs.codec import CopyingCodec
from router.gateway.codecs.ollama.codec import OllamaCodec
from router.gateway.codecs.openai import OpenAICodec
from tests.unit.gateway.chunks import chunk

HEADWAY = {"outcome": "ok"}


@pytest.mark.parametrize(("max_bytes", "copied"), [(10, b"one, two"), (8, b"one, two"), (7, b"")])
def test_a_stream(max_bytes: int, copied: bytes) -> None:
    kept: list[Mapping[str, Any] | bytes] = []
    codec = CopyingCodec(OpenAICodec(False), max_bytes, lambda answer, _: kept.append(answer))
    assert codec.stream_type == OpenAICodec.stream_type
    assert codec.first(b"one") + codec.events(b", two") == b"one, two"
    assert kept == []
    assert codec.finish(None, "stop", HEADWAY) == OpenAICodec(False).finish(None, "stop", HEADWAY)
    assert kept == [copied]


def test_only_the_last_attempt_is_kept() -> None:
    kept: list[Mapping[str, Any] | bytes] = []
    codec = CopyingCodec(OllamaCodec("chat", "m"), 1000, lambda answer, _: kept.append(answer))
    with pytest.raises(UpstreamError):
        codec.first(b"data: {\n\n")
    good = chunk({"content": "x"})
    codec.first(good)
    codec.finish(None, "stop", HEADWAY)
    assert kept == [good]


def test_what_came_after_too_much_is_not_kept_either() -> None:
    kept: list[Mapping[str, Any] | bytes] = []
    codec = CopyingCodec(OpenAICodec(False), 4, lambda answer, _: kept.append(answer))
    codec.first(b"12345")
    codec.events(b"1")
    codec.finish(None, "stop", HEADWAY)
    assert kept == [b""]


def test_an_answer_that_is_not_streamed() -> None:
    kept: list[tuple[Any, Any]] = []
    codec = CopyingCodec(OpenAICodec(False), 1, lambda answer, headway: kept.append((answer, headway)))
    answer = {"choices": []}
    assert codec.non_streaming(answer, HEADWAY) == b'{"choices":[],"headway":{"outcome":"ok"}}'
    assert kept == [(answer, HEADWAY)]
