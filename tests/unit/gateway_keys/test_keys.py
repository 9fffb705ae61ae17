"""Keys: who asks."""

from __future__ import annotations

import hashlib
import hmac
import re

import pytest

from router.config import KeyConfig
from router.core.errors import Refusal
from router.core.types import Outcome
from router.gateway.keys.admission import duration
from router.gateway.keys.keyring import KeyRing, new_key

SECRET = b"sk-the-key-of-team-a"


KEY = KeyConfig(name="team-a", sha256=hashlib.sha256(SECRET).hexdigest())


def header(token: bytes) -> bytes:
    return b"Bearer " + token


# --- who asks -----------------------------------------------------------------------------------------
def test_the_right_key_is_known_by_name() -> None:
    other = KeyConfig(name="team-b", sha256=hashlib.sha256(b"sk-b").hexdigest().upper())
    ring = KeyRing([KEY, other])
    assert not ring.open
    assert ring.authenticate(header(SECRET)) == "team-a"
    assert ring.authenticate(b"BEARER  sk-b ") == "team-b"


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
        KeyRing([KEY]).authenticate(authorization)
    refusal = refused.value
    assert (refusal.status, refusal.code, refusal.outcome) == (401, "invalid_api_key", Outcome.REJECTED_AUTH)
    assert "sk-" not in refusal.message


@pytest.mark.parametrize("authorization", [SECRET, b"Basic " + SECRET, b"Bearer", b"Bearer "])
def test_a_key_in_another_form_is_told_the_form(authorization: bytes) -> None:
    with pytest.raises(Refusal, match="Send the API key as `Authorization: Bearer KEY`"):
        KeyRing([KEY]).authenticate(authorization)


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def watched(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    ring = KeyRing([KEY])
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


# --- new keys -----------------------------------------------------------------------------------------
def test_a_new_key_is_known_by_its_hash_and_no_two_are_the_same() -> None:
    made = {new_key() for _ in range(100)}
    assert len({text for text, _ in made}) == 100
    for text, sha256 in made:
        assert re.fullmatch(r"hw-[A-Za-z0-9_-]{43}", text)  # 32 bytes
        assert (
            KeyRing([KeyConfig(name="team-a", sha256=sha256)]).authenticate(header(text.encode())) == "team-a"
        )


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
