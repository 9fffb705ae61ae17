"""Keys and their limits."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import pytest

from router.core.errors import Refusal
from router.core.types import Outcome
from router.gateway.keys import KeyRing, bearer_token, duration
from router.store.records import RequestRecord
from router.store.state import MemoryState

SECRET = b"sk-the-key-of-team-a"


@dataclass(frozen=True)
class Key:
    name: str = "team-a"
    sha256: str = hashlib.sha256(SECRET).hexdigest()
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


def header(token: bytes) -> bytes:
    return b"Bearer " + token


# --- who asks -----------------------------------------------------------------------------------------
def test_the_right_key_is_known_by_name() -> None:
    other = Key("team-b", hashlib.sha256(b"sk-b").hexdigest().upper())
    ring = KeyRing([Key(), other])
    assert not ring.open
    assert ring.authenticate(header(SECRET)) == "team-a"
    assert ring.authenticate(b"bearer  sk-b ") == "team-b"


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        header(b"sk-wrong"),
        header(SECRET[:-1]),
        header(SECRET + b"x"),
        b"Basic " + SECRET,
        SECRET,
        header(b"\xff\x00"),
        header(hashlib.sha256(SECRET).hexdigest().encode()),
    ],
)
def test_anything_else_is_a_401_that_tells_nothing(authorization: bytes | None) -> None:
    with pytest.raises(Refusal) as refused:
        KeyRing([Key()]).authenticate(authorization)
    refusal = refused.value
    assert (refusal.status, refusal.code, refusal.outcome) == (401, "invalid_api_key", Outcome.REJECTED_AUTH)
    assert "sk-" not in refusal.message


def test_without_keys_everything_is_open() -> None:
    assert KeyRing().open
    assert KeyRing().authenticate(None) is None
    assert KeyRing().authenticate(header(b"anything")) is None


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def watched(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    ring = KeyRing([Key()])
    ring.authenticate(header(SECRET))
    with pytest.raises(Refusal):
        ring.authenticate(header(b"sk-wrong"))
    ring.is_admin(header(b"short"), "the much longer admin key")
    digests = [hashlib.sha256(token).digest() for token in (SECRET, b"sk-wrong", b"short")]
    assert [presented for presented, _ in compared] == digests
    assert all(len(a) == len(b) == 32 for a, b in compared)


def test_the_admin_key() -> None:
    assert KeyRing.is_admin(header(b"root"), "root")
    assert KeyRing.is_admin(header("schlüssel".encode()), "schlüssel")
    for wrong in (None, b"", header(b""), header(b"Root"), b"root", header(b"roo")):
        assert not KeyRing.is_admin(wrong, "root")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([Key(sha256="abc")], "64 hexadecimal"),
        ([Key(sha256="g" * 64)], "64 hexadecimal"),
        ([Key(), Key(sha256="0" * 64)], "given twice"),
        ([Key(), Key("team-b")], "hash of another"),
    ],
)
def test_keys_that_cannot_be_told_apart_are_refused(keys: list[Key], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        KeyRing(keys)


def test_bearer_tokens() -> None:
    assert bearer_token(b"Bearer abc") == b"abc"
    assert bearer_token(b"BEARER abc") == b"abc"
    assert bearer_token(b"Token abc") is None


# --- rate limits --------------------------------------------------------------------------------------
def record(key_name: str | None = "team-a") -> RequestRecord:
    return RequestRecord("req", 0.0, key_name=key_name)


async def admit(ring: KeyRing, now: float, tokens: float = 0.0) -> tuple[RequestRecord, dict[str, str]]:
    headers: list[tuple[bytes, bytes]] = []
    asked = record()
    await ring.admit(asked, tokens, now, headers)
    return asked, {name.decode(): value.decode() for name, value in headers}


async def refused(ring: KeyRing, now: float, tokens: float = 0.0) -> tuple[Refusal, dict[str, str]]:
    headers: list[tuple[bytes, bytes]] = []
    with pytest.raises(Refusal) as refusal:
        await ring.admit(record(), tokens, now, headers)
    return refusal.value, {name.decode(): value.decode() for name, value in headers}


async def test_three_a_minute_are_three_at_once() -> None:
    ring = KeyRing([Key(requests_per_minute=3)])
    for remaining, reset in ((2, "20s"), (1, "40s"), (0, "1m0s")):
        _, headers = await admit(ring, 100.0)
        assert headers == {
            "x-ratelimit-limit-requests": "3",
            "x-ratelimit-remaining-requests": str(remaining),
            "x-ratelimit-reset-requests": reset,
        }
    refusal, headers = await refused(ring, 100.0)
    assert (refusal.status, refusal.code, refusal.outcome) == (
        429,
        "rate_limit_exceeded",
        Outcome.REJECTED_RATE,
    )
    assert refusal.retry_after_s == pytest.approx(20.0)
    assert headers["x-ratelimit-remaining-requests"] == "0"
    for _ in range(5):  # refused ones cost nothing
        refusal, _ = await refused(ring, 119.0)
    assert refusal.retry_after_s == pytest.approx(1.0)
    await admit(ring, 120.0)
    await refused(ring, 120.0)


async def test_tokens_are_reserved_and_settled() -> None:
    ring = KeyRing([Key(tokens_per_minute=600)])
    asked, headers = await admit(ring, 0.0, tokens=500)
    assert headers["x-ratelimit-remaining-tokens"] == "100"
    assert headers["x-ratelimit-reset-tokens"] == "50s"
    refusal, _ = await refused(ring, 0.0, tokens=200)
    assert refusal.retry_after_s == pytest.approx(10.0)
    asked.attempts, asked.prompt_tokens, asked.output_tokens = 1, 50, 50
    ring.settle(asked)
    ring.settle(asked)  # only once
    _, headers = await admit(ring, 0.0, tokens=200)
    assert headers["x-ratelimit-remaining-tokens"] == "300"


async def test_a_request_that_was_never_sent_costs_no_tokens() -> None:
    ring = KeyRing([Key(tokens_per_minute=600)])
    asked, _ = await admit(ring, 0.0, tokens=600)
    asked.prompt_tokens = 400
    ring.settle(asked)
    _, headers = await admit(ring, 0.0, tokens=0)
    assert headers["x-ratelimit-remaining-tokens"] == "600"


async def test_more_than_was_reserved_is_a_debt() -> None:
    ring = KeyRing([Key(tokens_per_minute=600)])
    asked, _ = await admit(ring, 0.0, tokens=100)
    asked.attempts, asked.prompt_tokens, asked.output_tokens = 1, 100, 900
    ring.settle(asked)
    refusal, headers = await refused(ring, 0.0, tokens=20)
    assert refusal.retry_after_s == pytest.approx(42.0)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    await admit(ring, 42.0, tokens=20)


async def test_an_estimate_beyond_the_capacity_takes_all_of_it() -> None:
    ring = KeyRing([Key(tokens_per_minute=600)])
    _, headers = await admit(ring, 0.0, tokens=1e9)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    refusal, _ = await refused(ring, 0.0, tokens=1)
    assert refusal.retry_after_s == pytest.approx(0.1)


async def test_a_request_refused_for_tokens_takes_no_request() -> None:
    ring = KeyRing([Key(requests_per_minute=2, tokens_per_minute=60)])
    await admit(ring, 0.0, tokens=60)
    refusal, headers = await refused(ring, 0.0, tokens=30)
    assert "tokens" in refusal.message
    assert refusal.retry_after_s == pytest.approx(30.0)
    assert headers["x-ratelimit-remaining-requests"] == "1"
    _, headers = await admit(ring, 0.0, tokens=0)
    assert headers["x-ratelimit-remaining-requests"] == "0"


async def test_keys_have_limits_of_their_own_and_a_reload_refills_nothing() -> None:
    state = MemoryState()
    keys = [
        Key(requests_per_minute=1),
        Key("team-b", hashlib.sha256(b"b").hexdigest(), requests_per_minute=1),
        Key("free", hashlib.sha256(b"c").hexdigest()),
    ]
    ring = KeyRing(keys, state)
    await admit(ring, 0.0)
    again = KeyRing(keys, state)
    await refused(again, 0.0)
    headers: list[tuple[bytes, bytes]] = []
    await again.admit(record("team-b"), 0.0, 0.0, headers)
    assert headers
    del headers[:]
    for name in ("free", None):
        for _ in range(10):
            await again.admit(record(name), 1e9, 0.0, headers)
    assert headers == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0121, "13ms"),
        (0.5, "500ms"),
        (1, "1s"),
        (59.2, "1m0s"),
        (360, "6m0s"),
        (3630, "1h0m30s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
