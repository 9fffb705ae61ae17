"""How an error shows a value: short, quoted, on one line, and never a secret."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

#: Keys that people write a secret under, with the key that the fleet file has in their place.
SECRET_KEYS = {
    "api_key": "api_key_env",
    "apikey": "api_key_env",
    "token": "api_key_env",
    "bearer": "api_key_env",
    "secret": "api_key_env",
    "authorization": "api_key_env",
    "headers": "headers_env",
    "admin_key": "admin_key_env",
    "password": "password_env",
    "key": "sha256",
}
HIDDEN = "***"
MAX_CHARS = 60

_URL_KEYS = {"url", "endpoint", "server"}
_KEY_LIKE = re.compile(r"\b(?:sk|pk|hw|hf|gsk|ghp|xai)[-_][\w-]{4,}")


def shown(value: object, path: tuple[str | int, ...] = ()) -> str:
    """A value as an error shows it. `path` is where it stands: what may be a secret there is hidden."""
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if _is_secret(path):
        return HIDDEN
    if isinstance(value, float):
        return f"{value:.15g}" if math.isfinite(value) else f".{value}"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**MAX_CHARS else "a very large number"
    if isinstance(value, str):
        text = _cut(_without_secrets(value, in_url=bool(path) and path[-1] in _URL_KEYS))
        return repr(text)
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def shown_path(path: tuple[str | int, ...]) -> str:
    """`instances[0].serves.NAME.price`; empty for the whole file."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_shown_key(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def _shown_key(key: str) -> str:
    text = _cut(_without_secrets(key, in_url=False))
    return text if text.isprintable() else repr(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 3]}..."


def _without_secrets(text: str, *, in_url: bool) -> str:
    """Logins, queries and what looks like a key taken out. A password may hold any sign, so all before the last @ goes."""
    scheme, separator, rest = text.partition("://")
    if separator or in_url:
        start = scheme + separator if separator else ""
        rest = rest if separator else text
        if "@" in rest:
            rest = f"{HIDDEN}@{rest.rpartition('@')[2]}"
        before, mark, _ = rest.partition("?")
        text = start + (f"{before}?{HIDDEN}" if mark else rest)
    return _KEY_LIKE.sub(HIDDEN, text[: 10 * MAX_CHARS])


def _is_secret(path: tuple[str | int, ...]) -> bool:
    """Whether a secret belongs there, or is easily written there by mistake: in place of a key's settings too."""
    names = [part.lower() for part in path if isinstance(part, str)]
    if any(name == "sha256" or name.endswith("_env") or name in SECRET_KEYS for name in names):
        return True
    return path[:1] == ("auth",) and (len(path) == 1 or (path[1] == "keys" and len(path) <= 3))
