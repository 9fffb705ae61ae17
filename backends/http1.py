"""What a thin HTTP/1.1 client needs to know of an engine: where it listens, the heads of requests, what becomes of a connection
(`backends.connection`)."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from router.core.errors import UpstreamError, UpstreamRejected

#: A shorter text is no secret but a word, such as "Bearer".
_SECRET_CHARS = 8
#: Of every request, beside `host`.
_OWN_HEADERS = {
    "content-type": "application/json",
    "accept": "text/event-stream, application/json",
    "user-agent": "headway",
}


class ConnectionLost(UpstreamError):
    """The connection ended before the answer did."""


class Aborted(UpstreamError):
    """The caller gave up."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine listens, from its URL. `prefix` is the path before `/v1`, without a trailing slash; with `whole` it
    stands in place of `/v1` too."""

    host: str
    port: int
    tls: bool
    prefix: str
    whole: bool = False

    @classmethod
    def parse(cls, url: str, *, base: bool = False) -> Origin:
        """`base`: a path is complete, as in the `base_url` of OpenAI's clients. Raises ValueError if `url` is no http(s) URL
        of a host."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("an engine's url must be http://HOST[:PORT] or https://HOST[:PORT]")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/")
        prefix = path.removesuffix("/v1")
        return cls(
            parts.hostname, parts.port or (443 if tls else 80), tls, prefix, base and path == prefix != ""
        )

    def target(self, path: str) -> str:
        """What a request for a path of the engine names."""
        return self.prefix + (path.removeprefix("/v1") if self.whole else path)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verifying context; `ca_file` replaces the system's authorities. Raises OSError if it cannot be read."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # not there, not readable, or no certificate
        raise OSError(f"cannot use ca_file {ca_file}: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def request_head(origin: Origin, path: str, headers: Mapping[str, str]) -> bytes:
    """The constant part of a POST to `path`, up to the value of `x-request-id`. `headers` (names in lower case) are the
    operator's; they replace ours of the same name.

    Raises ValueError for a header that would break the head.
    """
    every = {"host": origin.authority, **_OWN_HEADERS, **headers}
    lines = [
        f"POST {origin.target(path)} HTTP/1.1",
        *(f"{name}: {value}" for name, value in every.items()),
    ]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header holds a line break")
    try:
        return "\r\n".join([*lines, "x-request-id: "]).encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("a header holds a character that is not Latin-1") from None


def secrets_in(head: bytes) -> list[str]:
    """The words of the operator's headers in a head of `request_head`, the longest first."""
    own = [f"{name}: {value}" for name, value in _OWN_HEADERS.items()]
    lines = head.decode("latin-1").split("\r\n")[1:-1]
    return secret_words(
        line.partition(":")[2] for line in lines if line not in own and not line.startswith("host:")
    )


def secret_words(values: Iterable[str]) -> list[str]:
    """The words of headers' values that may be secrets, the longest first."""
    words = (word for value in values for word in value.split())
    return sorted((word for word in words if len(word) >= _SECRET_CHARS), key=len, reverse=True)


def hide_secrets(error: UpstreamError, head: bytes) -> None:
    """Hide the words of the operator's headers in an engine's error, which may quote them: clients and records get it."""
    secrets = secrets_in(head)
    error.args = (hidden(str(error), secrets),)
    if isinstance(error, UpstreamRejected):
        error.param = None if error.param is None else hidden(error.param, secrets)
        error.code = None if error.code is None else hidden(error.code, secrets)


def hidden(text: str, secrets: Sequence[str]) -> str:
    """A text without these secrets (`secret_words`), nor the beginning of one at its end."""
    for secret in secrets:
        text = text.replace(secret, "***")
        for size in range(len(secret) - 1, _SECRET_CHARS - 1, -1):  # a message that was cut ends within it
            if text.endswith(secret[:size]):
                text = f"{text[:-size]}***"
                break
    return text
