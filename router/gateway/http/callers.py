"""Who calls: what the head of a request says of its caller. Checked before anything else is read of the request, by the
hot paths and by those of FastAPI alike.

- A header that decides something is given once. Two could be read as one by a proxy and as the other one here.
- An open gateway answers programs, and its own pages, but no page of another web site: a browser on the gateway's machine
  or network reaches it, too (DNS rebinding; forms and images that send simple requests across sites). `Origin` must name
  the gateway itself, and so must `Host` where only this machine can ask. What needs a key is safe from both: no page of
  another site has it.
- `/admin` wants the admin key. Without one it answers a program on this machine, and only while the gateway is open to
  everybody and listens on loopback: a proxy that says nothing of itself cannot be told from such a program, so nothing may
  hang on the difference that the operator has closed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from router.core.errors import Refusal, invalid_request
from router.core.types import Outcome

if TYPE_CHECKING:
    from router.gateway.rules import Rules
    from router.request.routing_params import KeyTerms

RawHeaders = Sequence[tuple[bytes, bytes]]
Headers = Mapping[bytes, bytes]
#: A host's name or address, and its port (None: the scheme's own).
Authority = tuple[str, int | None]

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
_ONCE_BEGINNINGS = (b"x-headway-", b"x-llm-d-")

#: What proxies add to a request. A program that asks by itself sends none of these.
_OF_PROXIES = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"true-client-ip", b"x-cluster-client-ip", b"client-ip"}
)
_OF_PROXIES_BEGINNINGS = (
    b"x-forwarded", b"x-original-", b"x-proxy", b"x-envoy-", b"x-client-", b"x-amzn-", b"x-azure-",
    b"cf-", b"fastly-", b"x-appengine-", b"x-cloud-",
)  # fmt: skip


def caller_terms(rules: Rules, raw: RawHeaders, headers: Headers) -> KeyTerms | None:
    """The terms of the caller's key, None on an open gateway. `headers` is `raw` as a dictionary, by names in lower case.
    Raises the 401 of a missing or wrong key, the 403 of another site's page, and a 400 for a header given twice."""
    repeated = () if len(headers) == len(raw) else given_twice(raw)
    if b"authorization" in repeated:
        raise _two_keys()
    name = rules.keys.authenticate(headers.get(b"authorization"))
    if name is None:
        rules.pages.check(headers)
    if repeated:
        named = repeated[0].decode("latin-1")
        raise invalid_request(f"The header {named} is given more than once.", named)
    return None if name is None else rules.terms[name]


def check_admin(
    rules: Rules, admin_key: str | None, raw: RawHeaders, client: str | None, version: str
) -> None:
    """Let in who has the admin key, or who may without one. `client` is the address of the connection's other end,
    `version` that of HTTP. Raises the 401."""
    headers = dict(raw)
    if len(headers) != len(raw) and b"authorization" in given_twice(raw):
        raise _two_keys()
    if admin_key is not None:
        if rules.keys.is_admin(headers.get(b"authorization"), admin_key):
            return
        raise _no_admin("The admin key is missing or wrong.")
    if not admin_needs_key(rules, admin_key) and _is_local(headers, client, version):
        return
    raise _no_admin("There is no admin key: set HEADWAY_ADMIN_KEY and start the gateway again.")


def admin_needs_key(rules: Rules, admin_key: str | None) -> bool:
    """Whether /admin answers nobody who has no admin key."""
    return admin_key is not None or not rules.keys.open or not rules.pages.loopback


def given_twice(raw: RawHeaders) -> list[bytes]:
    """The headers that are given more than once and must not be, in order."""
    seen: set[bytes] = set()
    repeated: dict[bytes, None] = {}
    for name, _ in raw:
        if name in seen and (name in _ONCE or name.startswith(_ONCE_BEGINNINGS)):
            repeated[name] = None
        seen.add(name)
    return list(repeated)


class OwnPages:
    """Which names and pages are an open gateway's own.

    `host` is the address that it listens on. On loopback `Host` must name this machine or one of `allowed_hosts`, whoever
    asks. On another address a program may use any name; a page's `Origin` must equal its `Host` and be an IP address,
    this machine's name or one of `allowed_hosts`: a name of others could point here."""

    def __init__(self, host: str, allowed_hosts: Collection[str] = ()) -> None:
        self.loopback = names_this_machine(host) and not _is_unspecified(host)
        self._allowed = frozenset(name.lower() for name in allowed_hosts)

    def at(self, host: str) -> OwnPages:
        """The same for a gateway that listens on `host`."""
        return OwnPages(host, self._allowed)

    def check(self, headers: Headers) -> None:
        """Raise the 403 of a request that a page of another site has made, or that has another's name."""
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is not None and (self.loopback or origin is not None) and not self._is_own(authority(host)):
            raise _forbidden(
                "This gateway needs no key, so it answers to its own names only, and Host is none of them: make a key, "
                "or name it in server.allowed_hosts."
            )
        if origin is not None and (host is None or _authority_of_origin(origin) != authority(host)):
            raise _forbidden("This gateway needs no key, so it answers no page of another site: make a key.")
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in {b"same-origin", b"none"} and not _follows_link(headers):
            raise _forbidden("This gateway needs no key, so it answers no page of another site: make a key.")

    def _is_own(self, found: Authority | None) -> bool:
        if found is None:
            return False
        name = found[0]
        if names_this_machine(name) or name in self._allowed:
            return True
        return not self.loopback and _address(name) is not None


def _follows_link(headers: Headers) -> bool:
    """Whether a person has opened a page of ours by a link: the site with the link does not see the answer."""
    return (
        headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
        and (
            b"origin" not in headers  # else it is a form
        )
    )


@lru_cache(maxsize=256)
def authority(host: bytes) -> Authority | None:
    """What a `Host` header names; None if it is no host."""
    text = host.decode("latin-1").strip().lower()
    if not text.isascii() or any(mark in text for mark in "@/?#\\% \t"):
        return None
    try:
        parts = urlsplit(f"//{text}")
        name, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        return None
    return (name, None if port in {80, 443} else port) if name else None


def _authority_of_origin(origin: bytes) -> Authority | None:
    scheme, separator, rest = origin.partition(b"://")
    return authority(rest) if separator and scheme.lower() in {b"http", b"https"} else None


@lru_cache(maxsize=256)
def names_this_machine(name: str) -> bool:
    """Whether a host's name or address is that of the machine itself, whoever says it."""
    address = _address(name)
    if address is None:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _is_local(headers: Headers, client: str | None, version: str) -> bool:
    """Whether a program on this machine asks, as far as the request tells. HTTP/1.0 is what nginx speaks to those behind
    it unless it is told otherwise."""
    address = None if client is None else _address(client)
    if address is None or not _is_loopback(address) or version == "1.0":
        return False
    host = headers.get(b"host")
    found = None if host is None else authority(host)
    if host is not None and (found is None or not names_this_machine(found[0])):
        return False
    return not any(name in _OF_PROXIES or name.startswith(_OF_PROXIES_BEGINNINGS) for name in headers)


def _is_loopback(address: IPv4Address | IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def _is_unspecified(name: str) -> bool:
    address = _address(name)
    return address is not None and address.is_unspecified


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _forbidden(message: str) -> Refusal:
    return Refusal(403, "permission_denied", message, Outcome.REJECTED_AUTH)


def _two_keys() -> Refusal:
    return Refusal(
        401, "invalid_api_key", "The header authorization is given more than once.", Outcome.REJECTED_AUTH
    )


def _no_admin(message: str) -> Refusal:
    return Refusal(401, "invalid_api_key", message, Outcome.REJECTED_AUTH)
