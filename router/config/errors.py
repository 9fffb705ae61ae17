"""Errors in a fleet file, with the path and the line of each, and how they quote a value without secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from router.core.quoting import cut, quoted

#: The path of a value: keys and list positions from the top of the file.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `line` counts from 1; None if there is no file."""

    path: Path
    reason: str
    line: int | None = None


class ConfigError(ValueError):
    """A fleet file (or one instance) is not valid. The text has one line for each problem: `FILE:LINE: path.to.key:
    reason (given: VALUE)`. `masked` hides a value that may be a secret."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(self._line(problem) for problem in self.problems))

    def _line(self, problem: Problem) -> str:
        place = self.source if problem.line is None else f"{self.source}:{problem.line}"
        return ": ".join(part for part in (place, dotted(problem.path), problem.reason) if part)


# --- quoted values ------------------------------------------------------------------------------------
#: Keys under which people write secrets, each with the key that the fleet file has for it.
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
#: Only this many characters of a text are searched for secrets.
_MAX_SEARCHED_CHARS = 600

_URL_KEYS = {"url", "endpoint", "server"}
_KEY_LIKE = re.compile(r"\b(?:sk|pk|hw|hf|gsk|ghp|xai)[-_][\w-]{4,}")


def masked(value: object, path: Path = ()) -> str:
    """A value as an error quotes it. `path` is its place; a value that may be a secret there is hidden."""
    if _is_secret(path) and not isinstance(value, bool) and value is not None:
        return HIDDEN
    if isinstance(value, str):
        value = _without_secrets(value, in_url=bool(path) and path[-1] in _URL_KEYS)
    return quoted(value)


def dotted(path: Path) -> str:
    """`instances[0].serves.NAME.price`; empty for the whole file."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_masked_key(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def _masked_key(key: str) -> str:
    text = cut(_without_secrets(key, in_url=False))
    return text if text.isprintable() else repr(text)


def _without_secrets(text: str, *, in_url: bool) -> str:
    """The text without logins, queries, and words that look like keys. A password may contain any character, so
    everything before the last @ is removed."""
    scheme, separator, rest = text.partition("://")
    if separator or in_url:
        start = scheme + separator if separator else ""
        rest = rest if separator else text
        if "@" in rest:
            rest = f"{HIDDEN}@{rest.rpartition('@')[2]}"
        before, mark, _ = rest.partition("?")
        text = start + (f"{before}?{HIDDEN}" if mark else rest)
    return _KEY_LIKE.sub(HIDDEN, text[:_MAX_SEARCHED_CHARS])


def _is_secret(path: Path) -> bool:
    """Whether the value at this path is a secret, or people easily write one there by mistake (instead of a key's
    settings)."""
    names = [part.lower() for part in path if isinstance(part, str)]
    if any(name == "sha256" or name.endswith("_env") or name in SECRET_KEYS for name in names):
        return True
    return path[:1] == ("auth",) and (len(path) == 1 or (path[1] == "keys" and len(path) <= 3))
