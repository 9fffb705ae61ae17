"""Bodies that try to hold an event loop: every form of JSON that costs much for its size, for every route."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

CHAT = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]'
#: A beginning, what is repeated, and an end.
FORMS: dict[str, tuple[bytes, bytes, bytes]] = {
    "one string": (b'"', b"hello wo", b'"'),
    "commas in a string": (b'"', b"{[,:", b'"'),
    "a string of escapes": (b'"', b'\\"', b'"'),
    "a string of unicode escapes": (b'"', b"\\u00e9", b'"'),
    "a string of surrogates": (b'"', b"\\ud83d\\ude00", b'"'),
    "a string of wide letters": (b'"', "漢".encode(), b'"'),
    "spaces in a string": (b'"', b" ", b'"'),
    "a string without end": (b'"', b"x", b""),
    "backslashes": (b'"', b"\\", b""),
    "lone surrogates": (b'"', b"\\ud800", b'"'),
    "not UTF-8": (b'"', b"\xff", b'"'),
    "digits": (b"", b"9", b""),
    "digits of a fraction": (b"0.", b"9", b""),
    "empty strings": (b"[", b'"",', b'""]'),
    "short strings": (b"[", b'"abcdefgh",', b'""]'),
    "strings of a page": (b"[", b'"' + b"x" * 5000 + b'",', b'""]'),
    "zeros": (b"[", b"0,", b"0]"),
    "token ids": (b"[", b"12345,", b"1]"),
    "lists of token ids": (b"[", b"[1,2,3],", b"[1]]"),
    "empty lists": (b"[", b"[],", b"[]]"),
    "empty objects": (b"[", b"{},", b"{}]"),
    "nested lists": (b"", b"[", b""),
    "nested objects": (b"", b'{"a":', b""),
    "members of one name": (b"{", b'"a":1,', b'"a":1}'),
    "spaces": (b"", b" ", b"1"),
    "floats": (b"[", b"0.12345678901234567,", b"1]"),
    "messages": (b"[", b'{"role":"user","content":"x"},', b'{"role":"user","content":"x"}]'),
    "messages of parts": (
        b'[{"role":"user","content":[',
        b'{"type":"text","text":"x"},',
        b'{"type":"text","text":"x"}]}]',
    ),
    "tools": (b"[", b'{"type":"function","function":{"name":"f"}},', b"{}]"),
    "a message of one string": (b'[{"role":"user","content":"', b"hello wo", b'"}]'),
    "an image": (
        b'[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,',
        b"QUJD",
        b'"}}]}]',
    ),
    "colons": (b'"', b"a:", b'"'),
    "minutes": (b'"', b"1", b'!"'),
}
#: Members of a body that take any value, by route; the rest of each body is small and right.
ROUTES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "/v1/chat/completions": (
        CHAT,
        ("messages", "tools", "model", "stop", "logit_bias", "user", "metadata", "routing"),
    ),
    "/v1/completions": (
        b'{"model":"m","prompt":"x","max_tokens":1',
        ("prompt", "suffix", "prompt_cache_key"),
    ),
    "/v1/embeddings": (b'{"model":"m","input":"x"', ("input", "model")),
    "/v1/responses": (
        b'{"model":"m","input":"x","max_output_tokens":1',
        ("input", "instructions", "tools", "metadata"),
    ),
    "/api/chat": (
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"options":{"num_predict":1}',
        ("messages", "keep_alive", "tools", "format", "options", "model"),
    ),
    "/api/generate": (b'{"model":"m","prompt":"x"', ("prompt", "keep_alive", "system", "images", "context")),
    "/api/embed": (b'{"model":"m","input":"x"', ("input", "keep_alive")),
    "/api/show": (b'{"model":"m"', ("model", "name")),
    "/v1/routing/predict": (CHAT, ("messages", "tools", "models", "routing")),
    "/v1/feedback": (b'{"request_id":"r","quality":0.5', ("request_id", "quality")),
}


def filled(form: str, size: int) -> bytes:
    """A form of about `size` bytes."""
    start, unit, end = FORMS[form]
    return start + unit * max(1, (size - len(start) - len(end)) // len(unit)) + end


def body(route: str, member: str, value: bytes) -> bytes:
    """A body for a route in which `member` has this value (it stands a second time if the rest has it too: the last
    one counts)."""
    return ROUTES[route][0] + b',"' + member.encode() + b'":' + value + b"}"


def cases(rng: Random, count: int, sizes: tuple[int, ...]) -> Iterator[tuple[str, str, str, int, bytes]]:
    """Route, member, form, size and body: each form at least once while `count` lasts, the rest drawn."""
    routes = [(route, member) for route, (_, members) in ROUTES.items() for member in members]
    forms = list(FORMS)
    rng.shuffle(forms)
    for number in range(count):
        form = forms[number % len(forms)]
        route, member = rng.choice(routes)
        size = rng.choice(sizes)
        yield route, member, form, size, body(route, member, filled(form, size))


def plain_cases() -> Iterator[tuple[str, str, str, int, bytes]]:
    """Those by which gateways were held before, and those that must be served, at full size."""
    full = 32 * 1024 * 1024 - 1024
    for route, member, form, size in (
        ("/api/chat", "keep_alive", "minutes", 16_000),
        ("/api/generate", "keep_alive", "minutes", full),
        ("/v1/embeddings", "input", "empty strings", 2_000_000),
        ("/v1/embeddings", "input", "token ids", full),
        ("/v1/chat/completions", "tools", "nested objects", 600),
        ("/v1/chat/completions", "messages", "a message of one string", full),
        ("/v1/chat/completions", "messages", "messages", 150_000),
        ("/v1/chat/completions", "messages", "messages", full),
        ("/v1/chat/completions", "model", "colons", full),
        ("/v1/chat/completions", "messages", "an image", full),
        ("/v1/completions", "prompt", "token ids", 1_500_000),
        ("/v1/responses", "input", "one string", full),
        ("/v1/routing/predict", "messages", "a message of one string", full),
        ("/v1/routing/predict", "tools", "nested lists", full),
        ("/api/show", "model", "one string", full),
        ("/api/generate", "prompt", "a string of escapes", full),
    ):
        yield route, member, form, size, body(route, member, filled(form, size))
