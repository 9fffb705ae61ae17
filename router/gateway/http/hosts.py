"""Host names and addresses, as `Host` and `Origin` headers write them."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

#: A host's name or address, and its port (None: the default port of the scheme).
Authority = tuple[str, int | None]


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
