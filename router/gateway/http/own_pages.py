"""Which web pages may call an open gateway: its own, and none of another site.

A browser on the gateway's machine or network can reach the gateway. A page of another site could use it through DNS
rebinding, or through forms and images, which browsers send across sites. So `Origin` must name the gateway itself, and
`Host` too where only this machine can connect. A gateway that needs a key is safe from both: no other site has the key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from router.core.errors import Refusal
from router.core.types import Outcome

Headers = Mapping[bytes, bytes]
#: A host's name or address, and its port (None: the default port of the scheme).
Authority = tuple[str, int | None]


class OwnPages:
    """The host names and pages of an open gateway.

    `host` is the address that it listens on. On loopback, every request's `Host` must name this machine or one of
    `allowed_hosts`. On another address, programs may use any name. A page's `Origin` must equal its `Host` and be an IP
    address, this machine's name or one of `allowed_hosts`: any other name could point here.
    """

    def __init__(self, host: str, allowed_hosts: Collection[str] = ()) -> None:
        address, self.host = address_of(host), host
        self.loopback = names_this_machine(host) and not (address is not None and address.is_unspecified)
        self._allowed = frozenset(name.lower() for name in allowed_hosts)

    def check(self, headers: Headers) -> None:
        """Raise the 403 for a request from a page of another site, or with a `Host` that is not the gateway's."""
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is not None and (self.loopback or origin is not None) and not self._is_own(authority(host)):
            raise _forbidden(
                "This gateway has no keys, so it accepts only its own host names, and Host is not one of them: make a key, "
                "or add the name to server.allowed_hosts."
            )
        if origin is not None and (host is None or origin_authority(origin) != authority(host)):
            raise _forbidden(_OTHER_SITE)
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in {b"same-origin", b"none"} and not _follows_link(headers):
            raise _forbidden(_OTHER_SITE)

    def _is_own(self, found: Authority | None) -> bool:
        if found is None:
            return False
        name = found[0]
        if names_this_machine(name) or name in self._allowed:
            return True
        return not self.loopback and address_of(name) is not None


_OTHER_SITE = "This gateway has no keys, so it refuses pages of other sites: make a key."


def _follows_link(headers: Headers) -> bool:
    """Whether a person opened one of our pages by a link. The site with the link does not see the answer."""
    return (
        headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
        and b"origin" not in headers  # a form sends it
    )


def _forbidden(message: str) -> Refusal:
    return Refusal(403, "permission_denied", message, Outcome.REJECTED_AUTH)


# --- host names and addresses ---------------------------------------------------------------------------
@lru_cache(maxsize=256)
def authority(host: bytes) -> Authority | None:
    """What a `Host` header names; None if the header is not a valid host."""
    text = host.decode("latin-1").strip().lower()
    if not text.isascii() or any(mark in text for mark in "@/?#\\% \t"):
        return None
    try:
        parts = urlsplit(f"//{text}")
        name, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        return None
    return (name, None if port in {80, 443} else port) if name else None


def origin_authority(origin: bytes) -> Authority | None:
    """What an `Origin` header names; None if it is not an http or https origin."""
    scheme, separator, rest = origin.partition(b"://")
    return authority(rest) if separator and scheme.lower() in {b"http", b"https"} else None


@lru_cache(maxsize=256)
def names_this_machine(name: str) -> bool:
    """Whether a host's name or address always means the machine that resolves it."""
    address = address_of(name)
    if address is None:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def is_loopback(name: str) -> bool:
    """Whether this is a loopback address, IPv4-mapped ones included."""
    address = address_of(name)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address is not None and (address.is_loopback or (mapped is not None and mapped.is_loopback))


def address_of(name: str) -> IPv4Address | IPv6Address | None:
    """The IP address in `name`; None if it is not an address."""
    try:
        return ip_address(name)
    except ValueError:
        return None
