"""The connection settings of one engine (address, secrets, time limits), and the clients that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backends.control import Control
from backends.http1 import Origin, request_head, tls_context
from backends.json_calls import engine_headers
from backends.pool import Pool
from router.core.types import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One instance of an engine.

    `api_key` is sent as a bearer token, `headers` with every request (the operator's headers with their values).
    `ca_file` replaces the system's authorities for an https engine. `connect_timeout_s` bounds the time to connect,
    `idle_timeout_s` the time between two reads after the first token, `control_timeout_s` probes and scrapes.
    """

    url: str
    candidates: Sequence[Candidate] = ()
    api_key: str | None = None
    headers: Mapping[str, str] | None = None
    ca_file: str | None = None
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 60.0
    control_timeout_s: float = 5.0


class EngineClient:
    """The connection pool for generation requests, and the client for all other calls to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ValueError for a bad url or header, OSError if `ca_file` cannot be read."""
        self._origin = origin = Origin.parse(endpoint.url)
        tls = tls_context(endpoint.ca_file) if origin.tls else None
        self._headers = engine_headers(endpoint.api_key, endpoint.headers)
        self.pool = Pool(
            origin,
            tls=tls,
            connect_timeout_s=endpoint.connect_timeout_s,
            idle_timeout_s=endpoint.idle_timeout_s,
        )
        self.control = Control(
            origin,
            headers=self._headers,
            tls=tls,
            timeout_s=endpoint.control_timeout_s,
        )

    def head(self, path: str) -> bytes:
        """The constant part of a POST to `path`."""
        return request_head(self._origin, path, self._headers)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.pool.aclose()
        await self.control.aclose()
