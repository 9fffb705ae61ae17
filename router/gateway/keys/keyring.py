"""Authentication: clients' keys (known as hashes only) and the admin key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from router.config import KeyConfig
from router.core.errors import unauthorized

#: The beginning of every key that is made here, so that people and secret scanners recognize it.
PREFIX = "hw-"

_NO_DIGEST = bytes(32)


def new_key() -> tuple[str, str]:
    """A new key and its SHA-256 in hex. Only the hash is stored."""
    text = PREFIX + secrets.token_urlsafe(32)
    return text, hashlib.sha256(text.encode()).hexdigest()


def bearer_token(authorization: bytes | None) -> bytes | None:
    """The token of an `Authorization: Bearer` header; None if it is missing or of another scheme."""
    if authorization is None or authorization[:7].lower() != b"bearer ":
        return None
    return authorization[7:].strip() or None


class KeyRing:
    """Checks the keys of requests. Without any key the gateway is open.

    The time of the lookup depends on the digest, which tells an attacker nothing about keys. The comparison takes the same
    time wherever two digests differ.
    """

    def __init__(self, keys: Sequence[KeyConfig] = (), *, closed: bool = False) -> None:
        """`keys` have different names and hashes (`Tenants`). `closed`: a key is needed even if no key works."""
        self.open = not keys and not closed  # no key is needed
        self._by_digest: dict[bytes, tuple[bytes, str | None]] = {
            digest: (digest, key.name) for key in keys for digest in [bytes.fromhex(key.sha256)]
        }

    def close(self) -> None:
        """Need a key from now on, even if no key works."""
        self.open = False

    def authenticate(self, authorization: bytes | None) -> str | None:
        """The name of the key in an `Authorization` header; None on an open gateway. Raises the 401 for a missing or wrong
        key."""
        if self.open:
            return None
        token = bearer_token(authorization)
        if token is not None:
            digest = hashlib.sha256(token).digest()
            known, name = self._by_digest.get(digest, (_NO_DIGEST, None))
            if hmac.compare_digest(digest, known) and name is not None:
                return name
            raise unauthorized("The API key is not valid.")
        if authorization:
            raise unauthorized("Send the API key as `Authorization: Bearer KEY`.")
        raise unauthorized("No API key was given.")

    @staticmethod
    def is_admin(authorization: bytes | None, admin_key: str) -> bool:
        """Whether the header carries the admin key, compared in constant time."""
        token = bearer_token(authorization)
        if token is None:
            return False
        # Hashed first: comparing texts of different lengths would reveal the length.
        wanted = hashlib.sha256(admin_key.encode()).digest()
        return hmac.compare_digest(hashlib.sha256(token).digest(), wanted)
