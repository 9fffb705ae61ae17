"""The bytes that the load generator and the canned engine exchange.

All is fixed but a time stamp: each content event has the time of its writing (CLOCK_MONOTONIC nanoseconds, one clock for all
processes of a machine), so its reader knows how long the relay took. The prompt, which a gateway passes on unchanged, has the time
between the events.
"""

from __future__ import annotations

import re
from functools import lru_cache

import orjson

from backends import sse_events

MODEL = "bench"
PATH = "/v1/chat/completions"
PROMPT_TOKENS = 64

#: Digits of a stamp: enough for 300 years of uptime, and always as many, so that chunk sizes never change.
STAMP_DIGITS = 19
STAMP = re.compile(rb'"content":"t(\d{19}) "')

_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_PACE = re.compile(rb"pace_us=(\d+)")
_STREAM = re.compile(rb'"stream": ?true')
_USAGE = re.compile(rb'"include_usage": ?true')

_ID = "chatcmpl-0123456789abcdef0123456789abcdef"
_CREATED = 1760000000
#: The rest of a request's text: about 1 KB.
_TALK = "The quick brown fox jumps over the lazy dog, and then it tells the story once more. " * 10

LAST_CHUNK = b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def request(port: int, *, stream: bool, chunks: int, pace_us: int = 0, key: str | None = None) -> bytes:
    """A whole HTTP request for `chunks` content events, `pace_us` microseconds apart."""
    body = orjson.dumps(
        {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": f"{_TALK}pace_us={pace_us}"},
            ],
            "max_tokens": chunks,
            "stream": stream,
        }
    )
    authorization = "" if key is None else f"Authorization: Bearer {key}\r\n"
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: {'text/event-stream' if stream else 'application/json'}\r\nContent-Length: {len(body)}\r\n"
        f"{authorization}\r\n"
    )
    return head.encode() + body


def wanted(body: bytes) -> tuple[bool, int, int, bool]:
    """What a request's body requests: streamed, content events, microseconds between them, usage event."""
    tokens, pace = _MAX_TOKENS.search(body), _PACE.search(body)
    return (
        _STREAM.search(body) is not None,
        int(tokens[1]) if tokens else 16,
        int(pace[1]) if pace else 0,
        _USAGE.search(body) is not None,
    )


def answer(content_type: str, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        content_type.encode(),
        len(body),
        body,
    )


@lru_cache(maxsize=64)
def completion(chunks: int) -> bytes:
    """The answer to a request that is not streamed."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": f"t{'0' * STAMP_DIGITS} " * chunks},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    body = _object("chat.completion", choices=[choice], usage=_usage(chunks))
    return answer("application/json", orjson.dumps(body))


@lru_cache(maxsize=64)
def opening() -> bytes:
    """The role event in its chunk."""
    return chunk(_event({"role": "assistant", "content": ""}))


@lru_cache(maxsize=64)
def closing(chunks: int, usage: bool) -> bytes:
    """What follows the last content event: finish reason, usage if it was asked for, end mark; chunked."""
    events = [_event({"content": ""}, "length")]
    if usage:
        events.append(_data(_object("chat.completion.chunk", choices=[], usage=_usage(chunks))))
    return b"".join(map(chunk, [*events, sse_events.END])) + LAST_CHUNK


def content_event(stamp_ns: int) -> bytes:
    """One content event as vLLM writes it. Its text is `stamp_ns`, the time of writing."""
    return _EVENT % (STAMP_DIGITS, stamp_ns)


def content_chunk(stamp_ns: int) -> bytes:
    """The same as a chunk of the transfer encoding."""
    return _CHUNK % (STAMP_DIGITS, stamp_ns)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _usage(chunks: int) -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + chunks,
        "completion_tokens": chunks,
    }


def _object(kind: str, **members: object) -> dict[str, object]:
    return {"id": _ID, "object": kind, "created": _CREATED, "model": MODEL, **members}


def _data(value: dict[str, object]) -> bytes:
    return sse_events.event(orjson.dumps(value))


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _data(_object("chat.completion.chunk", choices=[choice]))


_EVENT = _event({"content": "@"}).replace(b"@", b"t%0*d ")
_CHUNK = chunk(_EVENT % (STAMP_DIGITS, 0)).replace(b"t" + b"0" * STAMP_DIGITS, b"t%0*d")
