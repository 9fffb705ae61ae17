"""Who asks: clients' keys (kept as hashes only), the admin key, and the rate limits of a key."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Sequence
from typing import Protocol

from router.core.errors import Refusal
from router.core.types import Outcome
from router.store.records import RequestRecord
from router.store.state import Bucket, MemoryState, State, Want


class KeySettings(Protocol):
    """What a key's entry in the fleet file says, as far as it is needed here."""

    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def requests_per_minute(self) -> float | None: ...
    @property
    def tokens_per_minute(self) -> float | None: ...


Headers = list[tuple[bytes, bytes]]

_NO_DIGEST = bytes(32)


def bearer_token(authorization: bytes | None) -> bytes | None:
    """The token of an `Authorization: Bearer` header; None if it is missing or of another scheme."""
    if authorization is None or authorization[:7].lower() != b"bearer ":
        return None
    return authorization[7:].strip() or None


class KeyRing:
    """Checks presented keys and their limits. Without any configured key everything is open.

    Looking up the digest in a table leaks nothing of use: who times it learns about digests, not about the
    keys that they come from. The comparison itself takes the same time wherever the two differ.

    Limits are token buckets in `state`: N a minute allows N at once, and one more every 60/N seconds. Hand the
    same state to the ring of a changed fleet file, so that a reload refills nothing."""

    def __init__(self, keys: Sequence[KeySettings] = (), state: State | None = None) -> None:
        """ValueError: a hash that is not SHA-256 in hex, a name or hash given twice (the message holds names
        only)."""
        self._state: State = MemoryState() if state is None else state
        self._by_digest: dict[bytes, tuple[bytes, str | None]] = {}
        self._limits: dict[str, tuple[Bucket | None, Bucket | None]] = {}
        names = set()
        for key in keys:
            try:
                digest = bytes.fromhex(key.sha256)
            except ValueError:
                digest = b""
            if len(digest) != len(_NO_DIGEST):
                raise ValueError(f"auth.keys: sha256 of {key.name!r} is not 64 hexadecimal digits")
            if key.name in names:
                raise ValueError(f"auth.keys: the name {key.name!r} is given twice")
            if digest in self._by_digest:
                raise ValueError(f"auth.keys: {key.name!r} has the hash of another key")
            names.add(key.name)
            self._by_digest[digest] = (digest, key.name)
            if key.requests_per_minute is not None or key.tokens_per_minute is not None:
                self._limits[key.name] = (
                    _bucket(f"{key.name}/requests", key.requests_per_minute),
                    _bucket(f"{key.name}/tokens", key.tokens_per_minute),
                )

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self._by_digest

    def authenticate(self, authorization: bytes | None) -> str | None:
        """The name of the key in an `Authorization` header; None when everything is open. Raises the 401 for a
        missing or wrong key."""
        if not self._by_digest:
            return None
        token = bearer_token(authorization)
        if token is not None:
            digest = hashlib.sha256(token).digest()
            known, name = self._by_digest.get(digest, (_NO_DIGEST, None))
            if hmac.compare_digest(digest, known) and name is not None:
                return name
        raise Refusal(
            401,
            "invalid_api_key",
            "No API key was given." if token is None else "The API key is not valid.",
            Outcome.REJECTED_AUTH,
        )

    @staticmethod
    def is_admin(authorization: bytes | None, admin_key: str) -> bool:
        """Whether the header carries the admin key, compared in constant time."""
        token = bearer_token(authorization)
        if token is None:
            return False
        # Hashed first, since comparing texts of different lengths would tell the length.
        wanted = hashlib.sha256(admin_key.encode()).digest()
        return hmac.compare_digest(hashlib.sha256(token).digest(), wanted)

    async def admit(self, record: RequestRecord, tokens: float, now: float, headers: Headers) -> None:
        """Take a request and its estimated tokens (prompt and output) from the limits of the record's key.

        The `x-ratelimit-*` headers to send are appended to `headers`, also when the answer is the 429 that is
        raised (which takes nothing). An estimate beyond what the bucket ever holds takes all of it: an upper
        bound must not shut a request out for good. `now` in seconds, on any clock that does not go back."""
        limits = self._limits.get(record.key_name) if record.key_name is not None else None
        if limits is None:
            return
        by_request, by_token = limits
        wants: list[tuple[Bucket, float]] = []
        reserved_tokens = 0.0
        if by_request is not None:
            wants.append((by_request, 1.0))
        if by_token is not None:
            reserved_tokens = min(max(0.0, tokens), by_token.capacity)
            wants.append((by_token, reserved_tokens))
        levels = (await self._state.take(Want(wants), now)).levels
        wait_s, exhausted = 0.0, ""
        for (bucket, _), level in zip(wants, levels, strict=True):
            what = "tokens" if bucket is by_token else "requests"
            headers += (
                (f"x-ratelimit-limit-{what}".encode(), f"{bucket.capacity:.0f}".encode()),
                (f"x-ratelimit-remaining-{what}".encode(), b"%d" % max(0, math.floor(level.level + 1e-9))),
                (f"x-ratelimit-reset-{what}".encode(), duration(level.full_after_s).encode()),
            )
            if level.wait_s > wait_s:
                wait_s, exhausted = level.wait_s, what
        if exhausted:
            message = f"The key's {exhausted} per minute are used up; try again in {duration(wait_s)}."
            raise Refusal(429, "rate_limit_exceeded", message, Outcome.REJECTED_RATE, retry_after_s=wait_s)
        if by_token is not None:
            record.reserved_tokens = reserved_tokens

    def settle(self, record: RequestRecord) -> None:
        """Replace what a finished request reserved by what it used (nothing, if it was never sent)."""
        reserved_tokens = record.reserved_tokens
        if reserved_tokens is None or record.key_name is None:
            return
        record.reserved_tokens = None
        bucket = self._limits.get(record.key_name, (None, None))[1]
        used = (record.prompt_tokens or 0) + (record.output_tokens or 0) if record.attempts else 0
        if bucket is not None and used != reserved_tokens:
            self._state.give(bucket, reserved_tokens - used, time.time())


def _bucket(name: str, per_minute: float | None) -> Bucket | None:
    return None if per_minute is None else Bucket(name, per_minute, per_minute / 60.0)


def duration(seconds: float) -> str:
    """A span as OpenAI's rate-limit headers write it: `120ms`, `1s`, `6m0s`, `1h0m30s`; rounded up."""
    if seconds < 1:
        return f"{math.ceil(round(seconds * 1000, 6))}ms"
    whole = math.ceil(round(seconds, 6))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{secs}s"
    return f"{minutes}m{secs}s" if minutes else f"{secs}s"
