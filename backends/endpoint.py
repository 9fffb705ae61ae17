"""The connection settings of one engine (address, secrets, time limits), and what all adapters do with them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from backends import bounded_json
from backends.control import Control
from backends.http1 import Origin, request_head, tls_context
from backends.kind import EngineKind
from backends.pool import Pool
from router.core.errors import UpstreamError
from router.core.quoting import quoted
from router.core.types import Candidate

#: So many of an engine's models are told.
_MOST_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One instance of an engine.

    `api_key` is sent as a bearer token, `headers` with every request (the operator's headers with their values; they may
    replace the Authorization).
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


class EngineAdapter:
    """What the adapters of all kinds share (`router.core.interfaces.Backend`): the connections to one engine."""

    def __init__(self, kind: EngineKind, endpoint: Endpoint, paths: Mapping[str, str]) -> None:
        """`paths` are those of POSTs, by the name that `_heads` has for them. Raises ValueError for a bad url or header,
        OSError if `ca_file` cannot be read."""
        origin = Origin.parse(endpoint.url, base=kind.takes_base_url)
        tls = tls_context(endpoint.ca_file) if origin.tls else None
        self._tls, self._ca_file = tls, endpoint.ca_file
        headers = {name.lower(): value for name, value in (endpoint.headers or {}).items()}
        if endpoint.api_key:
            headers = {"authorization": f"Bearer {endpoint.api_key}", **headers}
        self.pool = Pool(
            origin,
            tls=tls,
            connect_timeout_s=endpoint.connect_timeout_s,
            idle_timeout_s=endpoint.idle_timeout_s,
        )
        self._kind = kind
        self._candidates = tuple(endpoint.candidates)
        self._control = Control(origin, headers=headers, tls=tls, timeout_s=endpoint.control_timeout_s)
        self._heads = {name: request_head(origin, path, headers) for name, path in paths.items()}

    @property
    def busy(self) -> int:
        return self.pool.busy_connections

    async def probe(self) -> bool:
        try:
            await self._control.check(self._kind.health_path)
        except UpstreamError as error:
            unknown = isinstance(error.__cause__, ssl.SSLCertVerificationError)
            if unknown and self._tls is not None and self._ca_file is not None:
                with suppress(OSError):  # the authority may have been renewed
                    self._tls.load_verify_locations(self._ca_file)
            raise
        return True

    async def _listed(self, path: str, key: str) -> list[dict[str, Any]]:
        """The entries of the list under `key` in the answer to a GET; none if the engine has no such list. Raises UpstreamError."""
        status, body = await self._control.get(path)
        if status != 200:
            return []
        try:
            answer = bounded_json.loads(body)
        except ValueError:
            return []
        entries = answer.get(key) if isinstance(answer, dict) else None
        return [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []

    async def aclose(self) -> None:
        await self.pool.aclose()
        await self._control.aclose()


def mismatches(candidates: Iterable[Candidate], contexts: Mapping[str, Any]) -> Iterator[str]:
    """What does not agree with the fleet file, a sentence each. `contexts` has the names of the models that the engine lists, each
    with its context in tokens, or with anything else where the engine does not tell it."""
    if not contexts:
        return
    for candidate in candidates:
        name, wanted = candidate.upstream_model, candidate.context_tokens
        context = contexts.get(name)
        if name not in contexts:
            rest = len(contexts) - _MOST_TOLD
            more = f" and {rest} more" if rest > 0 else ""
            others = ", ".join(map(quoted, sorted(contexts)[:_MOST_TOLD]))
            yield f"the engine lists no model {quoted(name)}; it lists {others}{more}"
        elif type(context) is int and wanted is not None and context < wanted:
            yield f"the engine takes {context} tokens for {quoted(name)}, the fleet file says context_tokens: {wanted}"
