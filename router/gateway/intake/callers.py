"""Checks the caller by the head of a request, before anything else of the request is read.

The hot paths and FastAPI's paths use the same checks.

- A header that decides something must appear once. A proxy could read one of two values, and this gateway the other.
- An open gateway refuses pages of other web sites (`router.gateway.http.own_pages`).
- `/admin` needs the admin key. Without an admin key it answers programs on this machine, and only while the gateway is
  open and listens on loopback. A proxy that adds no header looks like such a program, so the exception must not matter
  for a gateway that its operator has closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router.core.errors import invalid_request, unauthorized
from router.gateway.fleet.rules import Rules
from router.gateway.http.own_pages import Headers, authority, is_loopback, names_this_machine
from router.request.routing_params import KeyTerms

RawHeaders = Sequence[tuple[bytes, bytes]]

_TWO_KEYS = "The header authorization is given more than once."
_ONCE = frozenset(
    {
        b"authorization",
        b"host",
        b"origin",
        b"content-length",
        b"transfer-encoding",
        b"x-session-id",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"sec-fetch-dest",
    }
)
_ONCE_PREFIXES = (b"x-headway-", b"x-llm-d-")

#: Headers that proxies add. A program that calls the gateway directly sends none of them.
_PROXY_HEADERS = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"true-client-ip", b"x-cluster-client-ip", b"client-ip"}
)
_PROXY_PREFIXES = (
    b"x-forwarded", b"x-original-", b"x-proxy", b"x-envoy-", b"x-client-", b"x-amzn-", b"x-azure-",
    b"cf-", b"fastly-", b"x-appengine-", b"x-cloud-",
)  # fmt: skip


def caller_terms(rules: Rules, raw: RawHeaders, headers: Headers) -> KeyTerms | None:
    """The terms of the caller's key; None on an open gateway. `headers` is `raw` as a dictionary, names in lower case.

    Raises the 401 for a missing or wrong key, the 403 for a page of another site, a 400 for a repeated header.
    """
    repeated = () if len(headers) == len(raw) else given_twice(raw)
    if b"authorization" in repeated:
        raise unauthorized(_TWO_KEYS)
    name = rules.keys.authenticate(headers.get(b"authorization"))
    if name is None:
        rules.pages.check(headers)
    if repeated:
        header = repeated[0].decode("latin-1")
        raise invalid_request(f"The header {header} is given more than once.", header)
    return None if name is None else rules.working[name].terms


def check_admin(rules: Rules, admin_key: str | None, scope: Mapping[str, Any]) -> None:
    """Raise the 401 unless the caller has the admin key, or needs none. `scope` is ASGI's of the request."""
    raw = scope["headers"]
    headers = dict(raw)
    if len(headers) != len(raw) and b"authorization" in given_twice(raw):
        raise unauthorized(_TWO_KEYS)
    if admin_key is not None:
        if rules.keys.is_admin(headers.get(b"authorization"), admin_key):
            return
        raise unauthorized("The admin key is missing or wrong.")
    if not admin_needs_key(rules, admin_key) and _is_local(headers, scope):
        return
    raise unauthorized("There is no admin key: set HEADWAY_ADMIN_KEY and start the gateway again.")


def admin_needs_key(rules: Rules, admin_key: str | None) -> bool:
    """Whether /admin refuses every caller without the admin key."""
    return admin_key is not None or not rules.keys.open or not rules.pages.loopback


def given_twice(raw: RawHeaders) -> list[bytes]:
    """The headers that are repeated although they must appear only once, in order."""
    seen: set[bytes] = set()
    repeated: dict[bytes, None] = {}
    for name, _ in raw:
        if name in seen and (name in _ONCE or name.startswith(_ONCE_PREFIXES)):
            repeated[name] = None
        seen.add(name)
    return list(repeated)


def _is_local(headers: Headers, scope: Mapping[str, Any]) -> bool:
    """Whether the caller seems to be a program on this machine. HTTP/1.0 is nginx's default towards its upstreams."""
    client = scope["client"]  # (address, port)
    if client is None or not is_loopback(client[0]) or scope["http_version"] == "1.0":
        return False
    host = headers.get(b"host")
    found = None if host is None else authority(host)
    if host is not None and (found is None or not names_this_machine(found[0])):
        return False
    return not any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIXES) for name in headers)
